"""The study behind docs/results/: both papers' comparisons on three real federations.

    python -m benchmarks.study                 what there is to do, and what is done
    python -m benchmarks.study run [WORD ...]  what is not done yet (and has the word), two at once
    python -m benchmarks.study keep            what pages are made of, into docs/results/data/
    python -m benchmarks.study pages           docs/results/TASK.html and TASK.md from what is kept

Every piece is one command of Konsil over a recipe, in a folder of its own under runs/study/; it
resumes. Pieces of one thread use two cores better than one piece with two workers does. The
images are not part of this repository (see the recipes).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from konsil.evaluation.scores import FILE, join_scores
from konsil.files import write_text
from konsil.report.curves import LAMBDA
from konsil.unseen import OF_FOLD

TOP = Path(__file__).parents[1]
RUNS = TOP / "runs" / "study"
KEPT = TOP / "docs" / "results" / "data"
DONE = "done"  # a file: the piece's command has come to its end
ROUNDS = {"glaucoma": 160, "fundus": 60, "prostate": 80}  # cheapest first
LAMBDAS = {"glaucoma": 0.7, "fundus": 0.7, "prostate": 0.3}  # the paper's: eyes, prostate
FOLDS = {
    "fundus": ("drishti_gs1", "origa", "refuge_train"),
    "prostate": (
        "promise12_bidmc",
        "promise12_hk",
        "promise12_runmc",
        "promise12_ucl",
        "prostatex",
    ),
    "glaucoma": ("acrima", "drishti_gs1", "origa", "refuge_train"),
}
# FedSoup's Table 1, and what Konsil adds to it
SOUPS = ("fedavg", "fedprox", "moon", "fedbn", "fedfomo", "fedrep", "fedbabu", "fedsoup")
SOUPS += ("centralized", "{name: fedsm, lambda: 0.7}")
SOUP_ROUNDS = 80
AFFINE = "network.norm=instance_affine"  # what FedBN keeps at home: a U-Net's usual norm has none
DIGITS = 5  # of validation histories that are kept


@dataclass(frozen=True)
class Piece:
    """A command with its settings, and the folder that it fills."""

    command: str
    task: str
    name: str
    settings: tuple[str, ...]
    site: str = ""  # of `konsil unseen`: the hospital that is left out

    @property
    def folder(self) -> Path:
        """Where it runs; the folds of one rotation share it."""
        return RUNS / self.task / self.name

    @property
    def mark(self) -> Path:
        """A file that is there when it has been done here."""
        return self.folder / (f"{DONE}-{self.site}" if self.site else DONE)

    @property
    def done(self) -> bool:
        """Whether it has been done here, or elsewhere and was kept."""
        fold = f"without-{self.site}" if self.site else ""
        return self.mark.exists() or (KEPT / self.task / self.name / fold / "results.csv").exists()

    @property
    def title(self) -> str:
        """What it is called on the screen."""
        return " ".join(filter(None, (self.task, self.name, self.site)))

    def arguments(self) -> list[str]:
        """As they are typed after `konsil`."""
        told = [self.command, f"recipes/{self.task}.yaml", "--out", str(self.folder)]
        told += ["--site", self.site] if self.site else []
        told += [word for setting in self.settings for word in ("--set", setting)]
        return [*told, "--resume"]  # also at first: two folds may begin at once


def pieces() -> Iterator[Piece]:
    """All of them, in the order in which they are done: one seed of everything first."""
    for task in ROUNDS:
        yield from _compared(task, 0)
    yield from _soups(0)
    for task in ("fundus", "prostate"):
        settings = _settings(_papers(task).values(), ROUNDS[task], 0)
        yield from _folds(task, "unseen", settings)
    for seed in (1, 2):
        for task in ROUNDS:
            yield from _compared(task, seed)
        yield from _soups(seed)


def _soups(seed: int) -> Iterator[Piece]:
    """FedSoup's Table 1: its methods, every hospital left out in turn."""
    settings = _settings(SOUPS, SOUP_ROUNDS, seed)
    yield from _folds("glaucoma", f"unseen-seed{seed}", settings)


def _folds(task: str, name: str, settings: tuple[str, ...]) -> Iterator[Piece]:
    for site in FOLDS[task]:
        yield Piece("unseen", task, name, settings, site)


def _compared(task: str, seed: int) -> Iterator[Piece]:
    for name, method in _three_seeds(task).items():
        yield _run(task, name, method, seed)
    if seed == 0:
        for name, method in _one_seed(task).items():
            more = (AFFINE,) if name.endswith("affine") else ()
            yield _run(task, name, method, seed, *more)


def _papers(task: str) -> dict[str, str]:
    """Both papers' methods, and the controls."""
    fedsm = f"{{name: fedsm, lambda: {LAMBDAS[task]}}}"
    return {n: n for n in ("centralized", "fedavg")} | {"fedsm": fedsm, "fedsoup": "fedsoup"}


def _three_seeds(task: str) -> dict[str, str]:
    plain = {n: n for n in ("local", "centralized", "fedavg", "ft", "fedsoup")}
    return plain | {
        "fedsm": f"{{name: fedsm, lambda: {LAMBDAS[task]}}}",
        "fedsm-auto": "{name: fedsm, label: fedsm-auto, lambda: auto}",
        "fedsm-soup": f"{{name: fedsm-soup, lambda: {LAMBDAS[task]}}}",
    }


def _one_seed(task: str) -> dict[str, str]:
    found = {n: n for n in ("fedprox", "scaffold", "fedavgm", "ditto")}
    found["fedsm-extra"] = f"{{name: fedsm-extra, lambda: {LAMBDAS[task]}}}"
    if task == "glaucoma":  # its network's group norm has something to keep
        return found | {"fedbn": "fedbn"}
    return found | {
        f"{name}-affine": f"{{name: {name}, label: {name}-affine}}" for name in ("fedbn", "fedavg")
    }


def _run(task: str, name: str, method: str, seed: int, *more: str) -> Piece:
    settings = _settings([method], ROUNDS[task], seed)
    return Piece("run", task, f"{name}-seed{seed}", (*settings, *more))


def _settings(methods: Iterable[str], rounds: int, seed: int) -> tuple[str, ...]:
    listed = f"methods=[{', '.join(methods)}]"
    plain = ("engine.name=inprocess", "compute.kernels=fast")
    return (f"rounds={rounds}", f"seeds=[{seed}]", listed, *plain)


# --- at work --------------------------------------------------------------------------------------


def run(wanted: Sequence[str]) -> None:
    """The pieces that are not done and have one of the words, two at once."""
    left = [p for p in pieces() if not p.done and _has(p, wanted)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_work, left))


def _has(piece: Piece, words: Sequence[str]) -> bool:
    return not words or any(word in piece.title for word in words)


def _work(piece: Piece) -> None:
    log = RUNS / "logs" / f"{piece.title.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as file:
        command = [sys.executable, "-m", "konsil", *piece.arguments()]
        code = subprocess.call(command, cwd=TOP, stdout=file, stderr=file)
    print(f"{piece.title}: {'done' if code == 0 else f'failed, see {log}'}", flush=True)
    if code == 0:
        piece.mark.touch()


# --- what pages are made of -----------------------------------------------------------------------


def keep() -> None:
    """Plans, results and scores of what is done; no weights, no image, no file name."""
    for piece in pieces():
        if piece.mark.exists():
            place = KEPT / piece.folder.relative_to(RUNS)
            _keep(piece.folder, place)
            if piece.site:  # folds may have been done on several machines
                fold = f"without-{piece.site}"
                _keep(piece.folder / fold, place / fold)
                join_scores(place / FILE, sorted(place.glob(f"*/{OF_FOLD}")))


def _keep(run: Path, kept: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    plan = (run / "plan.yaml").read_text(encoding="utf-8")
    here = re.compile("^data_folder: .*$", re.MULTILINE)  # a place of this machine
    write_text(kept / "plan.yaml", here.sub("data_folder: not kept", plan))
    for name in ("results.csv", "results-last.csv", "sharpness.csv", FILE, OF_FOLD):
        if (run / name).exists():
            shutil.copyfile(run / name, kept / name)
    for result in run.glob("*/seed*/result.json"):
        told = json.loads(result.read_text(encoding="utf-8"))
        slim = {"best": [], "last": [], "history": [_slim(moment) for moment in told["history"]]}
        write_text(kept / result.relative_to(run), json.dumps(told | slim, separators=(",", ":")))
    if (run / "events.jsonl").exists():
        lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        write_text(kept / "events.jsonl", "".join(line for line in lines if '"job_' in line))


def _slim(moment: dict[str, Any]) -> dict[str, Any]:
    """Of a round what curves are drawn from: means, and lambda' by site."""
    by_site = {
        site: {LAMBDA: own[LAMBDA]} for site, own in moment["sites"].items() if LAMBDA in own
    }
    means = {name: round(value, DIGITS) for name, value in moment["means"].items()}
    return moment | {"means": means, "sites": by_site}


# --- pages ----------------------------------------------------------------------------------------

TABLES = {  # of TASK.md
    "fundus": ("scores", "means", "differences"),
    "prostate": ("scores", "means", "differences"),
    "glaucoma": ("scores", "means", "differences", "auc"),
}


def pages() -> None:
    """`konsil report` of all that is kept of a task: the page, and its main tables."""
    for task, tables in TABLES.items():
        folders = sorted(path.parent for path in (KEPT / task).glob("*/plan.yaml"))
        if not folders:
            continue
        _konsil("report", *folders, "-o", KEPT.parent / f"{task}.html", "--no-images")
        runs = [folder for folder in folders if not any(folder.glob("without-*"))]
        form = "--format", "markdown", "--table"
        text = "\n".join(_konsil("report", *runs, *form, table) for table in tables)
        write_text(KEPT.parent / f"{task}.md", f"# {task.capitalize()}: the tables\n\n{text}")


def _konsil(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "konsil", *map(str, arguments)]
    return subprocess.run(command, cwd=TOP, check=True, capture_output=True, text=True).stdout


def show() -> None:
    """A line a piece."""
    for piece in pieces():
        mark = "done" if piece.done else "    "
        print(f"{mark}  {piece.title}: konsil {' '.join(piece.arguments())}")


if __name__ == "__main__":
    command, *words = sys.argv[1:] or ["show"]
    if command == "run":
        run(words)
    elif command == "keep":
        keep()
    elif command == "pages":
        pages()
    else:
        show()

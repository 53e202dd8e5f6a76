"""The study of docs/recipe.md: what is in a run's plan and results, a line a model.

    python -m benchmarks.recipe collect runs/a runs/b     add finished runs to recipe.csv
    python -m benchmarks.recipe validation prostate       every recipe by validation images alone
    python -m benchmarks.recipe table prostate            the page's table of a task

Recipes are chosen with `validation`, which shows no test score; `table` is for what was chosen.

A run is an ordinary one (`konsil run recipes/prostate.yaml --set ...`); what it was made with is
read from its plan.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, get_type_hints

import yaml
from scipy.stats import t as student

from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, read_results
from konsil.federation.runner import RESULT_FILES

FILE = Path(__file__).with_name("recipe.csv")
# setting of the plan -> how the page calls a value that is not the plain one
WORDS: dict[tuple[str, str], dict[Any, str]] = {
    ("training", "augment"): {"light": "light", "strong": "strong"},
    ("training", "schedule"): {"cosine": "cosine"},
    ("server", "momentum"): {"auto": "momentum", 0.9: "momentum 0.9"},
    ("server", "weights"): {"equal": "equal weights"},
    ("training", "lr"): {0.0003: "lr 3e-4", 0.0005: "lr 5e-4", 0.002: "lr 2e-3", 0.003: "lr 3e-3"},
    ("training", "keep"): {"ema": "EMA", "smoothed": "smoothed", "last": "keep last"},
    ("network", "name"): {"small": "small network"},
    ("network", "norm"): {n: f"{n} norm" for n in ("instance_affine", "batch", "group")},
}


class Line(NamedTuple):
    """One model of one run."""

    task: str
    pixels: int
    rounds: int
    recipe: str
    method: str
    setting: str  # what else was chosen of the method
    seed: int
    role: str
    checkpoint: str
    metric: str
    client_average: float
    overall: float
    validation: float  # client average


def recipe_of(experiment: dict[str, Any]) -> str:
    """What is not plain in a plan, in a few words."""
    found = []
    for (block, key), words in WORDS.items():
        value = experiment[block].get(key)
        if value in words:
            found.append(words[value])
        if key == "augment" and found and experiment[block]["augment_strength"] != 1:
            found[-1:] = [f"{found[-1]} x {experiment[block]['augment_strength']}"]
    return " + ".join(found) or "plain"


def settings_of(method: dict[str, Any]) -> str:
    """Lambda (and its guard, where it is not `cross-fit`), selector and routing of FedSM."""
    wanted = ["lambda", "selector_optimizer", "routing"]
    if method.get("lambda") == "auto" and method["lambda_guard"] != "cross-fit":
        wanted.insert(1, "lambda_guard")
    return ", ".join(f"{key} {method[key]}" for key in wanted if method.get(key) is not None)


def lines_of(folder: Path) -> Iterable[Line]:
    """Every model of a finished run."""
    experiment = yaml.safe_load((folder / "plan.yaml").read_text(encoding="utf-8"))["experiment"]
    chosen = {m.get("label") or m["name"]: settings_of(m) for m in experiment["methods"]}
    federation = experiment["federation"]
    facts = (experiment["name"], federation["image_size"], experiment["rounds"])
    for checkpoint, name in RESULT_FILES.items():
        values = {row[:6]: row.value for row in read_results(folder / name)}
        for (method, seed, role, split, site, metric), value in values.items():
            if (split, site) != ("test", CLIENT_AVERAGE) or metric not in ("dice", "auc"):
                continue
            overall, validation = (
                values.get((method, seed, role, s, w, metric), float("nan"))
                for s, w in (("test", GLOBAL), ("val", CLIENT_AVERAGE))
            )
            known = recipe_of(experiment), method, chosen[method], seed, role, checkpoint, metric
            yield Line(*facts, *known, value, overall, validation)


def collect(folders: Sequence[Path]) -> None:
    """Add runs to the file; the same model again replaces what was there."""
    known = {line[:10]: line for line in read()}
    known |= {line[:10]: line for folder in folders for line in lines_of(folder)}
    with open(FILE, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Line._fields)
        for line in sorted(known.values(), key=str):
            writer.writerow([*line[:10], *(f"{value:.4f}" for value in line[10:])])


def read() -> list[Line]:
    """All that was collected."""
    if not FILE.exists():
        return []
    with open(FILE, encoding="utf-8", newline="") as file:
        return [Line(*map(_typed, Line._fields, row.values())) for row in csv.DictReader(file)]


def _typed(name: str, text: str) -> Any:
    return get_type_hints(Line)[name](text)


COLUMNS = {
    "pooled": ("centralized", "centralized"),
    "local": ("local", "local"),
    "FedAvg": ("fedsm", "global"),  # to the bit FedAvg's
    "specialists": ("fedsm", "personal"),
    "super": ("fedsm", "super"),
    "FedSoup": ("fedsoup", "personal"),
}


ALONE = ("centralized", "local")  # what the server does is nothing to them
SERVER = ("momentum", "momentum 0.9", "equal weights")


def table(task: str, metric: str = "dice", scores: str = "client_average") -> str:
    """Markdown: a line a recipe, a column a model; of the best round and of the (last) one.

    `scores`: the field that is shown, test images' client average or `validation` images'.
    """
    lines = [line for line in read() if (line.task, line.metric) == (task, metric)]
    keys = dict.fromkeys(_key(line) for line in lines if line.method not in ALONE)
    rows = [f"| px | rounds | recipe | FedSM's | {' | '.join(COLUMNS)} |"]
    rows.append("|--:|--:|---|---|" + "--:|" * len(COLUMNS))
    for key in sorted(keys, key=str):
        found = [_matching(lines, key, *column) for column in COLUMNS.values()]
        values = [_cell(models, scores) for models in found]
        rows.append("| " + " | ".join(map(str, (*key, *values))) + " |")
    return "\n".join(rows)


def _key(line: Line) -> tuple[int, int, str, str]:
    return line.pixels, line.rounds, line.recipe, line.setting


def _matching(
    lines: Sequence[Line], key: tuple[int, int, str, str], method: str, role: str
) -> dict[str, list[Line]]:
    """By checkpoint a method's role with this recipe, a seed each."""
    pixels, rounds, recipe, setting = key
    if method in ALONE:
        kept = [word for word in recipe.split(" + ") if word not in SERVER]
        recipe = " + ".join(kept) or "plain"
    found: dict[str, list[Line]] = {}
    for line in lines:
        own = " + ".join(w for w in line.recipe.split(" + ") if w not in SERVER) or "plain"
        same = (own if method in ALONE else line.recipe) == recipe
        of_it = (line.method, line.role, line.pixels, line.rounds) == (method, role, pixels, rounds)
        if of_it and same and (method != "fedsm" or line.setting == setting):
            found.setdefault(line.checkpoint, []).append(line)
    return found


def _cell(found: dict[str, list[Line]], scores: str) -> str:
    """The best round's mean over seeds, and the last round's in brackets."""
    if not found:
        return ""
    best, last = ([getattr(line, scores) for line in found[c]] for c in ("best", "last"))
    return f"{estimate(best)} ({estimate(last)})"


def estimate(values: Sequence[float]) -> str:
    """The mean, and the half-width of its 95 % interval (Student)."""
    text = f"{mean(values):.3f}"
    if len(values) < 2:
        return text
    half = student.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return f"{text} ± {half:.3f}"


if __name__ == "__main__":
    if sys.argv[1] == "collect":
        collect([Path(folder) for folder in sys.argv[2:]])
    else:
        shown = "validation" if sys.argv[1] == "validation" else "client_average"
        print(table(sys.argv[2], (*sys.argv[3:], "dice")[0], shown))

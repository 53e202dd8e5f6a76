"""What `import konsil` does with experiments; the command line does the same through here.

Heavy things are imported when they are needed: asking a super model takes no training code.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console

from konsil.config import (
    Experiment,
    FederationConfig,
    TaskConfig,
    check_experiment,
    checked,
    read_experiment,
)
from konsil.errors import ConfigError, RunError
from konsil.files import replacing

if TYPE_CHECKING:
    from pyarrow import Table

    from konsil.data import Federation
    from konsil.federation.plan import Plan
    from konsil.supermodel import SuperModel

POOLED = "centralized"  # the method that pre-trains
PAINTED = {1: "prostate", 3: "retina"}  # channels -> the synthetic federation of masks
SAME_IMAGES = (
    "the experiment is on this synthetic federation itself: what begins with these weights may "
    "have seen its test images; --synthetic takes another"
)
WIDTH = 120  # columns of a printed result, where no terminal says otherwise


def run(
    experiment: str | Path | Mapping[str, Any] | Experiment,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overrides: Mapping[str, Any] | None = None,
    plugins: Sequence[str | Path] = (),
    quiet: bool = False,
    track: Sequence[str] = (),
) -> RunResult:
    """Train and compare the methods of an experiment: `konsil run`, from Python.

    `experiment`: its file, the same keys as a dict, or an `Experiment`. `overrides` replace keys
    of it: `{"rounds": 10, "methods.fedsm.lambda": 0.8}`. The folder is `out`, or runs/<name>;
    with `resume` a run that stopped there goes on. `plugins`: files with methods of your own;
    a method that was defined right here, in a notebook's cell, is simply used by its name.
    `track`: tensorboard, mlflow, or both, which are told of every round.
    """
    from konsil.federation.compute import settings_kept
    from konsil.tracking.tracker import check_names

    source = Path(experiment) if isinstance(experiment, str) else experiment
    check_names(track)
    checked = read_experiment(source, overrides or {}, plugins)
    console = Console(quiet=quiet)
    folder = run_folder(checked, out)
    with settings_kept():
        plan, federation = prepare(checked, resume, console, folder)
        try:
            return train(plan, federation, folder, resume, console, track=track)
        except KeyboardInterrupt as stop:
            stop.add_note(f"what is done is in {folder}: the same call with resume=True goes on")
            raise


def run_folder(experiment: Experiment, out: str | Path | None) -> Path:
    """Where a run is kept."""
    return Path("runs") / experiment.name if out is None else Path(out)


def prepare(
    experiment: Experiment, resume: bool, console: Console, folder: Path | None = None
) -> tuple[Plan, Federation]:
    """Check everything, read the federation and print the plan: what is done before round 1.

    A run in `folder` that is resumed goes on computing as it did.
    """
    with _status(console, "starting"):
        from konsil.federation.plan import Plan, load_choices
        from konsil.report.plan import print_plan

        load_choices(experiment)  # a mistake there is found before images are read
        _refuse_methods_of_this_session(experiment, resume)
    federation = _opened(experiment.federation, experiment.task, console)
    plan = Plan.of(experiment, federation)
    if experiment.performance == "auto":
        plan = _fastest(plan, folder if resume else None, console)
    print_plan(console, plan, federation.warnings)
    return plan, federation


def _fastest(plan: Plan, folder: Path | None, console: Console) -> Plan:
    """The plan that computes as this machine does it fastest; says what was tried."""
    with _status(console, "trying how this machine computes fastest"):
        from konsil.federation.performance import with_performance

        trial = with_performance(plan, folder)
    for line in trial.lines:
        console.print(f"performance: {line}", highlight=False, markup=False, soft_wrap=True)
    return replace(plan, experiment=trial.experiment)


def train(
    plan: Plan,
    federation: Federation,
    folder: Path,
    resume: bool,
    console: Console,
    search: bool = False,
    figures: bool = True,
    track: Sequence[str] = (),
) -> RunResult:
    """All rounds of all jobs in a folder, with progress, and the figures at the end.

    `search`: its jobs are tries (`Run`); figures show test images, and a search has none.
    `track`: the names of trackers.
    """
    from konsil.federation.runner import Run
    from konsil.observers.progress import ProgressBar
    from konsil.report.figures import draw_figures
    from konsil.tracking.tracking import tracked

    progress = ProgressBar(console)
    work = Run(plan, folder, [progress], search)
    try:
        work.prepare(resume, federation.write_splits)
        progress.start()
        with tracked(folder, track, progress.say):
            work.go()
        progress.close()
        if figures and not search:
            with _status(console, "drawing"):
                draw_figures(folder, plan)
    finally:
        progress.close()
        work.close()
    return RunResult(folder, plan)


def pretrain(
    experiment: Experiment,
    out: Path,
    console: Console,
    *,
    synthetic: str | None = None,
    images: int | None = None,
    rounds: int | None = None,
) -> dict[str, Any]:
    """Train an experiment's network on pooled synthetic images, for `network.initial`.

    `synthetic`: the federation, by default one of the experiment's kind; `images`: so many a site.
    The weights of the best round are written to `out`; what comes back is their validation score,
    a row of results.csv.
    """
    if out.exists():
        raise ConfigError(f"{out}: is there already; choose another --out, or take it away")
    plain = pretraining(experiment, synthetic, images, rounds)
    with TemporaryDirectory(prefix="konsil-") as folder:
        plan, federation = prepare(plain, False, console)
        if experiment.federation.synthetic == plain.federation.synthetic:
            console.print(f"[yellow]note:[/] {SAME_IMAGES}")
        result = train(plan, federation, Path(folder) / "run", False, console, figures=False)
        (job,) = plan.jobs
        best = result.folder / job.name / "checkpoints" / "best" / f"{POOLED}.safetensors"
        with replacing(out) as file:
            file.write(best.read_bytes())
        metric = plan.method(job).context.task.main_metric
        wanted = {"split": "val", "site": "global", "metric": metric}
        return next(row for row in result.results if row.items() >= wanted.items())


def pretraining(
    experiment: Experiment, synthetic: str | None, images: int | None, rounds: int | None
) -> Experiment:
    """The experiment that pre-trains another's network: centralized, on synthetic images.

    Image size, channels, network, loss and training are the other's; labels are the synthetic ones.
    """
    from konsil.data.origin import find_source
    from konsil.data.synthetic import FEDERATIONS
    from konsil.registry import load_plugins
    from konsil.tasks import targets_of

    load_plugins(experiment.plugins)  # they may hold the task
    given = experiment.federation
    kept = ("task", "network", "training", "compute", "performance", "plugins")
    known = "channels" in given.model_fields_set  # then the images need not be here
    channels = given.channels if known else find_source(given, experiment.task).channels_read()
    classes = targets_of(experiment.task) == "classes"
    name = synthetic or ("pathology" if classes else PAINTED[channels])
    federation: dict[str, Any] = {"synthetic": name, "channels": channels}
    federation |= {key: getattr(given, key) for key in ("image_size", "cache", "cache_limit")}
    if images is not None and name in FEDERATIONS:
        federation["images"] = dict.fromkeys(FEDERATIONS[name].images, images)
    raw = experiment.model_dump(mode="json", by_alias=True, exclude_unset=True, include={*kept})
    for block, key in (("task", "structures"), ("task", "classes"), ("network", "initial")):
        raw.get(block, {}).pop(key, None)
    raw |= {"name": f"{experiment.name}-pretrain", "federation": federation, "methods": POOLED}
    raw |= {"rounds": rounds or experiment.rounds, "seeds": experiment.seeds[:1]}
    return check_experiment(raw, "konsil pretrain")


@dataclass(frozen=True, repr=False)
class RunResult:
    """What a run has left in its folder. In a notebook it shows the table of `konsil show`."""

    folder: Path
    plan: Plan

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        """The rows of results.csv (docs/run-folder.md): `pandas.DataFrame(result.results)`."""
        return self._rows("results.csv")

    @cached_property
    def results_last(self) -> list[dict[str, Any]]:
        """The same of the models after the last round, instead of the best checkpoints."""
        return self._rows("results-last.csv")

    @cached_property
    def scores(self) -> Table:
        """Every test image's scores (scores.parquet), as a table of pyarrow: `.to_pandas()`."""
        from konsil.evaluation.scores import FILE, read_scores

        return read_scores(self.folder / FILE)

    def _rows(self, name: str) -> list[dict[str, Any]]:
        from konsil.evaluation.results import read_results

        return [row._asdict() for row in read_results(self.folder / name)]

    @property
    def figures(self) -> dict[str, Path]:
        """The pictures, by name: `curves`, `sites`, `predictions` and more."""
        return {path.stem: path for path in sorted((self.folder / "figures").glob("*.png"))}

    def super_model(
        self, method: str | None = None, seed: int | None = None, device: str = "cpu"
    ) -> SuperModel:
        """The super model of a method (its label) and seed; neither is needed if there is one."""
        wanted = f"{method or '*'}/seed{'*' if seed is None else seed}/supermodel"
        return load(_only_super_model(self.folder, wanted), device)

    def __repr__(self) -> str:
        methods = ", ".join(method.title for method in self.plan.experiment.methods)
        return f"<konsil run {self.folder}: {methods} at {len(self.plan.sites)} sites>"

    def __str__(self) -> str:
        return self._shown().export_text()

    def _repr_html_(self) -> str:
        page = "<pre style='white-space: pre; line-height: 1.2; overflow-x: auto'>{code}</pre>"
        return self._shown().export_html(inline_styles=True, code_format=page)

    def _shown(self) -> Console:
        from konsil.report.show import show_run

        console = Console(
            record=True, file=io.StringIO(), width=WIDTH, force_jupyter=False, force_terminal=True
        )
        show_run(console, self.folder)
        return console


def load(folder: str | Path, device: str = "cpu") -> SuperModel:
    """The super model of its folder, or of a run's folder that holds exactly one."""
    from konsil.supermodel import SuperModel

    return SuperModel.load(find_super_model(folder), device)


def find_super_model(folder: str | Path) -> Path:
    """A super model's own folder, or the only one in a run's."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder")
    if (folder / "model.json").exists():
        return folder
    kind = "supermodel" if list(folder.glob("*/seed*/supermodel")) else "model"
    return _only_super_model(folder, f"*/seed*/{kind}")


def _only_super_model(folder: Path, wanted: str) -> Path:
    found = sorted(path.parent for path in folder.glob(f"{wanted}/model.json"))
    if not found:
        raise RunError(
            f"{folder}: no super model in {wanted}; every job leaves one when it is done"
        )
    if len(found) > 1:
        names = ", ".join(str(path) for path in found)
        raise RunError(f"{folder}: several super models; load one of {names}")
    return found[0]


def open_federation(
    source: str | Path | Mapping[str, Any] | FederationConfig,
    task: Mapping[str, Any] | TaskConfig | None = None,
    *,
    quiet: bool = False,
) -> Federation:
    """Find, check, split and decode the images of a federation.

    `source`: a folder of sites, a CSV, a federation file (or the folder with it), or the keys
    that an experiment has under `federation`; `task`: those under `task`.
    """
    given = _place(Path(source)) if isinstance(source, str | Path) else source
    config = checked(FederationConfig, given, "federation")
    return _opened(config, checked(TaskConfig, task or {}, "task"), Console(quiet=quiet))


def _place(path: Path) -> dict[str, Any]:
    """Which of an experiment's keys a path belongs to."""
    if path.suffix == ".csv":
        return {"csv": path}
    is_file = path.suffix in (".yaml", ".yml") or (path / "federation.yaml").exists()
    return {"file" if is_file else "folder": path}


def _opened(config: FederationConfig, task: TaskConfig, console: Console) -> Federation:
    from konsil import data

    with _status(console, "reading the federation") as update:
        return data.open_federation(
            config, task, lambda site, done, all_: update(f"decoding {site}: {done}/{all_}")
        )


def _refuse_methods_of_this_session(experiment: Experiment, resume: bool) -> None:
    """A method that only this process knows can neither be sent to others nor be resumed.

    It comes neither from a package that is searched nor from a plugin file.
    """
    from konsil.ingredients.method import METHODS, method_class
    from konsil.registry import PREFIX

    installed = {entry.module for entry in entry_points(group=METHODS.package)}
    packages = {"konsil", *(module.partition(".")[0] for module in installed)}
    cure = "put it into a file and give it with plugins=[...] (--plugin FILE.py)"
    for config in experiment.methods:
        home = method_class(config).__module__
        if home.partition(".")[0] in packages or home.startswith(PREFIX):
            continue
        defined = f"methods.{config.title}: defined in this session,"
        if experiment.engine.name != "inprocess":
            raise ConfigError(
                f"{defined} where worker processes do not find it; {cure}, or set engine.name to "
                "inprocess"
            )
        if resume:
            raise ConfigError(
                f"{defined} so that nobody can tell whether it is still what the run began with; "
                f"{cure}"
            )


@contextmanager
def _status(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal; nothing in a notebook or a file."""
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status(text) as status:
        yield status.update

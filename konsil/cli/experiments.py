"""Train, compare, look at results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from konsil.cli.terminal import INTERRUPTED, console, problems, say
from konsil.errors import RunError

if TYPE_CHECKING:
    from konsil.config import Experiment

RECIPES = Path(__file__).parents[1] / "recipes"

FileArgument = Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The experiment file.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with a run that stopped.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Folder of the run. Default: runs/<name>.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the file, e.g. rounds=10."),
]
OverlayOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--overlay",
        metavar="OVER.yaml",
        help="A file whose keys are laid over those of the experiment, before --set.",
    ),
]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="Methods, networks, tasks of your own; as often as wanted.",
    ),
]
SplitSeedOption = Annotated[
    list[int] | None,
    typer.Option(
        "--split-seed",
        help="Draw the splits anew with it, in a run of its own below the folder; as often as "
        "wanted.",
    ),
]

TrackOption = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help="tensorboard, mlflow; as often as wanted."),
]


def run(
    experiment: FileArgument,
    set_: SetOption = None,
    plugin: PluginOption = None,
    out: OutOption = None,
    resume: ResumeOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the plan, train nothing.")
    ] = False,
    split_seed: SplitSeedOption = None,
    track: TrackOption = None,
    overlay: OverlayOption = None,
) -> None:
    """Train and compare the methods of an experiment file."""
    from konsil import api
    from konsil.config import read_experiment
    from konsil.tracking.tracker import check_names

    checked = read_experiment(experiment, set_ or [], plugin or [], overlay or [])
    check_names(track or [])
    folder = api.run_folder(checked, out)
    if split_seed:
        _run_draws(checked, split_seed, folder, resume, dry_run, track or [])
        return
    plan, federation = api.prepare(checked, resume, console, folder)
    if dry_run:
        return
    with resumable(folder):
        api.train(plan, federation, folder, resume, console, track=track or [])
    from konsil.report.show import show_run

    show_run(console, folder)


def _run_draws(
    experiment: Experiment,
    seeds: list[int],
    folder: Path,
    resume: bool,
    dry_run: bool,
    track: list[str],
) -> None:
    from konsil.redrawn import prepare_draws, train_draws

    draws = prepare_draws(experiment, seeds, folder, resume, console)
    if dry_run:
        return
    with resumable(folder):
        train_draws(draws, console, track)
    say(f"all draws: konsil compare {folder}")


@contextmanager
def resumable(folder: Path, how: str = "the same command with --resume") -> Iterator[None]:
    """Ctrl-C says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        note = f"stopped; what is done is in {folder}: {how} goes on"
        problems.print(Text(note), soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


def tune(
    experiment: FileArgument,
    lr: Annotated[
        list[float] | None,
        typer.Option("--lr", help="A learning rate to try; as often as wanted."),
    ] = None,
    local_epochs: Annotated[
        list[int] | None,
        typer.Option(
            "--local-epochs",
            help="A number of local epochs to try; with more of them there are fewer rounds.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Default: the first seed of the file.")
    ] = None,
    set_: SetOption = None,
    overlay: OverlayOption = None,
    plugin: PluginOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the search. Default: runs/<name>-tune.")
    ] = None,
    resume: ResumeOption = False,
) -> None:
    """Choose every method's learning rate and local epochs on validation images."""
    from konsil.config import read_experiment

    checked = read_experiment(experiment, set_ or [], plugin or [], overlay or [])
    with console.status("starting"):
        from konsil import tuning

    search = tuning.Search.of(checked, lr or [], local_epochs or [], seed)
    folder = out or Path("runs") / f"{checked.name}-tune"
    with resumable(folder):
        tuning.tune(search, folder, resume, console)


def pretrain(
    experiment: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The experiment file.")],
    out: Annotated[Path, typer.Option("--out", help="The file to write: NAME.safetensors.")],
    set_: SetOption = None,
    overlay: OverlayOption = None,
    plugin: PluginOption = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds over all images. Default: the file's.", min=1)
    ] = None,
    synthetic: Annotated[
        str | None, typer.Option(metavar="NAME", help="retina, prostate or pathology.")
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="Synthetic images a site. Default: as built in.", min=1)
    ] = None,
) -> None:
    """Train the network of an experiment on synthetic images, for network.initial."""
    from konsil import api
    from konsil.config import read_experiment

    checked = read_experiment(experiment, set_ or [], plugin or [], overlay or [])
    score = api.pretrain(checked, out, console, synthetic=synthetic, images=images, rounds=rounds)
    say(f"{out}: {score['metric']} {score['value']:.3f} on {score['n']} validation images")
    say(f"to begin with these weights, write into {experiment}:\n\nnetwork:\n  initial: {out}")


def demo(out: OutOption = None, set_: SetOption = None) -> None:
    """Train and compare five methods on six synthetic eye hospitals, in minutes."""
    folder = out or Path("runs/demo")
    run(RECIPES / "demo.yaml", set_, out=folder, resume=(folder / "plan.yaml").exists())
    from konsil.config import read_experiment
    from konsil.report.examples import write_examples
    from konsil.report.page import write_page
    from konsil.report.runs import open_runs

    write_page(open_runs([folder]), folder / "report.html")
    examples = folder / "examples"
    write_examples(read_experiment(RECIPES / "demo.yaml", set_ or [], []), examples)
    command = sys.argv[0] if Path(sys.argv[0]).name == "konsil" else "konsil"
    say(f"\ndoes joining help? The page that answers it: {folder / 'report.html'}")
    say("\nask its super model about images that no hospital trained on, or in a browser:")
    say(f"  {command} predict {folder} {examples} -o {folder / 'answers'}")
    say(f"  {command} serve {folder}")


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only this one, in full.")
    ] = None,
    plugin: PluginOption = None,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """List the methods: paper, what travels, local work, settings."""
    from konsil.report.methods import print_methods

    if plugin:
        with console.status("starting"):
            from konsil.registry import load_plugins

            load_plugins(plugin)
    print_methods(console, name, json, plugged=bool(plugin))


def show(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a run; or a site's, or an audit trail.")
    ],
    split: Annotated[str, typer.Option(help="Which images: test or val.")] = "test",
    checkpoint: Annotated[str, typer.Option(help="Which checkpoints: best or last.")] = "best",
    audit: Annotated[
        bool, typer.Option("--audit", help="Who sent what, of a deployed run.")
    ] = False,
) -> None:
    """Print the results of a run, finished or not; or who sent what."""
    from konsil.report.audit import find_trail, show_trail
    from konsil.report.show import show_run

    trail = find_trail(folder)
    if trail is not None and (audit or not (folder / "plan.yaml").exists()):
        show_trail(console, trail)
    elif audit:
        raise RunError(f"{folder}: no audit trail in it; runs between hospitals have one")
    else:
        show_run(console, folder, split, checkpoint)

"""Train, compare, look at results."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from konsil.cli.terminal import INTERRUPTED, console, problems
from konsil.errors import RunError

RECIPES = Path(__file__).parents[1] / "recipes"

OutOption = Annotated[
    Path | None, typer.Option("--out", help="Folder of the run. Default: runs/<name>.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the file, e.g. rounds=10."),
]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="Methods, networks, tasks of your own; as often as wanted.",
    ),
]


def run(
    experiment: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The experiment file.")],
    set_: SetOption = None,
    plugin: PluginOption = None,
    out: OutOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that stopped.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the plan, train nothing.")
    ] = False,
) -> None:
    """Train and compare the methods of an experiment file."""
    from konsil import api
    from konsil.config import read_experiment

    checked = read_experiment(experiment, set_ or [], plugin or [])
    folder = api.run_folder(checked, out)
    plan, federation = api.prepare(checked, resume, console)
    if dry_run:
        return
    try:
        api.train(plan, federation, folder, resume, console)
    except KeyboardInterrupt:
        note = f"stopped; what is done is in {folder}: the same command with --resume goes on"
        problems.print(Text(note), soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    from konsil.report.show import show_run

    show_run(console, folder)


def pretrain(
    experiment: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The experiment file.")],
    out: Annotated[Path, typer.Option("--out", help="The file to write: NAME.safetensors.")],
    set_: SetOption = None,
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

    checked = read_experiment(experiment, set_ or [], plugin or [])
    score = api.pretrain(checked, out, console, synthetic=synthetic, images=images, rounds=rounds)
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    say(f"{out}: {score['metric']} {score['value']:.3f} on {score['n']} validation images")
    say(f"to begin with these weights, write into {experiment}:\n\nnetwork:\n  initial: {out}")


def demo(out: OutOption = None, set_: SetOption = None) -> None:
    """Train and compare five methods on six synthetic eye hospitals, in minutes."""
    folder = out or Path("runs/demo")
    run(RECIPES / "demo.yaml", set_, out=folder, resume=(folder / "plan.yaml").exists())


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only this one, in full.")
    ] = None,
    plugin: PluginOption = None,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """List the methods: paper, what travels, local work, settings."""
    with console.status("starting"):
        from konsil.registry import load_plugins
        from konsil.report.methods import print_methods

        load_plugins(plugin or [])
    print_methods(console, name, json)


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

"""The commands, nothing else. Heavy things are imported inside them: --help must be quick."""

import sys
from typing import Annotated

import typer
from rich.text import Text

from konsil.cli import (
    analyze,
    compare,
    data,
    deploy,
    experiments,
    export,
    join,
    predict,
    serve,
    sweep,
    watch,
)
from konsil.cli.terminal import INTERRUPTED, console, problems
from konsil.errors import KonsilError
from konsil.version import __version__

app = typer.Typer(
    help="Personalised federated learning for medical imaging.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(experiments.run)
app.command()(compare.compare)
app.command()(compare.unseen)
app.command()(compare.personalise)
app.command()(compare.report)
app.command()(experiments.tune)
app.command()(sweep.sweep)
app.command()(experiments.pretrain)
app.command()(experiments.demo)
app.command()(predict.predict)
app.command()(predict.evaluate)
app.command()(join.join)
app.command()(export.export)
app.command()(serve.serve)
app.command()(watch.watch)
app.command()(watch.track)
app.command()(experiments.methods)
app.command()(experiments.show)
app.add_typer(analyze.app, name="analyze")
app.add_typer(data.app, name="data")
app.add_typer(deploy.deploy_app, name="deploy")
app.add_typer(deploy.server_app, name="server")
app.add_typer(deploy.site_app, name="site")


@app.callback(invoke_without_command=True)
def version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Personalised federated learning for medical imaging."""
    if version:
        console.print(f"konsil {__version__}", highlight=False)
        raise typer.Exit


def main() -> None:
    """Run a command; errors meant for people are shown without a traceback."""
    try:
        app(prog_name="konsil")  # also as python -m konsil
    except KonsilError as error:
        # as it is: brackets in a message are no markup, and a path is not broken over lines
        problems.print(Text.assemble(("error:", "red"), f" {error}"), soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)

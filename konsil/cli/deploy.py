"""Between hospitals: plan, provision, start, submit, watch, fetch."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text
from typer import Argument, Option
from typer.core import TyperGroup

from konsil.cli.experiments import OverlayOption, SetOption
from konsil.cli.terminal import INTERRUPTED, console, problems, say
from konsil.errors import ConfigError, RunError

EXTRA = ("nvflare", "cryptography", "psutil")


class NeedsFlare(TyperGroup):
    """Commands that import FLARE, which is an extra: say so where it is missing."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in EXTRA:
                raise
            raise ConfigError(
                "this needs NVIDIA FLARE, which is not installed: pip install 'konsil[flare]'"
            ) from None


def _commands(help: str) -> typer.Typer:
    return typer.Typer(
        help=help, cls=NeedsFlare, no_args_is_help=True, pretty_exceptions_enable=False
    )


deploy_app = _commands("Run an experiment between hospitals, on NVIDIA FLARE.")
server_app = _commands("The server of a federation.")
site_app = _commands("One hospital of a federation.")

KIT = "KONSIL_KIT"
KitArgument = Annotated[Path, Argument(metavar="KIT", help="The start-up kit's folder.")]
AdminKit = Annotated[Path | None, Option("--kit", envvar=KIT, help="The admin's start-up kit.")]
RunArgument = Annotated[str | None, Argument(metavar="RUN", help="The run. Default: the newest.")]
DeploymentArgument = Annotated[Path, Argument(metavar="FILE.yaml", help="The deployment file.")]
ExperimentArgument = Annotated[Path, Argument(metavar="FILE.yaml", help="The experiment file.")]
Data = Annotated[Path, Option(help="The site's federation.yaml, or the folder that holds it.")]
PolicyOption = Annotated[
    Path | None, Option(help="What this site agrees to. Default: see the docs.")
]
State = Annotated[Path | None, Option(help="Private state. Default: konsil-<site>, here.")]


# --- who takes part -------------------------------------------------------------------------------


@deploy_app.command()
def plan(
    file: DeploymentArgument,
    server: Annotated[str | None, Option(help="The server's address, for the sites.")] = None,
    port: Annotated[int, Option(help="The one port that must be open, there only.")] = 8002,
    site: Annotated[list[str] | None, Option(help="A site; as often as wanted.")] = None,
    admin: Annotated[str, Option(help="E-mail of who submits.")] = "admin@konsil.org",
    name: Annotated[str, Option(help="Of the federation.")] = "konsil",
    valid_days: Annotated[int, Option(help="Of the certificates.")] = 365,
) -> None:
    """Write a deployment file with --server and --site; without them, check and show one."""
    import yaml

    from konsil.deploy.deployment import check_deployment, read_deployment
    from konsil.files import write_text

    if server is not None or site:
        facts: dict[str, Any] = {"name": name, "server": server or "localhost", "port": port}
        facts |= {"sites": site or [], "admin": admin, "valid_days": valid_days}
        check_deployment(facts, "the options")
        if file.exists():
            raise ConfigError(f"{file}: is there already; edit it, or take it away")
        write_text(file, yaml.safe_dump(facts, sort_keys=False))
    deployment = read_deployment(file)
    say(f"{deployment.name}: server {deployment.server}:{deployment.port}")
    say(f"sites: {', '.join(deployment.sites)}")
    say(f"then: konsil deploy provision {file}")


@deploy_app.command("provision")
def provision_(
    file: DeploymentArgument,
    out: Annotated[Path, Option(help="Folder of the kits.")] = Path("kits"),
    renew: Annotated[list[str] | None, Option(help="A party that gets a new certificate.")] = None,
) -> None:
    """Make one start-up kit a party. Again: adds new sites, changes nobody else's."""
    from konsil.deploy.deployment import read_deployment
    from konsil.deploy.provision import provision

    for party, folder in provision(read_deployment(file), out, renew or []).items():
        say(f"{party}: {folder}")
    say(f"Send each kit to its party over a safe channel. Keep {out / 'authority'} to yourself.")


# --- on each machine ------------------------------------------------------------------------------


@server_app.command("start")
def start_server_(
    kit: KitArgument,
    folder: Annotated[Path, Option(help="Where runs are kept.")] = Path("konsil-server"),
    plugin: Annotated[
        list[Path] | None,
        Option(
            metavar="FILE",
            help="Methods, networks, tasks of your own (.py), what networks begin with "
            "(.safetensors); as often as wanted.",
        ),
    ] = None,
) -> None:
    """Run the server until Ctrl-C. Killed and started again, it goes on where it was."""
    from konsil.deploy.parties import start_server

    start_server(kit, folder, plugin or [], say)


@site_app.command("start")
def start_site_(
    kit: KitArgument,
    data: Data,
    policy: PolicyOption = None,
    state: State = None,
    device: Annotated[
        str, Option(help="cpu, cuda, cuda:1 ... Default: what the experiment says.")
    ] = "",
) -> None:
    """Run this site until Ctrl-C. It connects to the server; nothing connects to it."""
    from konsil.deploy.deployment import SiteSettings
    from konsil.deploy.kit import Kit
    from konsil.deploy.parties import start_site
    from konsil.deploy.policy import read_policy
    from konsil.deploy.preflight import check_site

    site = Kit.read(kit, "site").party
    read_policy(policy)  # a mistake in it is found now
    check_site(data, site)
    folder = (state or Path(f"konsil-{site}")).absolute()
    own = {"source": {"file": str(data.absolute())}, "policy": policy and policy.absolute()}
    settings = SiteSettings(site=site, state=folder, device=device, **own)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    settings.write(folder / "settings.json")
    start_site(kit, folder / "settings.json", say)


@site_app.command("preflight")
def preflight_(
    kit: KitArgument, data: Data, policy: PolicyOption = None, state: State = None
) -> None:
    """Check data, disk, memory, clock, certificate and server before anything starts."""
    from konsil.deploy.kit import Kit
    from konsil.deploy.preflight import preflight

    known = Kit.read(kit, "site")
    folder = state or Path(f"konsil-{known.party}")
    marks, errors = {"ok": "green", "warning": "yellow", "error": "red"}, 0
    for what, verdict, text in preflight(known, data, policy, folder):
        line = Text.assemble((f"{verdict:8}", marks[verdict]), f"{what}: {text}")
        console.print(line, soft_wrap=True)
        errors += verdict == "error"
    if errors:
        raise typer.Exit(1)


# --- runs -----------------------------------------------------------------------------------------


@deploy_app.command()
def submit(
    experiment: ExperimentArgument,
    kit: AdminKit = None,
    set_: SetOption = None,
    site: Annotated[
        list[str] | None, Option(help="Who takes part, in the experiment's order.")
    ] = None,
    run: Annotated[str, Option(help="Go on with a run that stopped or failed.")] = "",
    overlay: OverlayOption = None,
) -> None:
    """Have an experiment run; prints the run's name."""
    from konsil.config import read_experiment

    checked = read_experiment(experiment, set_ or [], overlays=overlay or [])
    roster = site or checked.federation.sites
    if not roster:
        raise ConfigError(
            "who takes part? Name the sites with --site, or in the experiment's federation.sites"
        )
    with admin(kit) as connection:
        from konsil.deploy.agreement import without_places

        name = connection.submit(without_places(checked), roster, run)
    say(name)


@deploy_app.command()
def status(
    run: RunArgument = None,
    kit: AdminKit = None,
    json_: Annotated[bool, Option("--json", help="For machines.")] = False,
) -> None:
    """Show how a run stands; without RUN, all of them."""
    with admin(kit) as connection:
        names = [run] if run else connection.runs()
        found = [connection.status(name, events=bool(run)) for name in names]
    if json_:
        print(json.dumps([vars(one) for one in found], indent=1))
        return
    if run:
        for key, value in _facts(found[0]).items():
            if value:
                say(f"{key:10}{value}")
        return
    table = Table(Column("run", no_wrap=True), "state", "session", "sites", "reason")
    for one in found:
        table.add_row(one.run, one.state, str(one.session), str(len(one.roster)), one.reason)
    console.print(table)


def _facts(status: Any) -> dict[str, str]:
    """How one run stands, in words."""
    last = status.events[-1] if status.events else {"event": ""}
    where = f" {last['round']}" if "round" in last else ""
    return {
        "run": status.run,
        "state": status.state,
        "reason": status.reason,
        "session": str(status.session),
        "submitted": status.submitted[:19],
        "sites": ", ".join(status.roster),
        "last": f"{last.get('job', '')} {last['event'].replace('_', ' ')}{where}".strip(),
    }


@deploy_app.command()
def logs(run: RunArgument = None, kit: AdminKit = None) -> None:
    """Print what the server logged of a run."""
    with admin(kit) as connection:
        say(connection.logs(run or newest(connection)))


@deploy_app.command()
def fetch(
    run: RunArgument = None,
    kit: AdminKit = None,
    out: Annotated[Path | None, Option(help="Folder. Default: runs/<run>.")] = None,
) -> None:
    """Copy a finished run from the server: results, pictures, models."""
    with admin(kit) as connection:
        name = run or newest(connection)
        folder = out or Path("runs") / name
        connection.fetch(name, folder)
    say(f"{folder}: konsil show {folder}")


@deploy_app.command()
def stop(run: RunArgument = None, kit: AdminKit = None) -> None:
    """End a run. Submitted again with --run, it goes on where it was."""
    with admin(kit) as connection:
        name = run or newest(connection)
        connection.stop(name)
    say(f"{name}: stopped; konsil deploy submit FILE.yaml --run {name} goes on with it")


@deploy_app.command()
def local(
    experiment: ExperimentArgument,
    out: Annotated[Path, Option(help="Folder of the run.")],
    set_: SetOption = None,
    overlay: OverlayOption = None,
) -> None:
    """All of it on this machine: a real server, a real process a site, mutual TLS."""
    from konsil.config import read_experiment

    checked = read_experiment(experiment, set_ or [], overlays=overlay or [])
    with console.status("starting"):
        from konsil.deploy.local import deploy_local
        from konsil.observers.progress import ProgressBar
        from konsil.report.show import show_run
    bar = ProgressBar(console)
    bar.start()
    try:
        deploy_local(checked, out, lambda text: None if "answered" in text else bar.say(text), bar)
    except KeyboardInterrupt:
        bar.close()
        problems.print(Text(f"stopped; the same command goes on with {out}"), soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        bar.close()
    show_run(console, out)


# --- helpers --------------------------------------------------------------------------------------


@contextmanager
def admin(kit: Path | None) -> Iterator[Any]:
    """A connection to the server with an admin's kit."""
    if kit is None:
        raise ConfigError(f"--kit: give the admin's start-up kit, or set {KIT}")
    with problems.status("connecting"):
        from konsil.deploy.admin import connect
    with connect(kit) as connection:
        yield connection


def newest(connection: Any) -> str:
    """The run that was submitted last."""
    runs: list[str] = connection.runs()
    if not runs:
        raise RunError("the server has no run yet; konsil deploy submit FILE.yaml")
    return runs[-1]

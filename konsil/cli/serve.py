"""Serve a super model."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from konsil.cli.experiments import PluginOption
from konsil.cli.predict import DeviceOption, ModelArgument
from konsil.cli.terminal import console, say
from konsil.errors import ConfigError

TOKEN = "KONSIL_TOKEN"  # the environment variable


def serve(
    model: ModelArgument,
    host: Annotated[
        str, typer.Option(help="Where to listen; any but this machine itself needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8008,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", help=f"Holds what clients must know; or ${TOKEN}; or one is made."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that answer. Default: one a core, up to 4.")
    ] = None,
    upload: Annotated[int, typer.Option(min=1, help="MB of the largest question.")] = 200,
    seconds: Annotated[float, typer.Option(min=0.1, help="For one answer, at most.")] = 60.0,
    memory: Annotated[
        int, typer.Option(min=128, help="MB that opening and answering one question may take.")
    ] = 4096,
    waiting: Annotated[
        int, typer.Option(min=0, help="Questions that may wait; more are sent away.")
    ] = 16,
    certificate: Annotated[
        Path | None, typer.Option(help="For https: a certificate (PEM), with --key.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The key of --certificate.")] = None,
    device: DeviceOption = "cpu",
    plugin: PluginOption = None,
) -> None:
    """Serve a super model: a page to drop images on, a REST API, MONAI Label for 3D Slicer.

    Nothing that is sent is kept. Ctrl-C ends it.
    """
    if (certificate is None) != (key is None):
        raise ConfigError("--certificate and --key belong together")
    from konsil import api
    from konsil.serve.limits import Limits
    from konsil.serve.pool import Setup
    from konsil.serve.server import Address, serve

    processes = workers or min(4, os.cpu_count() or 1)
    limits = Limits(upload, seconds=seconds, memory_mb=memory, waiting=waiting)
    threads = max(1, (os.cpu_count() or 1) // processes)
    folder, name = api.find_super_model(model), model.resolve().name
    setup = Setup(folder, name, device, tuple(plugin or ()), processes, threads, limits)
    address = Address(host, port, token_of(token_file, host), certificate, key)
    if not address.loopback and certificate is None:
        say("note: the connection is not encrypted; --certificate and --key make it https")
    with console.status("loading") as status:

        def listening(url: str) -> None:
            status.stop()
            say(f"serving {folder} on {url} (Ctrl-C ends)")

        serve(setup, address, listening)


def token_of(file: Path | None, host: str) -> str:
    """What clients must know: of the file, of the environment, or new where others can come."""
    from konsil.serve.guard import is_loopback

    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {file}: cannot be read ({error})") from None
        if not token:
            raise ConfigError(f"--token-file {file}: empty")
        return token
    return os.environ.get(TOKEN, "") or ("" if is_loopback(host) else secrets.token_urlsafe(24))

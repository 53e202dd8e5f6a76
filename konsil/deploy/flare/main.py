"""How FLARE's processes start: its own server or client, and those of sessions below it.

python -m konsil.deploy.flare.main server|client  FLARE's arguments
"""

import runpy
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobProcessArgs
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.utils.job_launcher_utils import get_client_job_args, get_server_job_args

from konsil.deploy.flare.site import allow_only_sessions
from konsil.deploy.processes import end_with_parent

MODULES = {
    "server": "nvflare.private.fed.app.server.server_train",
    "client": "nvflare.private.fed.app.client.client_train",
}


class ServerLauncher(ServerProcessJobLauncher):
    """Starts a session at the server, also by paths that have spaces."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:
        return command(get_server_job_args(), fl_ctx)


class SiteLauncher(ClientProcessJobLauncher):
    """Starts a session at a site, also by paths that have spaces."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:
        return command(get_client_job_args(), fl_ctx)


def command(names: Sequence[str], fl_ctx: FLContext) -> str:
    """FLARE joins and splits its arguments: between the two, quotes keep them whole."""
    given = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
    words = [sys.executable]
    for name in names:
        if given.get(name):
            option, value = given[name]
            many = name == JobProcessArgs.OPTIONS  # the one argument that is a list
            words += [option, *(value.split() if many else [value])]
    return shlex.join(words)


if __name__ == "__main__":
    end_with_parent()
    kind = sys.argv.pop(1)
    if kind == "client":
        allow_only_sessions()
    runpy.run_module(MODULES[kind], run_name="__main__")  # become FLARE

"""How FLARE starts the process of a session: as it always does, but by paths that have spaces."""

from __future__ import annotations

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


class ServerLauncher(ServerProcessJobLauncher):
    """At the server."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:
        """The command line of a session's process."""
        return command(get_server_job_args(), fl_ctx)


class SiteLauncher(ClientProcessJobLauncher):
    """At a site."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:
        """The command line of a session's process."""
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

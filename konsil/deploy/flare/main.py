"""FLARE's own server or client, in a process that ends with the one that started it.

python -m konsil.deploy.flare.main server|client  FLARE's arguments
"""

from __future__ import annotations

import runpy
import sys

from konsil.deploy.processes import end_with_parent

MODULES = {
    "server": "nvflare.private.fed.app.server.server_train",
    "client": "nvflare.private.fed.app.client.client_train",
}


def main() -> None:
    """Become FLARE."""
    end_with_parent()
    kind = sys.argv.pop(1)
    if kind == "client":
        from konsil.deploy.flare.site import allow_only_sessions

        allow_only_sessions()
    runpy.run_module(MODULES[kind], run_name="__main__")


if __name__ == "__main__":
    main()

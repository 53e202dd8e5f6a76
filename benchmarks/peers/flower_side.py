"""The work in Flower's simulation: two Ray workers of one processor each."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from flwr.simulation import run_simulation

from benchmarks.peers import work
from benchmarks.peers.flower_app import client, server_of


def main() -> None:
    """All rounds; the server's app writes the global model."""
    order = work.order()
    sessions = Path(tempfile.gettempdir()) / "ray"
    others = sessions.exists()
    run_simulation(
        server_app=server_of(order),
        client_app=client,
        num_supernodes=work.sites_of(order.data),
        backend_config={
            "init_args": {"num_cpus": order.workers},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    if not others:  # Ray leaves its logs; another folder's path would be too long for its sockets
        shutil.rmtree(sessions, ignore_errors=True)


if __name__ == "__main__":
    main()

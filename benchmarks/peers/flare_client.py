"""A site in NVIDIA FLARE: the client API's loop, a script that FLARE copies and runs."""

from __future__ import annotations

import argparse
from pathlib import Path

import nvflare.client as flare

from benchmarks.peers import work


def main() -> None:
    """Receive, train, send, until the job is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args().data
    flare.init()
    site = int(flare.get_site_name().rpartition("-")[2]) - 1  # site-1 is the first
    images, net = work.images_of(data, site), work.Network()
    while flare.is_running():
        received = flare.receive()
        net.load_state_dict(received.params)
        work.train(net, images, site, received.current_round)
        # by this number FLARE weights its mean
        meta = {"NUM_STEPS_CURRENT_ROUND": len(images)}
        flare.send(flare.FLModel(params=net.state_dict(), meta=meta))


if __name__ == "__main__":
    main()

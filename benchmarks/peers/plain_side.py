"""FedAvg as a plain loop in one process: what one writes in an afternoon."""

from __future__ import annotations

import torch

from benchmarks.peers import work


def main() -> None:
    """All rounds, then the global model into its file."""
    order = work.order()
    sites = [work.images_of(order.data, site) for site in range(work.sites_of(order.data))]
    total = sum(map(len, sites))
    net = work.Network(str(order.start))
    state = {name: value.clone() for name, value in net.state_dict().items()}
    for round in range(order.rounds):
        mean = {name: torch.zeros_like(value) for name, value in state.items()}
        for site, images in enumerate(sites):
            net.load_state_dict(state)
            work.train(net, images, site, round)
            for name, value in net.state_dict().items():
                mean[name] += len(images) / total * value
        state = mean
    net.load_state_dict(state)
    work.save(net, order.out)


if __name__ == "__main__":
    main()

"""Flower's two apps for the work, written as in its PyTorch quickstart.

A module of its own, so that Ray's workers import it instead of getting it with every message.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.peers import work

client = ClientApp()


@lru_cache(maxsize=1)
def network() -> work.Network:
    """One a process; the quickstart makes one a message, which costs more."""
    return work.Network()


@client.train()
def train(message: Message, context: Context) -> Message:
    """One round at one site."""
    config = message.content["config"]
    site = int(context.node_config["partition-id"])
    images = work.images_of(Path(str(config["data"])), site)
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    work.train(net, images, site, int(config["server-round"]))
    content = RecordDict(
        {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": len(images)}),
        }
    )
    return Message(content=content, reply_to=message)


def server_of(order: work.Order) -> ServerApp:
    """A server for so many rounds; it writes the last model."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        net = work.Network(str(order.start))
        sites = work.sites_of(order.data)
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(net.state_dict()),
            train_config=ConfigRecord({"data": str(order.data)}),
            num_rounds=order.rounds,
        )
        net.load_state_dict(result.arrays.to_torch_state_dict())
        work.save(net, order.out)

    return server

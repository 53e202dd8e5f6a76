"""FedAvg without Konsil: what one writes in an afternoon, and what Konsil is measured against."""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor, nn

from konsil.data import TrainingData, training_data
from konsil.evaluation import batches
from konsil.federation.plan import Plan
from konsil.networks import build_network
from konsil.randomness import generator
from konsil.weights import Weights

State = dict[str, Tensor]


class PlainFedAvg:
    """An ordinary module and `torch.optim.Adam` a site; the mean of state dicts in float32.

    Nothing is written, nothing is checked, everything stays in memory. Images, their order,
    loss and metric are Konsil's, so that both sides take the same optimiser steps.
    """

    def __init__(self, plan: Plan) -> None:
        self.context = plan.context(plan.jobs[0], plan.sites)
        self.threads = plan.experiment.compute.threads
        self.round = 0
        start = self.context.initial(self.context.network)
        self.state: State = {e.name: start[e.name] for e in start.layout.entries}
        self.data: dict[str, TrainingData] = {}
        self.nets: dict[str, nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        for site in plan.sites:
            net = build_network(self.context.network)
            self.data[site] = training_data(plan.data_folder, (site,))
            self.nets[site] = net
            self.optimizers[site] = torch.optim.Adam(net.parameters(), lr=self.context.training.lr)
        self.scores: dict[str, float] = {}

    def __call__(self) -> float:
        """The next round; its seconds."""
        torch.set_num_threads(self.threads)
        began = perf_counter()
        self.round += 1
        for site, net in self.nets.items():
            net.load_state_dict(self.state)
            self.scores[site] = self._validate(site)
            self._train(site)
        self.state = self._mean()
        return perf_counter() - began

    @torch.no_grad()
    def _validate(self, site: str) -> float:
        net, task = self.nets[site].eval(), self.context.task
        images = batches(self.data[site].val, torch.device("cpu"))
        return float(torch.cat([task.columns(net(x), y)["dice"] for x, y in images]).mean())

    def _train(self, site: str) -> None:
        net, optimizer, images = self.nets[site].train(), self.optimizers[site], self.data[site]
        stream = generator(self.context.seed, site, self.round, "order", 0)
        order = torch.randperm(len(images.train), generator=stream)
        for index in order.split(self.context.training.batch_size):
            x, y = images.train.batch(index)
            optimizer.zero_grad()
            self.context.task.loss(net(x), y).backward()
            optimizer.step()

    @torch.no_grad()
    def _mean(self) -> State:
        total = sum(len(data.train) for data in self.data.values())
        mean = {name: torch.zeros_like(value) for name, value in self.state.items()}
        for site, net in self.nets.items():
            share = len(self.data[site].train) / total
            for name, value in net.state_dict().items():
                mean[name] += share * value
        return mean

    @property
    def weights(self) -> Weights:
        """The global model as it is now, in Konsil's order."""
        net = build_network(self.context.network)
        net.load_state_dict(self.state)
        return Weights.of(net)

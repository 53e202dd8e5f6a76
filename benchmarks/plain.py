"""FedAvg without Konsil: what one writes in an afternoon, and what Konsil is measured against.

Run as a command, this file is such a loop in a process of its own, with the allocator that a
process has (`PlainProcess` talks to it).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from monai.losses.dice import DiceLoss
from monai.networks.nets.unet import UNet
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from konsil.data import TrainingData, training_data
from konsil.evaluation import batches
from konsil.federation.plan import Plan
from konsil.networks import NetworkSpec, build_network
from konsil.randomness import generator
from konsil.weights import Weights

State = dict[str, Tensor]


class PlainFedAvg:
    """An ordinary module and `torch.optim.Adam` a site; the mean of state dicts in float32.

    MONAI's network and loss. Nothing is written, nothing is checked, everything stays in memory.
    Images, their order and the metric are Konsil's, so that both sides take the same steps.
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
            net = network_of(self.context.network)
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
            loss(net(x), y).backward()
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


def network_of(spec: NetworkSpec) -> nn.Module:
    """MONAI's U-Net behind the normalisation of images."""
    net = build_network(spec)
    widths = [(spec.width or 16) * 2**level for level in range(5)]
    net.net = UNet(2, spec.in_channels, spec.outputs, widths, (2, 2, 2, 2), num_res_units=2)
    return net


def loss(logits: Tensor, y: Tensor) -> Tensor:
    """Dice and binary cross-entropy."""
    y = y.float()
    dice: Tensor = DiceLoss(sigmoid=True)(logits, y)
    return dice + binary_cross_entropy_with_logits(logits, y)


class PlainProcess:
    """The loop in a process of its own: nothing that Konsil does to its process reaches it."""

    def __init__(self, plan: Plan) -> None:
        command = [sys.executable, "-m", __spec__.name]
        pipes = subprocess.PIPE, subprocess.PIPE
        root = Path(__file__).parent.parent
        self.process = subprocess.Popen(
            command, stdin=pipes[0], stdout=pipes[1], text=True, cwd=root
        )
        self._ask(json.dumps(plan.to_json()))

    def __call__(self) -> float:
        """The next round; its seconds."""
        return float(self._ask("round"))

    @property
    def weights(self) -> Weights:
        """The global model as it is now."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "weights.safetensors"
            self._ask(str(path))
            return Weights.load(path)

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("the plain loop's process has ended; its error stands above")
        return answer

    def close(self) -> None:
        """End the process; it notices that nobody asks any more."""
        self.process.communicate()


def main() -> None:
    """A plan comes in; then `round`, or a path to write the weights to, as often as wanted."""
    loop = PlainFedAvg(Plan.from_json(json.loads(sys.stdin.readline())))
    print("ready", flush=True)
    for line in sys.stdin:
        asked = line.strip()
        if asked == "round":
            print(loop(), flush=True)
        else:
            loop.weights.save(Path(asked))
            print("written", flush=True)


if __name__ == "__main__":
    main()

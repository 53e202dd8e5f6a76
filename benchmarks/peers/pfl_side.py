"""The work in Apple's pfl: SimulatedBackend, FederatedAveraging and PyTorchModel in one process.

As pfl's own image benchmark has it; several processes would save time on the clock alone.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor

from benchmarks.peers import work

NEVER = 10**6  # rounds between two evaluations of users, of which nobody asked for any


class UserNetwork(work.Network):
    """The network with the two methods that pfl asks for."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What a step on one batch makes smaller."""
        self.train()
        return work.loss_of(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """What pfl reports of a user: at the first round alone."""
        self.eval()
        return {"loss": Weighted(float(work.loss_of(self(x), y)) * len(x), len(x))}


class Users:
    """A site's images as pfl's in-memory dataset, in a new order every time it is asked for."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.asked: Counter[int] = Counter()

    def __call__(self, site: int) -> PyTorchTensorDataset:
        images = work.images_of(self.data, site)
        rows = work.shuffled(len(images), site, self.asked[site])
        self.asked[site] += 1
        return PyTorchTensorDataset((images.x[rows], images.y[rows]), user_id=str(site))


def backend_of(data: Path) -> SimulatedBackend:
    """All sites in every round, each counting by its images."""
    sampler = get_user_sampler("minimize_reuse", list(range(work.sites_of(data))))
    users = FederatedDataset(Users(data), sampler)
    weighting = [WeightByDatapoints()]
    return SimulatedBackend(training_data=users, val_data=users, postprocessors=weighting)


def main() -> None:
    """All rounds, then the global model into its file."""
    order = work.order()
    torch.set_num_threads(1)
    net = UserNetwork(str(order.start))
    model = PyTorchModel(
        net,
        local_optimizer_create=torch.optim.Adam,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),  # the mean as it is
    )
    rounds = NNAlgorithmParams(
        central_num_iterations=order.rounds,
        evaluation_frequency=NEVER,
        train_cohort_size=work.sites_of(order.data),
        val_cohort_size=0,
    )
    epoch = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=work.RATE, local_batch_size=work.BATCH
    )
    FederatedAveraging().run(rounds, backend_of(order.data), model, epoch)
    work.save(net, order.out)


if __name__ == "__main__":
    main()

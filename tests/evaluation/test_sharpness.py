"""The top eigenvalue of a Hessian, against the exact one of small networks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from konsil.data import Images
from konsil.evaluation.sharpness import sharpness, top_eigenvalue
from konsil.networks import NetworkSpec, build_network
from konsil.randomness import generator
from konsil.tasks.classification import Classification
from konsil.tasks.segmentation import Segmentation
from konsil.weights import BoundNetwork

TASK = Classification(["healthy", "ill"])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), shift=st.sampled_from([-3.0, 0.0, 3.0]))
def test_a_matrix_with_known_eigenvalues(seed, shift):
    """Also where the most negative one is the largest in magnitude."""
    rng = np.random.default_rng(seed)
    values = np.array([4.0, 1.0, 0.5, -0.5, -1.0]) + shift
    q, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    matrix = torch.tensor(q @ np.diag(values) @ q.T, dtype=torch.float32)
    found = top_eigenvalue(lambda v: matrix @ v, 5, seed)
    assert found.value == pytest.approx(4 + shift, rel=0.02)
    assert found.residual < 0.2


def test_a_flat_loss():
    found = top_eigenvalue(torch.zeros_like, 3)
    assert (found.value, found.residual) == (0, 0)


class Tiny(nn.Module):
    """Fourteen parameters, bent by tanh."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.last = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x.flatten(1))))))


def images_of(n: int) -> Images:
    drawn = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (n, 2, 1, 1), generator=drawn, dtype=torch.uint8)
    return Images(pictures, torch.randint(0, 2, (n,), generator=drawn))


def exact(net: nn.Module, images: Images, index: torch.Tensor) -> float:
    """By the whole Hessian."""
    shapes = [p.shape for p in net.parameters()]
    names = [name for name, _ in net.named_parameters()]
    sizes = [shape.numel() for shape in shapes]
    x, y = images.batch(index)

    def loss(flat: torch.Tensor) -> torch.Tensor:
        own = {
            n: part.view(shape)
            for n, part, shape in zip(names, flat.split(sizes), shapes, strict=True)
        }
        return cross_entropy(torch.func.functional_call(net, own, x), y)

    flat = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    return float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, flat)).max())


@pytest.mark.parametrize("batch_size", [3, 10])
def test_it_is_the_exact_one_of_a_small_network(batch_size):
    torch.manual_seed(1)
    bound, images = BoundNetwork(Tiny()), images_of(10)
    for p in bound.net.parameters():
        p.data.mul_(2)  # off the flat middle of tanh
    found = sharpness(bound, bound.weights(), TASK, images, batch_size, most_batches=1)
    everything = exact(bound.net, images, torch.arange(10))
    # all images together do not depend on how they are parted
    assert found.whole.value == pytest.approx(everything, rel=0.02)
    assert found.whole.residual < 0.2
    if batch_size == 10:
        assert found.batches == pytest.approx(found.whole.value, rel=1e-3)


def test_of_single_batches_it_is_the_median():
    torch.manual_seed(1)
    bound, images = BoundNetwork(Tiny()), images_of(9)
    for p in bound.net.parameters():
        p.data.mul_(2)
    found = sharpness(bound, bound.weights(), TASK, images, batch_size=3, most_batches=3)
    parts = torch.randperm(9, generator=generator(0, "sharpness", 9)).split(3)
    low, middle, high = sorted(exact(bound.net, images, part) for part in parts)
    assert found.batches == pytest.approx(middle, rel=0.02)
    assert abs((low + middle + high) / 3 - middle) > 0.1 * middle  # the mean is another


def test_a_real_network_has_one_too():
    """The U-Net's layers, written out for speed, can be differentiated twice."""
    spec = NetworkSpec("unet", 1, 1, 32, width=2)
    torch.manual_seed(0)
    bound = BoundNetwork(build_network(spec))
    drawn = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (4, 1, 32, 32), generator=drawn, dtype=torch.uint8)
    masks = (pictures > 128).to(torch.uint8)
    before = bound.weights()
    found = sharpness(bound, before, Segmentation(["disc"]), Images(pictures, masks), 2, 2)
    assert found.whole.value > 0
    assert found.batches > 0
    assert bound.weights().equals(before)  # looked at, not trained
    again = sharpness(bound, before, Segmentation(["disc"]), Images(pictures, masks), 2, 2)
    assert again == found

"""f(x) = v (g (x - m) / s + b): one norm layer and one weight, by hand; and real networks."""

import numpy as np
import pytest
import torch
from methods import layered
from torch import nn

from konsil import testing as toy
from konsil.networks import build_network
from konsil.weights import Weights

LR = 0.1
SITES = {
    "a": toy.points([[0], [255]], [1, 0]),
    "b": toy.points([[51], [102], [255]], [1, 0, 1]),
}
START = dict(zip("gbvms", (1.2, 0.1, 0.7, 0.0, 1.0), strict=True))  # m, s: mean and variance


def normed() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1, bias=False))


def step(w: dict[str, float], site: str) -> dict[str, float]:
    """One step on all points of a site; the running statistics move by a tenth."""
    x, y = (a.reshape(-1) for a in layered.arrays(SITES[site]))
    z = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    error = 2 / len(y) * (w["v"] * (w["g"] * z + w["b"]) - y)
    return {
        "g": w["g"] - LR * error @ (w["v"] * z),
        "b": w["b"] - LR * error.sum() * w["v"],
        "v": w["v"] - LR * error @ (w["g"] * z + w["b"]),
        "m": 0.9 * w["m"] + 0.1 * x.mean(),
        "s": 0.9 * w["s"] + 0.1 * x.var(ddof=1),
    }


ENTRIES = {"g": "0.weight", "b": "0.bias", "v": "1.weight", "m": "0.running_mean",
           "s": "0.running_var"}  # fmt: skip


@pytest.mark.parametrize(("method", "shared_names"), [("fedbn", "v"), ("silobn", "gbv")])
def test_three_rounds_by_hand(method, shared_names):
    """In round 2 site b is away: what is its own waits for it."""
    linear = toy.Linear(method, SITES, model=normed, initial=[*START.values(), 0.0])
    shared = linear.method.start()
    together, own = dict(START), {s: dict(START) for s in SITES}
    for number, present in ((1, "ab"), (2, "a"), (3, "ab")):
        shared = linear.round(shared, number, sites=list(present))
        for s in present:
            own[s] = step(own[s] | {k: together[k] for k in shared_names}, s)
        n = {s: len(SITES[s].train) for s in present}
        for k in shared_names:
            together[k] = sum(n[s] * own[s][k] for s in present) / sum(n.values())
        assert {e.name for e in shared["global"].layout.entries} == {
            ENTRIES[k] for k in shared_names
        }
        for name in SITES:
            site = linear.site(name, number + 1, shared)
            linear.method.receive(site, shared)
            answer = linear.method.answers(site, shared)["personal"]
            expected = own[name] | {k: together[k] for k in shared_names}
            for k, entry in ENTRIES.items():
                assert float(answer[entry]) == pytest.approx(expected[k], abs=1e-6), (number, k)
    assert [int(linear.states[s].private["global.own"]["0.num_batches_tracked"]) for s in "ab"] == [
        3,
        2,
    ]


def test_on_norm_layers_that_keep_nothing_it_is_fedavg(make_plan, outlines, tmp_path):
    plan = make_plan(methods=["fedavg", "fedbn"], **outlines)  # MONAI's instance norm
    layered.same_as_fedavg(plan, tmp_path, "fedbn")


def warnings(make_plan, outlines, method: str, norm: str) -> list[str]:
    blocks = outlines | {"network": outlines["network"] | {"norm": norm}}
    plan = make_plan(methods=[method], **blocks)
    return plan.method(plan.jobs[0]).warnings()


@pytest.mark.parametrize(
    ("method", "norm", "warns"),
    [
        *(("fedbn", norm, norm == "instance") for norm in ("instance", "group", "batch")),
        *(("silobn", norm, norm != "batch") for norm in ("instance", "group", "batch")),
    ],
)
def test_it_says_when_it_is_fedavg(make_plan, outlines, method, norm, warns):
    found = warnings(make_plan, outlines, method, norm)
    assert len(found) == warns
    assert all("this is FedAvg; set network.norm: batch" in text for text in found)


def norm_state(net: nn.Module) -> set[str]:
    """Names of all that batch norm layers hold, asked of the modules themselves."""
    return {
        f"{path}.{name}"
        for path, module in net.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for name in module.state_dict()
    }


def test_no_norm_entry_of_a_resnet_leaves_the_site(shades, tmp_path):
    """Shortcuts included, whose norm layers the code published with FedSoup shared."""
    plan = toy.plan_of(
        shades, federation={"folder": str(shades), "image_size": 48}, methods=["fedbn"],
        task={"name": "classification"}, network={"name": "resnet18"}, rounds=1,
    )  # fmt: skip
    server = toy.server(plan, tmp_path)
    initial: Weights = server.method.composition[0].initial
    server._round(1)
    net = build_network(server.method.context.network)
    norms = norm_state(net)
    assert len(norms) == 20 * 5
    assert any("shortcut" in name for name in norms)
    states = [toy.state_of(plan, tmp_path, site) for site in plan.sites]
    sent = [{e.name for e in s.upload["global"].layout.entries} for s in states]
    kept = [{e.name for e in s.private["global.own"].layout.entries} for s in states]
    assert sent == [set(net.state_dict()) - norms] * 2
    assert kept == [norms] * 2
    for name in norms:  # and each site has trained its own
        own = [s.private["global.own"][name] for s in states]
        if "num_batches" not in name:
            assert not torch.equal(own[0], own[1])
        assert not torch.equal(own[0], initial[name])

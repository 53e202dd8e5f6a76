import numpy as np
import pytest
import torch
from methods import layered

from konsil import testing as toy
from konsil.errors import ConfigError

BATCH_NORM = {"name": "small", "norm": "batch"}


@pytest.mark.parametrize("lr", [None, 0.03])
@pytest.mark.parametrize("finetune", ["all", "head"])
def test_rounds_and_fine_tuning_by_hand(finetune, lr):
    data = layered.TUNED_SITES
    linear = toy.Linear("fedbabu", data, model=layered.network, initial=layered.START, rounds=3,
                        finetune=finetune, finetune_epochs=4, finetune_lr=lr)  # fmt: skip
    body, moved = np.array(layered.START[:2]), layered.BODY
    shared = linear.method.start()
    for number in (1, 2, 3):
        shared = linear.round(shared, number)
        starts = {s: np.array([*body, layered.START[2]]) for s in data}
        body = layered.mean({s: layered.step(starts[s], data[s], moved)[:2] for s in data})
        np.testing.assert_allclose(shared["global"].flat.numpy(), body, atol=1e-6)

    moved = layered.HEAD if finetune == "head" else layered.BODY + layered.HEAD
    epochs = {}
    for name in data:
        site = linear.site(name, 4, shared)
        linear.method.receive(site, shared)
        answer = linear.method.answers(site, shared)["personal"].flat.numpy()
        start = np.array([*body, layered.START[2]])
        expected, epochs[name] = layered.tuned(start, data[name], moved, 4, lr or layered.LR)
        np.testing.assert_allclose(answer, expected, atol=1e-6)
    assert max(epochs.values()) > 0


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_without_a_head_and_fine_tuning_it_is_fedavg(make_plan, tmp_path, norm):
    plan = make_plan(
        methods=["fedavg", {"name": "fedbabu", "head": "none", "finetune_epochs": 0}],
        network={"name": "small", "norm": norm},
    )
    layered.same_as_fedavg(plan, tmp_path, "fedbabu")


def finished(plan, folder):
    """The server's method, the shared part, and every site's answer at the end."""
    record = toy.train(plan, folder)
    states = {s: toy.state_of(plan, folder, s) for s in plan.sites}
    return toy.server(plan, folder).method, record.shared["global"], states


def test_without_fine_tuning_the_head_keeps_its_initial_bits(make_plan, tmp_path):
    """With Adam and weight decay, which move whatever they hold."""
    plan = make_plan(
        methods=[{"name": "fedbabu", "finetune_epochs": 0}],
        training={"batch_size": 3, "weight_decay": 0.1}, network=BATCH_NORM,
    )  # fmt: skip
    method, body, states = finished(plan, tmp_path)
    head = method.body.initial.only(method.body.own)
    assert head.layout.trainable
    for state in states.values():
        assert state.private["global.own"].equals(head)
        assert state.last["personal"].equals(method.body.initial.replaced(head).replaced(body))
    assert not torch.equal(body.flat, method.body.initial.only(method.body.others).flat)


def with_batch_norm(outlines):
    """Outlines are not learnt within two rounds: something is left for fine-tuning."""
    return outlines | {"network": outlines["network"] | {"norm": "batch"}}


@pytest.mark.parametrize("finetune", ["all", "head"])
def test_fine_tuning_really_trains_the_head(make_plan, outlines, tmp_path, finetune):
    plan = make_plan(
        methods=[{"name": "fedbabu", "finetune": finetune}],
        training={"batch_size": 2, "lr": 1e-2}, **with_batch_norm(outlines),
    )  # fmt: skip
    method, body, states = finished(plan, tmp_path)
    for state in states.values():
        tuned = state.last["personal"]
        assert not torch.equal(tuned.only(method.body.own).flat, state.private["global.own"].flat)
        same_body = tuned.only(method.body.others).equals(body)  # running statistics included
        assert same_body == (finetune == "head")


def test_the_tuned_model_runs_with_the_statistics_it_was_tuned_with(make_plan, outlines, tmp_path):
    """`running_statistics: local` puts a site's own into what it received, not into this."""
    training = {"batch_size": 2, "lr": 1e-2, "running_statistics": "local"}
    plan = make_plan(methods=["fedbabu"], training=training, **with_batch_norm(outlines))
    _, _, states = finished(plan, tmp_path)
    for state in states.values():
        before, tuned = state.private["global.statistics"], state.private["personal"]
        assert state.last["personal"].equals(tuned)
        assert not tuned.equals(tuned.with_statistics_of(before))


def test_a_head_that_is_not_there_cannot_be_fine_tuned(make_plan):
    with pytest.raises(ConfigError, match=r"fedbabu\.finetune = head.*head = none"):
        make_plan(methods=[{"name": "fedbabu", "head": "none", "finetune": "head"}])

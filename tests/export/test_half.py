"""Weights in 16 bit: which, what comes back, and what it costs."""

import json

import pytest
import torch
from safetensors import safe_open

from konsil.errors import StateError
from konsil.export.half import halved, halves_of, in_16_bit, loss_on_random, rounded
from konsil.export.writing import export
from konsil.networks import NetworkSpec, build_network
from konsil.supermodel import NOVELTY, SELECTOR, SuperModel
from konsil.supermodel.rules import Blend, Utility
from konsil.weights import Layout, Weights
from tests.export.test_konsil_onnx import MODELS
from tests.supermodel.test_rules import TABLE, images, super_model


def test_what_is_tender_stays_as_it_is():
    weights = Weights.of(build_network(NetworkSpec("unet", 1, 1, 32, norm="batch", width=2)))
    small = in_16_bit(weights)
    for entry in weights.layout.entries:
        assert (entry.name in small) == (entry.kind == "trainable" and entry.group != "norm")
    assert 0 < len(small) < len(weights.layout.entries)


def test_values_by_hand():
    """float16 has ten bits behind the first: 1 + 1/2048 falls back to 1; 70,000 is too large."""
    layout = Layout.build(
        [
            ("a", (3,), "trainable", "body"),
            ("b", (1,), "trainable", "body"),
            ("n", (1,), "trainable", "norm"),
            ("s", (1,), "statistic", "body"),
        ]
    )
    odd = 1 + 1 / 2048
    weights = Weights(layout, torch.tensor([odd, 0.5, -1e-9, 70000.0, odd, odd]))
    assert in_16_bit(weights) == {"a"}
    assert rounded(weights).flat.tolist() == [1, 0.5, 0, 70000, odd, odd]
    assert rounded(rounded(weights)).equals(rounded(weights))


def test_no_image_is_answered_by_somebody_else():
    for model in (MODELS["novel"], super_model([0.0, 0.3], Utility(TABLE))):
        small, x = halved(model), images()
        for key, value in vars(model.route(x)).items():
            found = getattr(small.route(x), key)
            assert torch.equal(found.nan_to_num(7), value.nan_to_num(7)), key
        for name in {SELECTOR, NOVELTY} & set(model.models):
            assert small.models[name] is model.models[name]


def test_a_folder_in_16_bit_is_half_as_large_and_comes_back(tmp_path):
    model = super_model([0.0, 1.0], Blend(0.75))
    done = export(model, "folder", tmp_path / "small", half=True)
    export(model, "folder", tmp_path / "large")
    again, x = SuperModel.load(tmp_path / "small"), images()
    assert torch.equal(again.answer(x).logits, halved(model).answer(x).logits)
    assert all(weights.flat.dtype == torch.float32 for weights in again.models.values())
    sizes = [(tmp_path / n / "000-global.safetensors").stat().st_size for n in ("small", "large")]
    assert sizes[0] < sizes[1] - 1.9 * model.models["global"].layout.size
    with safe_open(tmp_path / "small" / "000-global.safetensors", "pt") as file:
        kinds = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    stored = halves_of(model)["global"]
    assert {name for name, kind in kinds.items() if kind == torch.float16} == stored
    said = json.loads((tmp_path / "small" / "model.json").read_text())["provenance"]["float16"]
    assert said == {"random_images": 16, "largest_difference": done.loss.largest}
    assert (
        f"differ by {done.loss.largest:.2g} at most"
        in (tmp_path / "small" / "MODEL_CARD.md").read_text()
    )


def test_the_loss_is_the_largest_difference_of_any_model():
    model = super_model([0.0, 1.0], Blend(0.75))
    assert loss_on_random(model, model).largest == 0
    other = dict(model.models)
    other["south"] = model.models["south"].clone()
    other["south"].flat.zero_()  # says one half of every pixel
    found = loss_on_random(model, SuperModel(model.facts, other)).largest
    from konsil.export.graphs import random_images

    x = random_images(model.facts.network, 16)
    assert found == pytest.approx(
        float((model.logits_of("south", x).sigmoid() - 0.5).abs().max()), abs=1e-6
    )


def test_a_damaged_folder_in_16_bit_is_refused(tmp_path):
    export(super_model([0.0, 1.0], Blend(0.75)), "folder", tmp_path / "small", half=True)
    path = tmp_path / "small" / "000-global.safetensors"
    path.write_bytes(path.read_bytes()[:-2] + b"xx")
    with pytest.raises(StateError, match="damaged"):
        SuperModel.load(tmp_path / "small")

"""The bundle, by MONAI's own commands."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from PIL import Image

from konsil.export.bundle import OpenImage, RoutedNetwork
from konsil.export.monai_bundle import OWN_SCHEMA, inference, metadata, schema, write_bundle
from konsil.export.writing import export
from konsil.supermodel import SuperModel
from konsil.supermodel.rules import Blend
from tests.cli.test_experiments import called
from tests.data.volume_files import grid, write_nifti
from tests.export.test_konsil_onnx import noise
from tests.supermodel.test_rules import images, super_model

MODEL = super_model([0.0, 1.0], Blend(0.75))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    export(MODEL, "bundle", folder)
    return folder


@pytest.fixture
def ward(tmp_path: Path) -> Path:
    root = tmp_path / "ward"
    (root / "sub").mkdir(parents=True)
    Image.fromarray(noise((40, 60))).save(root / "photo.jpg")
    Image.fromarray(noise((50, 30, 3))).save(root / "sub" / "colour.png")
    write_nifti(root / "v.nii.gz", noise((20, 24, 3)), grid()[1])
    return root


def monai(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "monai.bundle", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_a_bundle_is_these_files_and_no_pickle(bundle):
    found = sorted(p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file())
    assert found == [
        "LICENSE",
        "configs/inference.json",
        "configs/metadata.json",
        f"configs/{OWN_SCHEMA}",
        "docs/README.md",
        "models/000-global.safetensors",
        "models/001-north.safetensors",
        "models/002-selector.safetensors",
        "models/003-south.safetensors",
        "models/MODEL_CARD.md",
        "models/model.json",
    ]


def test_monai_verifies_its_metadata(bundle):
    done = monai(
        "verify_metadata", "--meta_file", "configs/metadata.json", "--filepath",
        f"configs/{OWN_SCHEMA}", cwd=bundle,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "metadata is verified with no error" in done.stdout + done.stderr


@pytest.mark.parametrize("key", schema()["required"])
def test_the_schema_notices_what_is_missing(key):
    whole = metadata(MODEL.facts)
    jsonschema.validate(whole, schema())
    with pytest.raises(jsonschema.ValidationError, match=key):
        jsonschema.validate({k: v for k, v in whole.items() if k != key}, schema())


def test_metadata_of_classes_too():
    facts = replace(MODEL.facts, targets="classes", labels=["a", "b"])
    whole = metadata(facts)
    jsonschema.validate(whole, schema())
    assert whole["network_data_format"]["outputs"]["pred"]["num_channels"] == 2


def same_files(one: Path, other: Path) -> None:
    names = {p.relative_to(one) for p in one.rglob("*") if p.is_file()}
    assert names == {p.relative_to(other) for p in other.rglob("*") if p.is_file()}
    for name in names:
        if name.name.endswith(".nii.gz"):  # gzip notes the time
            from konsil.data.volumes import read_volume

            mine, yours = (read_volume(f / name).array for f in (one, other))
            assert np.array_equal(mine, yours)
        else:
            assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_monai_runs_it_and_leaves_what_predict_leaves(bundle, ward, tmp_path):
    done = monai(
        "run", "--config_file", "configs/inference.json", "--dataset_dir", ward,
        "--output_dir", tmp_path / "theirs", cwd=bundle,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "required properties" not in done.stderr  # which MONAI looks for
    MODEL.save(tmp_path / "model")
    ours = tmp_path / "ours"
    assert called("predict", tmp_path / "model", ward, "-o", ours, "--no-overlays").code == 0
    same_files(ours, tmp_path / "theirs")
    assert (ours / "masks" / "sub" / "colour.png").exists()


def test_a_bad_file_does_not_stop_the_others_and_is_named(bundle, ward, tmp_path):
    (ward / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    done = monai(
        "run", "--config_file", bundle / "configs" / "inference.json", "--bundle_root", bundle,
        "--dataset_dir", ward, "--output_dir", tmp_path / "out", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode != 0
    assert "not answered: bad.png: image that cannot be read" in done.stderr
    assert (tmp_path / "out" / "masks" / "photo.png").exists()
    assert len((tmp_path / "out" / "answers.csv").read_text().splitlines()) == 1 + 2 + 3


def test_its_config_has_what_monai_asks_for():
    from monai.bundle.properties import InferProperties

    for name, asked in InferProperties.items():
        if asked["required"]:
            assert asked["id"] in inference(), name


def test_the_network_routes(bundle):
    network, x = RoutedNetwork(bundle / "models"), images()
    assert (network(x) == MODEL.answer(x).logits).all()


def test_files_are_opened_as_the_site_read_them(tmp_path):
    window = {"north": {"window": [0, 100]}, "south": {"window": None}}
    write_bundle(MODEL.changed(reading=window), tmp_path / "b")
    network = RoutedNetwork(tmp_path / "b" / "models")
    assert OpenImage(network, "north").reading.window == (0.0, 100.0)


def test_in_16_bit(tmp_path):
    export(MODEL, "bundle", tmp_path / "b", half=True)
    assert "float16" in json.loads((tmp_path / "b/models/model.json").read_text())["provenance"]
    assert SuperModel.load(tmp_path / "b" / "models").facts.sites == MODEL.facts.sites
    assert "in 16 bit" in (tmp_path / "b" / "docs" / "README.md").read_text()

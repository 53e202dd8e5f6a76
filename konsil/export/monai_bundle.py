"""A super model as a MONAI bundle: metadata, a config that runs, weights without pickles."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from konsil.supermodel import Facts, SuperModel
from konsil.supermodel.card import model_card
from konsil.version import __version__

# MONAI's own schema. Its commands download it, unless a file is already where it would be put.
SCHEMA = (
    "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/"
    "meta_schema_20240725.json"
)
OWN_SCHEMA = "metadata.schema.json"
HOME = "konsil.export.bundle"
NEEDED = ("safetensors", "pillow", "nibabel", "SimpleITK", "pydicom", "highdicom")

README = """\
# {title}

A MONAI bundle that Konsil {konsil} wrote. It needs Konsil to be installed beside MONAI: the network
that routes, and the opening of image files as training opened them, are Konsil's
(`{home}`). The weights are safetensors in `models/`; there is no `model.pt`, because
nothing here is a pickle, and one file could not hold the several networks.

    cd THIS_FOLDER
    python -m monai.bundle run --config_file configs/inference.json \\
        --dataset_dir IMAGES --output_dir ANSWERS

asks about every picture, volume and DICOM series of the folder IMAGES and leaves masks and
`answers.csv` in ANSWERS, the very ones of `konsil predict models IMAGES -o ANSWERS`. From another
folder say `--bundle_root THIS_FOLDER`, too. Where hospitals read their files in different ways, say
as whose: `--preprocessing#site NAME`.

    python -m monai.bundle verify_metadata --meta_file configs/metadata.json \\
        --filepath configs/{schema}

holds the metadata against the schema that lies there, which Konsil wrote with what MONAI's schema
of July 2024 asks for. With another `--filepath` MONAI downloads its own, whose address is in the
metadata.

{card}"""

LICENCE = """\
The weights in this bundle come from the images of the hospitals that trained them. Who may have
and use them is for these hospitals to say; without their word nobody may.

Konsil, which wrote this bundle and runs it, is under the Apache License 2.0.
It is research software and not a medical device.
"""


def write_bundle(
    model: SuperModel, folder: Path, half: Mapping[str, Collection[str]] | None = None
) -> None:
    """Write the bundle. `half`: of each model the entries that are stored as float16."""
    configs = {
        "metadata.json": metadata(model.facts),
        "inference.json": inference(),
        OWN_SCHEMA: schema(),
    }
    (folder / "docs").mkdir(parents=True, exist_ok=True)
    (folder / "configs").mkdir(exist_ok=True)
    for name, content in configs.items():
        text = json.dumps(content, indent=4)
        (folder / "configs" / name).write_text(text + "\n", encoding="utf-8")
    card = model_card(model.facts)
    readme = README.format(
        title=_title(model.facts), konsil=__version__, home=HOME, schema=OWN_SCHEMA, card=card
    )
    (folder / "docs" / "README.md").write_text(readme, encoding="utf-8")
    (folder / "LICENSE").write_text(LICENCE, encoding="utf-8")
    model.save(folder / "models", half)


def inference() -> dict[str, Any]:
    """The config of `monai.bundle run`."""
    network = {"network": "@network_def"}
    return {
        "bundle_root": ".",
        "device": "cpu",
        "dataset_dir": "$@bundle_root + '/images'",
        "output_dir": "$@bundle_root + '/eval'",
        "network_def": {
            "_target_": f"{HOME}.RoutedNetwork",
            "folder": "$@bundle_root + '/models'",
            "device": "@device",
        },
        "preprocessing": {"_target_": f"{HOME}.OpenImage", **network, "site": None},
        "dataset": {
            "_target_": "monai.data.Dataset",
            "data": {"_target_": f"{HOME}.images_in", "folder": "@dataset_dir"},
            "transform": "@preprocessing",
        },
        "inferer": {"_target_": "monai.inferers.SimpleInferer"},
        "postprocessing": {
            "_target_": f"{HOME}.WriteAnswers",
            **network,
            "output_dir": "@output_dir",
        },
        "evaluator": {
            "_target_": f"{HOME}.Evaluator",
            "dataset": "@dataset",
            **network,
            "inferer": "@inferer",
            "postprocessing": "@postprocessing",
        },
        "run": ["$@evaluator.run()"],
    }


def metadata(facts: Facts) -> dict[str, Any]:
    """What `configs/metadata.json` says of the model, its versions, inputs and outputs."""
    told = facts.provenance
    whom = f"{len(facts.sites)} hospitals ({', '.join(facts.sites)})"
    kind = "global model, specialists and a selector" if facts.selector else "models"
    return {
        "schema": SCHEMA,
        "version": "0.1.0",
        "changelog": {"0.1.0": f"exported by Konsil {__version__}"},
        "monai_version": _version("monai"),
        "pytorch_version": _version("torch"),
        "numpy_version": _version("numpy"),
        "required_packages_version": {
            "konsil": __version__,
            **{name: _version(name) for name in NEEDED},
        },
        "name": _title(facts),
        "task": f"{facts.task} of {', '.join(facts.labels)}",
        "description": f"The {kind} of {whom}, routed image by image; method "
        f"{told.get('method', 'not known')}, plan {facts.plan or 'not known'}.",
        "authors": f"the hospitals {', '.join(facts.sites)}, with Konsil",
        "copyright": "the hospitals'; see LICENSE",
        "intended_use": "Research. Not a medical device; see docs/README.md.",
        "data_source": "images of the hospitals, which have not left them",
        "eval_metrics": _scores(facts),
        "network_data_format": {
            "inputs": {"image": _input(facts)},
            "outputs": {"pred": _output(facts)},
        },
    }


def _title(facts: Facts) -> str:
    return f"Konsil super model: {', '.join(facts.labels)}"


def _scores(facts: Facts) -> dict[str, Any]:
    """The mean over hospitals of the super model's test scores."""
    by_site = list(facts.scores.get("test", {}).get("super", {}).values())
    names = dict.fromkeys(name for site in by_site for name in site)
    known = {name: [site[name] for site in by_site if name in site] for name in names}
    return {name: sum(values) / len(values) for name, values in known.items()}


def _input(facts: Facts) -> dict[str, Any]:
    channels, size = facts.network["in_channels"], facts.network["image_size"]
    names = ["grey"] if channels == 1 else ["red", "green", "blue"]
    return {
        "type": "image",
        "format": "magnitude",
        "modality": "n/a",
        "num_channels": channels,
        "spatial_shape": [size, size],
        "dtype": "float32",
        "value_range": [0, 1],
        "is_patch_data": False,
        "channel_def": {str(n): name for n, name in enumerate(names[:channels])},
    }


def _output(facts: Facts) -> dict[str, Any]:
    masks, size = facts.targets == "masks", facts.network["image_size"]
    return {
        "type": "image" if masks else "probabilities",
        "format": "classes",  # structures may overlap: each has a sigmoid of its own
        "num_channels": len(facts.labels),
        "spatial_shape": [size, size] if masks else [],
        "dtype": "float32",
        "value_range": [],
        "is_patch_data": False,
        "channel_def": {str(n): f"logits of {label}" for n, label in enumerate(facts.labels)},
    }


def schema() -> dict[str, Any]:
    """What MONAI asks of a bundle's metadata, as a JSON schema."""
    text, number = {"type": "string"}, {"type": "number"}
    tensor = {
        "type": "object",
        "properties": {
            **dict.fromkeys(("type", "format", "dtype"), text),
            "num_channels": {"type": "integer"},
            "spatial_shape": {"type": "array", "items": {"type": ["string", "integer"]}},
            "value_range": {"type": "array", "items": number},
            "is_patch_data": {"type": "boolean"},
            "channel_def": {"type": "object"},
        },
        "required": ["type", "format", "num_channels", "spatial_shape", "dtype", "value_range"],
    }
    named = {"type": "object", "additionalProperties": tensor}
    both = {"inputs": named, "outputs": named}
    versions = ("version", "monai_version", "pytorch_version", "numpy_version")
    objects = ("changelog", "eval_metrics", "required_packages_version")
    words = ("schema", *versions, "task", "description", "authors", "copyright")
    return {
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "type": "object",
        "properties": {
            **dict.fromkeys(words, text),
            **{key: {"type": "object"} for key in objects},
            "network_data_format": {"type": "object", "properties": both, "required": list(both)},
        },
        "required": [*words, "required_packages_version", "network_data_format"],
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"

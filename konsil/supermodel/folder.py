"""A super model's folder: `model.json`, and one safetensors file a network.

A folder may come from somebody nobody knows. Nothing in it is executed, no file outside it is
opened, and nothing is built before its size is known to be that of a file that is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import torch
import xxhash

from konsil.errors import ConfigError, StateError
from konsil.networks import NetworkSpec, build_network, check_spec
from konsil.weights import Layout, Weights

FORMAT = 3
FACTS = "model.json"
CARD = "MODEL_CARD.md"  # for people; nothing reads it
MOST_BYTES = 16 << 20  # of model.json; that of a hundred sites has a hundred kilobytes
LARGEST_IMAGE = 8192  # pixels a side
# The first that an entry has is checked when a folder is loaded: XXH3 sees damage at the speed of
# memory. Neither keeps out who can write the folder and so model.json; SHA-256 is there for those
# who hold a file against a value that they have from elsewhere.
DIGESTS: dict[str, Callable[[], Any]] = {"xxh3": xxhash.xxh3_128, "sha256": hashlib.sha256}
PLAIN_NAME = re.compile(r"[\w-][\w.-]*\.safetensors")


def save_folder(
    folder: Path,
    facts: Mapping[str, Any],
    models: Mapping[str, Weights],
    half: Mapping[str, Collection[str]],
    card: str,
) -> None:
    """Write the folder; `model.json` last, so that a folder with it is whole.

    `half`: of each model the entries that are stored as float16.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FACTS).unlink(missing_ok=True)
    files = {}
    for number, name in enumerate(sorted(models)):
        readable = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
        path = folder / f"{number:03d}-{readable}.safetensors"
        models[name].save(path, half=half.get(name, ()))
        files[name] = {"file": path.name, **{kind: _digest(path, kind) for kind in DIGESTS}}
    (folder / CARD).write_text(card, encoding="utf-8")
    text = json.dumps({**facts, "files": files}, indent=2)
    (folder / FACTS).write_text(text + "\n", encoding="utf-8")


def load_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Weights]]:
    """What `model.json` says, as format 3 would say it, and the weights of every model."""
    facts = _read_facts(folder)
    try:
        version, files = facts["format"], dict(facts.pop("files"))
        if version not in range(1, FORMAT + 1):
            raise StateError(f"{folder}: format {version}, this Konsil reads 1 to {FORMAT}")
        if version < FORMAT:  # names without a suffix, and no checksums
            files = {name: {"file": f"{stem}.safetensors"} for name, stem in files.items()}
        facts = (_of_format_1(facts) if version == 1 else facts) | {"format": FORMAT}
        specs = [facts["network"], *([facts["selector"]] if facts["selector"] else [])]
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{folder}: not a super model's folder ({error})") from None
    for spec in specs:
        _check_network(spec, folder)
    return facts, {name: Weights.load(_checked(folder, entry)) for name, entry in files.items()}


def check_fit(spec: Mapping[str, Any], models: Mapping[str, Weights], folder: Path) -> None:
    """Refuse weights that are not this network's, before the network takes any memory."""
    network = NetworkSpec.from_json(dict(spec))
    if network.is_target:  # somebody else's class may not know the device without memory
        return
    with torch.device("meta"):
        layout = Layout.of(build_network(network))
    for name, weights in models.items():
        if layout.key != weights.layout.key:
            raise StateError(
                f"{folder}: {name}: weights of another network than model.json says "
                f"({network.name}, {layout.size} values; the file has {weights.layout.size})"
            )


def _read_facts(folder: Path) -> dict[str, Any]:
    path = folder / FACTS
    try:
        _check_file(path)
        if path.stat().st_size > MOST_BYTES:
            raise StateError(f"{path}: larger than {MOST_BYTES >> 20} MB; no super model's is")
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{folder}: not a super model's folder ({error})") from None
    if not isinstance(facts, dict):
        raise StateError(f"{folder}: not a super model's folder (model.json is no object)")
    return facts


def _checked(folder: Path, entry: Any) -> Path:
    """The file of a model, which is there and what `model.json` was written with."""
    name = entry.get("file") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not PLAIN_NAME.fullmatch(name):
        raise StateError(
            f"{folder}: model.json names the file {str(entry)[:80]!r}; the files of a super model "
            "lie in its folder and end in .safetensors"
        )
    path = folder / name
    try:
        _check_file(path)
        noted = next((kind for kind in DIGESTS if kind in entry), None)
        whole = noted is None or _digest(path, noted) == entry[noted]
    except OSError as error:
        raise StateError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not whole:
        raise StateError(
            f"{path}: damaged, or another file than model.json was written with (its {noted} is "
            "another); copy the whole folder again"
        )
    return path


def _check_file(path: Path) -> None:
    """An ordinary file, and no way out of the folder."""
    kind = os.lstat(path).st_mode
    if not stat.S_ISREG(kind):
        what = "a link" if stat.S_ISLNK(kind) else "no file"
        raise StateError(f"{path}: {what}; a super model's folder holds plain files")


def _digest(path: Path, kind: str) -> str:
    """Over the file as it lies in the page cache: a copy of it would take as long as the sum."""
    found = DIGESTS[kind]()
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size:  # nothing cannot be mapped
            with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
                found.update(content)
    return str(found.hexdigest())


def _of_format_1(facts: dict[str, Any]) -> dict[str, Any]:
    """Konsil 0.1's facts: a threshold beside the rule's name."""
    facts = dict(facts)
    gamma, name = facts.pop("gamma"), facts.pop("routing", "threshold")
    rule = {"rule": name} | ({"gamma": gamma} if name == "threshold" else {})
    return facts | {"routing": rule}


def _check_network(spec: Any, folder: Path) -> None:
    """Refuse at once what could only fail when the first image is asked about."""
    try:
        known = NetworkSpec.from_json(spec)
    except StateError as error:
        raise StateError(f"{folder}: {error}") from None
    try:
        check_spec(known)
        size = known.image_size
        if type(size) is not int or not 0 < size <= LARGEST_IMAGE:
            raise ConfigError(f"network {known.name}: image_size = {size!r}: 1 to {LARGEST_IMAGE}")
    except ConfigError as error:
        raise StateError(
            f"{folder}: {error}; a network of one's own must be installed, or its file loaded "
            "first: konsil.registry.load_plugins([FILE.py])"
        ) from None

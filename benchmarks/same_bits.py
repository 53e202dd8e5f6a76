"""Did a change leave every number as it was? The same experiments on two checkouts, compared.

    git worktree add ../before REVISION
    python -m benchmarks.same_bits ../before . --out /tmp/bits

Each checkout runs the smoke recipe with every method, in the settings below (with batch norm and
an absent site, with statistics that stay local, as a classification, in worker processes, and
deployed on FLARE). Every safetensors file, `model.json` and `results.csv` must have the same
bytes. Bits are compared on one machine only: run both halves here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from konsil.config import PLAIN

SMALL = {"aster": 12, "birch": 12, "cedar": 16}
RETINA = {"synthetic": "retina", "images": SMALL, "image_size": 32}
PATHOLOGY = {"synthetic": "pathology", "image_size": 32}
COMPARED = ("*.safetensors", "results.csv", "model.json")
IGNORED = {".deploy", "state", "before", "record"}  # parties' folders; what is only for resuming
SUPER = {"name": "fedsm", "selector_optimizer": "closed_form"}  # as the variants below have it

EVERY = [
    "apfl", "centralized", "ditto", "fedadam", "fedavg", "fedavg-swa", "fedavgm", "fedbabu",
    "fedbn", "fedfomo", "fedper", "fedprox", "fedrep", "fedsm", "fedsm-ensemble", "fedsm-extra",
    "fedsm-soup", "fedsoup", "fedyogi", "ft", "local", "moon", "perfedavg", "pfedme", "scaffold",
    "silobn",
]  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "fedavg-reset": {"name": "fedavg", "optimizer_state": "reset"},
    "fedavg-average": {"name": "fedavg", "optimizer_state": "average"},
    "fedavgm-half": {"name": "fedavgm", "momentum": 0.5, "server_lr": 0.5},
    "fedprox-decoupled": {"name": "fedprox", "mu": 0.1, "coupling": "decoupled"},
    "ditto-decoupled": {"name": "ditto", "coupling": "decoupled"},
    "apfl-fixed": {"name": "apfl", "alpha": 0.3, "adaptive": False},
    "perfedavg-hf": {"name": "perfedavg", "variant": "hessian_free", "adapt_steps": 2},
    "pfedme-half": {"name": "pfedme", "beta": 0.5, "inner_steps": 2},
    "scaffold-direction": {"name": "scaffold", "correction": "direction", "server_lr": 0.5},
    "fedfomo-one": {"name": "fedfomo", "models": 1},
    "fedbabu-head": {"name": "fedbabu", "finetune": "head", "finetune_lr": 0.01},
    "fedsoup-early": {"name": "fedsoup", "start": 0.0, "ties": "reject"},
    "fedsm-lambdas": {**SUPER, "lambda": {"aster": 0.5, "birch": 0.7, "cedar": 1.0}},
    "fedsm-auto": {**SUPER, "lambda": "auto"},
    "fedsm-unguarded": {**SUPER, "lambda": "auto", "lambda_guard": "none"},
    "fedsm-shrinkage": {**SUPER, "lambda": "auto-shrinkage"},
    "fedsm-states": {
        **SUPER, "global_optimizer_state": "average", "personal_optimizer_state": "reset",
    },
    "fedsm-server-adam": {"name": "fedsm", "selector_optimizer": "server_adam"},
    "fedsm-reference": {"name": "fedsm", "selector_optimizer": "reference_full_batch"},
    "fedsm-persist": {"name": "fedsm", "selector_optimizer": "literal_persist_known_to_fail"},
    "fedsm-reset": {"name": "fedsm", "selector_optimizer": "literal_reset_known_to_fail"},
    "fedsm-ft": {**SUPER, "personaliser": {"name": "ft", "epochs": 2}},
    "fedsm-apfl": {**SUPER, "personaliser": "apfl"},
    "fedsm-perfedavg": {**SUPER, "personaliser": "perfedavg"},
    "fedsm-pfedme": {**SUPER, "personaliser": {"name": "pfedme", "inner_steps": 2}},
    "fedsm-ditto": {**SUPER, "personaliser": "ditto"},
    "fedsm-extra-closed": {
        "name": "fedsm-extra", "selector_optimizer": "closed_form", "labels_from": "validation",
    },
    "fedsm-extra-ft": {"name": "fedsm-extra", "personaliser": {"name": "ft", "epochs": 1}},
    "fedsm-soup-all": {
        "name": "fedsm-soup", "soup": "all", "soup_share": 1.0, "selector_optimizer": "closed_form",
    },
}  # fmt: skip


def labelled(names: list[str]) -> list[dict[str, Any]]:
    return [{**VARIANTS[name], "label": name} for name in names]


def experiment(name: str, methods: list[Any], **keys: Any) -> dict[str, Any]:
    training = PLAIN | keys.pop("training", {"batch_size": 4})
    base = {"federation": RETINA, "rounds": 4, "training": training}
    return {"name": name, "methods": methods, **base, **keys}


BATCH_NORM = {"network": {"norm": "batch"}, "server": {"absences": {"birch": [2]}, "min_sites": 2}}
LOCAL = {"batch_size": 4, "running_statistics": "local", "augment": "light"}
EXPERIMENTS = [
    experiment("every", EVERY),
    experiment("variants", labelled(list(VARIANTS))),
    experiment("batch-norm", [*EVERY, *labelled(list(VARIANTS))], **BATCH_NORM),
    experiment("local-statistics", EVERY, network={"norm": "batch"}, training=LOCAL),
    experiment("sgd", EVERY, training={"batch_size": 4, "optimizer": "sgd", "lr": 0.01}),
    experiment(
        "classification", EVERY, federation=PATHOLOGY, task={"name": "classification"}, rounds=3,
        network={"name": "small"}, training={"batch_size": 16},
    ),
    experiment("processes", ["fedsm", "fedsoup"], engine={"name": "processes", "workers": 2}),
    experiment("deployed", [SUPER, "scaffold", "fedfomo", "fedsm-extra"]),
]  # fmt: skip


def command(tree: Path, file: Path, out: Path) -> list[str]:
    start = [sys.executable, "-c", "from konsil.cli import main; main()"]
    if file.stem == "deployed":
        return [*start, "deploy", "local", str(file), "--out", str(out)]
    return [*start, "run", str(file), "--out", str(out)]


def run_all(tree: Path, out: Path, only: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve())}
    for content in EXPERIMENTS:
        name = content["name"]
        folder = out / name
        if (only and name not in only) or folder.exists():
            continue
        file = out / f"{name}.yaml"
        file.write_text(yaml.safe_dump(content))
        done = subprocess.run(
            command(tree, file, folder), env=environment, cwd=out, capture_output=True, text=True
        )
        print(f"{tree}: {name}: exit {done.returncode}", flush=True)
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:])


def contents(folder: Path) -> dict[str, str]:
    found = (path for pattern in COMPARED for path in folder.rglob(pattern))
    files = sorted(
        path for path in found if not IGNORED & {*path.relative_to(folder).parts, path.stem}
    )
    return {str(f.relative_to(folder)): hashlib.sha256(_bytes(f)).hexdigest() for f in files}


def _bytes(file: Path) -> bytes:
    if file.name != "model.json":
        return file.read_bytes()
    facts = json.loads(file.read_text())
    facts.pop("plan")  # a hash of the settings: a new one with a default of its own changes it
    return json.dumps(facts, sort_keys=True).encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    found = []
    for side, tree in (("before", given.before), ("after", given.after)):
        folder = given.out / side
        folder.mkdir(parents=True, exist_ok=True)
        run_all(tree, folder.resolve(), given.only)
        found.append(contents(folder))
    before, after = found
    differing = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    print(f"{len(before)} files before, {len(after)} after, {len(differing)} differ")
    for name in differing[:40]:
        where = "differs" if name in before and name in after else "only on one side"
        print(f"  {name}: {where}")
    return 1 if differing or not before else 0


if __name__ == "__main__":
    sys.exit(main())

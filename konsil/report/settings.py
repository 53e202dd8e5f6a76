"""What makes a page's numbers: what is equal in all runs is said once, and then what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from konsil.report.plan import sites_table
from konsil.report.runs import Run, Runs
from konsil.report.tables import Plain, plain

LISTED_APART = ("methods", "seeds", "name")  # of an experiment: each run may have its own
Flat = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """The facts of all runs, their hospitals, what differs, and the experiment in full."""

    facts: Mapping[str, str]
    sites: Plain
    methods: Plain
    differing: Plain | None
    experiment: str


def settings_of(runs: Runs) -> Settings:
    """Of all runs on a page."""
    facts = [_facts(run) for run in runs.every]
    experiments = [_flat(_shared(run)) for run in runs.every]
    everything = [own | said for own, said in zip(experiments, facts, strict=True)]
    first = runs.every[0]
    common = _shared(first) | {"seeds": _seeds(runs.every), "methods": _methods(runs)}
    return Settings(
        facts={key: str(value) for key, value in facts[0].items() if _equal(facts, key)},
        sites=plain(sites_table(first.plan)),
        methods=_methods_table(runs.every),
        differing=_differing([run.folder.name for run in runs.every], everything),
        experiment=yaml.safe_dump(common, sort_keys=False, allow_unicode=True),
    )


def _facts(run: Run) -> Flat:
    """Of what makes bits equal; an experiment of other methods is another plan, so not its hash."""
    said = {"images": run.plan.fingerprint, "konsil": run.plan.version}
    return said | run.environment


def _shared(run: Run) -> dict[str, Any]:
    return {k: v for k, v in run.facts["experiment"].items() if k not in LISTED_APART}


def _flat(block: Mapping[str, Any], path: str = "") -> Flat:
    """Dotted keys of settings within settings."""
    found: Flat = {}
    for key, value in block.items():
        inside = isinstance(value, dict) and value
        found |= _flat(value, f"{path}{key}.") if inside else {f"{path}{key}": value}
    return found


def _equal(blocks: Sequence[Flat], key: str) -> bool:
    return all(block.get(key) == blocks[0].get(key) for block in blocks)


def _differing(names: Sequence[str], blocks: Sequence[Flat]) -> Plain | None:
    """A line a setting and value, with the runs that have it; None: all runs are alike."""
    lines = []
    for key in dict.fromkeys(key for block in blocks for key in block):
        if not _equal(blocks, key):
            who: dict[str, list[str]] = {}
            for name, block in zip(names, blocks, strict=True):
                who.setdefault(str(block.get(key, "–")), []).append(name)
            lines += [[key, value, ", ".join(of)] for value, of in who.items()]
    head = ["setting", "value", "runs"]
    caption = "a comparison is fair where what differs is what is compared"
    return Plain("In what the runs differ", head, lines, caption) if lines else None


def _seeds(runs: Sequence[Run]) -> list[int]:
    return sorted({seed for run in runs for seed in run.plan.experiment.seeds})


def _methods(runs: Runs) -> list[dict[str, Any]]:
    """Every way a method is set, once."""
    found: list[dict[str, Any]] = []
    for run in runs.every:
        found += [one for one in run.facts["experiment"]["methods"] if one not in found]
    return found


def _methods_table(runs: Sequence[Run]) -> Plain:
    """A line a method and setting; one label with two settings is two lines, and seen."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        for one in run.facts["experiment"]["methods"]:
            own = {k: v for k, v in _flat(one).items() if k not in ("name", "label")}
            words = ", ".join(f"{key} {value}" for key, value in own.items()) or "–"
            label = (
                one["label"] if one["label"] == one["name"] else f"{one['label']} ({one['name']})"
            )
            seeds.setdefault((label, words), set()).update(run.plan.experiment.seeds)
    lines = [
        [label, ", ".join(map(str, sorted(own))), words] for (label, words), own in seeds.items()
    ]
    return Plain("Methods", ["method", "seeds", "settings of its own"], lines, "")

"""Several runs' scores side by side: whose answers are compared, on which images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from konsil.errors import RunError
from konsil.evaluation.draws import Redrawn
from konsil.evaluation.results import Series
from konsil.evaluation.scores import ASKED, FILE, KEYS, OF_TUNED, read_scores
from konsil.evaluation.statistics import Array, Compared, Images

AUC = "auc"  # ranks all images by `score`, with the class `target`
CONTROLS = ("centralized", "local", "fedavg")  # the methods that others are held against
VOLUME = "volume_dice"  # of each patient, put together from the slices' `overlap` and `area`


@dataclass(frozen=True)
class Comparison:
    """Methods' answers, and what they score on the same images."""

    candidates: Sequence[Series]
    seeds: Mapping[Series, Sequence[int]]
    compared: Compared | Redrawn
    images: int
    patients: int  # 0: nobody has told

    def place(self, name: str) -> int:
        """Which candidate this is; RunError if there is none of that name."""
        return place_of(self.candidates, name)

    def distinct(self) -> Iterator[tuple[int, Series]]:
        """Place and name of all but those who give the same answers as one before them."""
        for place, one in enumerate(self.candidates):
            if self.compared.first_equal[place] == place:
                yield place, one

    def twins(self, place: int) -> list[Series]:
        """Who else gives the same answers as this one, of those behind it."""
        first = self.compared.first_equal
        return [self.candidates[k] for k in range(place + 1, len(first)) if first[k] == place]


def place_of(candidates: Sequence[Series], name: str) -> int:
    """Which of them this is; RunError if there is none of that name."""
    found = [place for place, one in enumerate(candidates) if one.name == name]
    if not found:
        known = ", ".join(one.name for one in candidates)
        raise RunError(f"{name}: nobody of that name is compared; there are {known}")
    return found[0]


def compare(folders: Sequence[Path], metric: str, structure: str | None = None) -> Comparison:
    """Everybody in these runs who has answered the same images, by one metric."""
    rows = [row for folder in folders for row in rows_of(folder / FILE, metric, structure)]
    if not rows:
        raise RunError(f"{folders[0]}: no image has a score in {_words(metric, structure)}")
    order = dict.fromkeys((row["method"], row["role"]) for row in rows)
    candidates = sorted((Series(*both) for both in order), key=_rank)
    sites = list(dict.fromkeys(row["site"] for row in rows))
    by_site = {site: _of_site([row for row in rows if row["site"] == site]) for site in sites}
    images = {
        site: _images(site, found, candidates, metric == AUC) for site, found in by_site.items()
    }
    known = all(row["patient"] is not None for row in rows)
    patients = sum(len(np.unique(own.patients)) for own in images.values()) if known else 0
    seeds = {
        one: sorted({row["seed"] for row in rows if (row["method"], row["role"]) == one})
        for one in candidates
    }
    total = sum(len(own.patients) for own in images.values())
    return Comparison(candidates, seeds, Compared(images), total, patients)


def compare_draws(draws: Mapping[int, Comparison], overlap: float) -> Comparison:
    """One comparison of several, each of another draw of the test patients; by split seed.

    `overlap`: test images for one that trains. Images and patients are those of all draws.
    """
    first_seed, first = next(iter(draws.items()))
    compared: dict[int, Compared] = {}
    for seed, own in draws.items():
        for what, here, there in (
            ("methods and roles", own.candidates, first.candidates),
            ("seeds", own.seeds, first.seeds),
            ("sites", [*own.compared.sites], [*first.compared.sites]),
        ):
            if here != there:
                raise RunError(
                    f"split_seed {seed}: other {what} than with split_seed {first_seed}; draws are "
                    "compared when the same jobs are done in all of them"
                )
        if isinstance(own.compared, Compared):
            compared[seed] = own.compared
    images = sum(own.images for own in draws.values())
    patients = sum(own.patients for own in draws.values())
    return Comparison(first.candidates, first.seeds, Redrawn(compared, overlap), images, patients)


def _rank(one: Series) -> int:
    """Controls first, whatever the order of folders: of twins the first gives the line its name."""
    return CONTROLS.index(one.method) if one.method in CONTROLS else len(CONTROLS)


@dataclass(frozen=True)
class _Site:
    """What the rows of one site say."""

    patients: list[int]  # of every image
    targets: list[float]
    values: dict[tuple[str, str], dict[int, list[float]]]  # of method and role, by seed


def rows_of(
    path: Path, metric: str, structure: str | None, further: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The rows of a file of scores that have this metric, as `value`; `further`: keys of rows."""
    if not path.exists():
        raise RunError(
            f"{path}: not there; runs of this version leave it when a job is done, of sites whose "
            "policy lets single images' scores out"
        )
    table = read_scores(path)
    if metric == VOLUME and {"overlap", "area"} <= set(table.column_names):
        return _volumes(table.to_pylist(), structure, path, further)
    column, needed = ("score", "target") if metric == AUC else (metric, metric)
    if column not in table.column_names or needed not in table.column_names:
        raise RunError(f"{path}: no {metric}; there is {', '.join(_metrics(table.column_names))}")
    names = (*KEYS, *further)
    wanted = table.select(list(dict.fromkeys((*names, column, needed))))
    rows = (row for row in wanted.to_pylist() if row["structure"] == structure)
    return [row | {"value": row[column]} for row in rows if row[column] is not None]


def _volumes(
    rows: Sequence[dict[str, Any]], structure: str | None, path: Path, further: Sequence[str]
) -> list[dict[str, Any]]:
    """A row a patient: 2 overlap / area of all of its slices, the mean over structures or of one.

    A structure that neither mask has is found: 1.
    """
    names = ("method", "seed", "role", "site", *further, "patient")
    sums: dict[tuple[Any, ...], dict[str | None, list[float]]] = {}
    for row in rows:
        if row["area"] is None or structure not in (None, row["structure"]):
            continue
        if row["patient"] is None:
            raise RunError(f"{path}: {VOLUME}: which slices are of one patient is not known here")
        key = tuple(row[name] for name in names)
        own = sums.setdefault(key, {}).setdefault(row["structure"], [0.0, 0.0])
        own[0] += row["overlap"]
        own[1] += row["area"]
    numbers = Counter[tuple[Any, ...]]()  # of patients, as they come
    found: list[dict[str, Any]] = []
    for key, structures in sums.items():
        of_each = [2 * both / area if area else 1.0 for both, area in structures.values()]
        place = {"image": numbers[key[:-1]], "value": float(np.mean(of_each))}
        found.append(dict(zip(names, key, strict=True)) | place)
        numbers[key[:-1]] += 1
    return found


def _metrics(columns: Sequence[str]) -> list[str]:
    no_metric = (*KEYS, ASKED, *OF_TUNED)
    material = ("target", "score", "predicted", "confidence", "overlap", "area")
    of_models = ("like_", "score_of_", "selector_", "asked_", "unfamiliar")
    known = {*no_metric, *material}
    found = [name for name in columns if name not in known and not name.startswith(of_models)]
    further = {AUC: "score", VOLUME: "area"}
    return [*found, *(metric for metric, needs in further.items() if needs in columns)]


def _of_site(rows: Sequence[dict[str, Any]]) -> _Site:
    values: dict[tuple[str, str], dict[int, list[float]]] = {}
    patients: dict[int, int] = {}
    targets: dict[int, float] = {}
    for row in rows:
        of_seed = values.setdefault((row["method"], row["role"]), {}).setdefault(row["seed"], [])
        if row["image"] != len(of_seed):
            raise RunError(
                f"{row['method']}, seed {row['seed']}: image {row['image']} of {row['site']} "
                "twice; runs that are compared need methods of other labels, or other seeds"
            )
        of_seed.append(row["value"])
        told = row["image"] if row["patient"] is None else row["patient"]
        if patients.setdefault(row["image"], told) != told:
            raise _other_images(row["site"])
        target = float(row.get("target") or 0)
        if targets.setdefault(row["image"], target) != target:
            raise _other_images(row["site"])
    return _Site(list(patients.values()), list(targets.values()), values)


def _images(site: str, found: _Site, candidates: Sequence[Series], is_auc: bool) -> Images:
    values: list[Array] = []
    for one in candidates:
        seeds = list(found.values.get(one, {}).values())
        if not seeds or {len(own) for own in seeds} != {len(found.patients)}:
            raise _other_images(site)
        values.append(np.array(seeds, dtype=np.float64))
    ill = np.array(found.targets) == 1 if is_auc else None
    return Images(np.array(found.patients, dtype=np.int64), values, ill)


def _other_images(site: str) -> RunError:
    return RunError(
        f"site {site}: these runs have not answered the same test images; compare runs of one "
        "federation with one split"
    )


def _words(metric: str, structure: str | None) -> str:
    return metric if structure is None else f"{metric} of {structure}"

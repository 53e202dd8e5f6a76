"""How personal models are: what they score at home, and on all sites' images alike.

FedSoup's two terms (its Table 1, Fig. 2b and 2c). *Local*: each site's model on that site's test
images. *Global*: the same model on equally many test images of every site that took part. *Unseen*:
on those of the site that a fold has left out. Each is the mean over the sites' models, then over
folds, and over seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from konsil.errors import RunError
from konsil.evaluation.comparison import AUC, rows_of
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Series
from konsil.evaluation.scores import OF_TUNED
from konsil.evaluation.statistics import Array, Averaged, Compared, Difference, Images, Whole
from konsil.randomness import derive

FOR_ALL = (GLOBAL, "centralized")  # roles of one model that all sites have
LOCAL, OF_ALL, UNSEEN = "local", "global", "unseen"  # where a site's model is asked


class Tuned(NamedTuple):
    """A method's answers in one role, after so many local epochs."""

    series: Series
    epochs: int


@dataclass(frozen=True)
class Levels:
    """Candidates, and what they score where."""

    candidates: Sequence[Tuned]
    seeds: Mapping[Tuned, Sequence[int]]
    folds: Sequence[Fold]
    per_site: int  # images of each site in the global set

    @cached_property
    def where(self) -> dict[str, Averaged]:
        """Local, global, and of folds unseen."""
        given = [(fold, fold.candidates_in(self.candidates)) for fold in self.folds]
        found = {
            LOCAL: Averaged([(fold.local(values), CLIENT_AVERAGE) for fold, values in given]),
            OF_ALL: Averaged(
                [(fold.of_all(values, self.per_site), GLOBAL) for fold, values in given]
            ),
        }
        unseen = [
            (fold.unseen(values, fold.left_out), fold.left_out)
            for fold, values in given
            if fold.left_out is not None
        ]
        return found | ({UNSEEN: Averaged(unseen)} if unseen else {})

    @property
    def epochs(self) -> list[int]:
        """After how many local epochs models were asked."""
        return sorted({one.epochs for one in self.candidates})

    @property
    def has_patients(self) -> bool:
        """Whether some images are known to be of one patient."""
        every = [own for fold in self.folds for own in fold.patients.values()]
        return any(len(np.unique(own)) < len(own) for own in every)

    @property
    def published(self) -> list[int]:
        """The places of what FedSoup's Table 1 has: models right after their last local training.

        A site's own are that as they are, one for all is after one more epoch. None without such.
        """
        last = {True: 1, False: 0}  # whether it is one for all
        if not set(last.values()) <= set(self.epochs):
            return []
        return [
            place
            for place, (series, epochs) in enumerate(self.candidates)
            if epochs == last[series.role in FOR_ALL]
        ]

    def differences(self, where: str, against: Series) -> list[Difference | None]:
        """Every candidate minus that one after equally many epochs; None: itself."""
        found: list[Difference | None] = [None] * len(self.candidates)
        for epochs in self.epochs:
            alike = [k for k, one in enumerate(self.candidates) if one.epochs == epochs]
            reference = self.candidates.index(Tuned(against, epochs))
            differences = self.where[where].differences(reference, alike)
            for place in alike:
                found[place] = differences[place]
        return found


def levels(
    path: Path,
    metric: str,
    structure: str | None = None,
    per_site: int | None = None,
    epochs: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
) -> Levels:
    """From `personalised.parquet`; by default of all methods and epochs in it.

    `per_site`: images of each site in the global set, by default as many as the smallest has.
    """
    rows = [
        row
        for row in rows_of(path, metric, structure, OF_TUNED)
        if (epochs is None or row["epochs"] in epochs)
        and (methods is None or row["method"] in methods)
    ]
    if not rows:
        raise RunError(f"{path}: no image has a score in {metric}")
    left_out = list(dict.fromkeys(row["left_out"] for row in rows))
    folds = [Fold.of(k, [row for row in rows if row["left_out"] == k], metric) for k in left_out]
    candidates = list(dict.fromkeys(one for fold in folds for one in fold.values))
    seeds = {
        one: sorted({seed for fold in folds for seed in fold.values.get(one, {})})
        for one in candidates
    }
    return Levels(candidates, seeds, folds, _per_site(folds, per_site))


def _per_site(folds: Sequence[Fold], wanted: int | None) -> int:
    """The same in every fold, so that a site's part of the global set is the same, too."""
    counts = {site: len(own) for fold in folds for site, own in fold.patients.items()}
    smallest = min(counts, key=counts.__getitem__)
    if wanted is not None and wanted > counts[smallest]:
        raise RunError(
            f"--per-site {wanted}: {smallest} has {counts[smallest]} test images; the global set "
            "has equally many of every site"
        )
    return wanted or counts[smallest]


def drawn_images(site: str, images: int, wanted: int) -> Whole:
    """Which of a site's test images are in the global set: of fewer, the first of more."""
    generator = np.random.Generator(np.random.PCG64(derive("global set", site, images)))
    return np.sort(generator.permutation(images)[:wanted])


# --- one run --------------------------------------------------------------------------------------

# seed -> whose model -> whose images -> what it scores on each
Values = Mapping[int, Mapping[str, Mapping[str, Array]]]


@dataclass(frozen=True)
class Fold:
    """What the models of a run score on every site's test images."""

    left_out: str | None  # the site that took no part; of an ordinary run none
    patients: Mapping[str, Whole]  # of every site's images
    targets: Mapping[str, Array]
    values: Mapping[Tuned, Values]
    is_auc: bool

    @classmethod
    def of(cls, left_out: str | None, rows: Sequence[Mapping[str, Any]], metric: str) -> Fold:
        """From its rows of the file."""
        found: dict[Tuned, dict[int, dict[str, dict[str, list[float]]]]] = {}
        patients: dict[str, dict[int, int]] = {}
        targets: dict[str, dict[int, float]] = {}
        for row in rows:
            one = Tuned(Series(row["method"], row["role"]), row["epochs"])
            own = found.setdefault(one, {}).setdefault(row["seed"], {}).setdefault(row["model"], {})
            own.setdefault(row["site"], []).append(row["value"])
            whose = row["image"] if row["patient"] is None else row["patient"]
            patients.setdefault(row["site"], {})[row["image"]] = whose
            targets.setdefault(row["site"], {})[row["image"]] = float(row.get("target") or 0)
        return cls(
            left_out,
            {site: np.array(list(own.values()), dtype=np.int64) for site, own in patients.items()},
            {site: np.array(list(own.values())) for site, own in targets.items()},
            {one: _arrays(own) for one, own in found.items()},
            metric == AUC,
        )

    @property
    def clients(self) -> list[str]:
        """The sites that took part."""
        return [site for site in self.patients if site != self.left_out]

    def candidates_in(self, candidates: Sequence[Tuned]) -> list[Values]:
        """What each of them scores here; RunError if one has not been asked everything."""
        for one in candidates:
            models = [own.get(k, {}) for own in self._seeds_of(one) for k in self.clients]
            if not models or any(own.keys() != self.patients.keys() for own in models):
                raise RunError(
                    f"{one.series.method}: not every site's model has been asked about every "
                    f"site's images{self._words}: finish the runs, and personalise again"
                )
        return [self.values[one] for one in candidates]

    def _seeds_of(self, one: Tuned) -> Sequence[Mapping[str, Mapping[str, Array]]]:
        return list(self.values.get(one, {}).values())

    @property
    def _words(self) -> str:
        return "" if self.left_out is None else f" (without {self.left_out})"

    def local(self, candidates: Sequence[Values]) -> Compared:
        """Each site's model at home."""
        homes = {}
        for site in self.clients:
            values = [np.array([models[site][site] for models in o.values()]) for o in candidates]
            homes[site] = self._images(site, values)
        return Compared(homes)

    def of_all(self, candidates: Sequence[Values], per_site: int) -> Compared:
        """Every site's model on equally many images of each site: their mean counts as seeds' do.

        One model's answers to all sites' images stand in one row, so that an AUC ranks them.
        """
        return Compared(
            {
                site: self._images(
                    site,
                    [self._of_models(one, site) for one in candidates],
                    drawn_images(site, len(self.patients[site]), per_site),
                )
                for site in self.clients
            }
        )

    def unseen(self, candidates: Sequence[Values], site: str) -> Compared:
        """Every site's model at the site that took no part."""
        return Compared({site: self._images(site, [self._of_models(o, site) for o in candidates])})

    def _of_models(self, values: Values, site: str) -> Array:
        """[seeds and models, images of a site]."""
        return np.array([own[model][site] for own in values.values() for model in self.clients])

    def _images(self, site: str, values: Sequence[Array], chosen: Whole | None = None) -> Images:
        which = np.arange(len(self.patients[site])) if chosen is None else chosen
        ill = self.targets[site][which] == 1 if self.is_auc else None
        return Images(self.patients[site][which], [own[:, which] for own in values], ill)


def _arrays(values: Mapping[int, Mapping[str, Mapping[str, Sequence[float]]]]) -> Values:
    return {
        seed: {
            model: {site: np.array(own, dtype=np.float64) for site, own in sites.items()}
            for model, sites in models.items()
        }
        for seed, models in values.items()
    }

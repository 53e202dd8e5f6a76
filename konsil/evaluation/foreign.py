"""The models of a run at a hospital that took no part: whom they ask, and what that is worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from konsil.data import Images
from konsil.evaluation import Columns, batches, joined, values_of
from konsil.evaluation.routing import GAMMAS, SCORE_OF, routed_columns
from konsil.evaluation.scores import ASKED, LIKE
from konsil.supermodel import GLOBAL, SuperModel
from konsil.tasks import Task

SUPER = "super"
OF_ONES_OWN_SITE = "selector_accuracy"  # of an image of no site nobody is right


@dataclass(frozen=True)
class Roles:
    """What a method calls its model for all, and a site's own; empty: it has none."""

    shared: str
    own: str


def foreign_columns(
    model: SuperModel, images: Images, task: Task, site: str, roles: Roles
) -> dict[str, Columns]:
    """What each role scores on images of a site that the model does not know.

    A hospital that took no part has no specialist: of a method's own models it is the mean of what
    each of them scores, as if it had borrowed one by lot.
    """
    found: dict[str, Columns] = {}
    if model.facts.selector:
        routed = routed_columns(model, images, task, site, detailed=True)
        found[SUPER] = {n: v for n, v in routed.items() if n != OF_ONES_OWN_SITE}
    alone = {name: columns_alone(model, name, images, task) for name in model.answerers}
    if GLOBAL in alone and roles.shared:
        found[roles.shared] = alone.pop(GLOBAL)
    own = [alone[name] for name in alone if name != GLOBAL]
    if own and roles.own:
        metrics = [name for name in own[0] if not name.startswith("_")]
        found[roles.own] = {m: np.mean([each[m] for each in own], axis=0) for m in metrics}
    return found


def columns_alone(model: SuperModel, name: str, images: Images, task: Task) -> Columns:
    """Per-image values of one of its models, whatever the selector says."""
    of_batches = (
        values_of(task, model.logits_of(name, x), y, detailed=True)
        for x, y in batches(images, model.device)
    )
    return joined(list(of_batches))


@dataclass(frozen=True)
class Asked:
    """What a super model does with the images of one site, by its scores alone."""

    score: float  # by the rule that validation images chose
    of_global: float  # of the global model on the same images
    shares: dict[str, float]  # who answers: share of the images, the most frequent first
    unfamiliar: float  # share that is like no site's
    by_gamma: dict[float, float]  # Algorithm 2 with each gamma

    @property
    def oracle(self) -> float:
        """The gamma that is best on these very images, the largest of equals: nobody knows it."""
        return max(self.by_gamma, key=lambda gamma: (self.by_gamma[gamma], gamma))


def asked_about(rows: Sequence[Mapping[str, Any]], metric: str) -> Asked:
    """From the rows of scores.parquet of one super model, whose images all are of one site."""
    models = [name.removeprefix(SCORE_OF) for name in rows[0] if name.startswith(SCORE_OF)]
    scores = {name: np.array([row[f"{SCORE_OF}{name}"] for row in rows]) for name in models}
    names = [name.removeprefix(LIKE) for name in rows[0] if name.startswith(LIKE)]
    like = np.array([[row[f"{LIKE}{name}"] for name in names] for row in rows])
    of_likeliest = np.stack([scores.get(name, scores[GLOBAL]) for name in names], axis=1)
    of_likeliest = np.take_along_axis(of_likeliest, like.argmax(axis=1)[:, None], axis=1)[:, 0]
    sure = like.max(axis=1)
    return Asked(
        score=float(np.mean([row[metric] for row in rows])),
        of_global=float(scores[GLOBAL].mean()),
        shares={who: n / len(rows) for who, n in Counter(r[ASKED] for r in rows).most_common()},
        unfamiliar=float(np.mean([row["unfamiliar"] for row in rows])),
        by_gamma={
            gamma: float(np.where(sure > gamma, of_likeliest, scores[GLOBAL]).mean())
            for gamma in GAMMAS
        },
    )

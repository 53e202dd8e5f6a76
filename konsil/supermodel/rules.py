"""Whom to ask about an image: rules that turn the selector's probabilities into shares.

A rule reads the probabilities of one image per row and answers with shares, [images, 1 + sites]:
how much the global model (column 0) and each site's specialist count in the answer. A rule that
chooses gives all to one of them; a rule that blends gives shares to several (FedSM, Sec. 3.1.1:
h = sum_k s_k h_k).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import one_hot


@dataclass(frozen=True)
class Threshold:
    """Algorithm 2: the specialist of the likeliest site, if the selector is surer than gamma.

    Strictly surer: a saturated softmax returns exactly 1, and gamma = 1 must mean "always the
    global model".
    """

    gamma: float
    name: ClassVar[str] = "threshold"
    passes: ClassVar[float] = 1  # of models an image, at most

    def shares(self, probabilities: Tensor) -> Tensor:
        """All to the specialist or to the global model."""
        confidence, site = probabilities.max(dim=1)
        sure = confidence > self.gamma
        return chosen(torch.where(sure, site + 1, 0), probabilities.shape[1])


@dataclass(frozen=True)
class Utility:
    """The answer with the highest expected score; no threshold.

    Row k of `table` has the mean validation scores of every answer at site k: the global model's,
    each specialist's, and, if there are as many again, those of each specialist blended evenly
    with the global model. The probabilities weigh the rows. Of equals the earlier wins: the global
    model, then a specialist alone.
    """

    table: Sequence[Sequence[float]]
    name: ClassVar[str] = "utility"

    @property
    def passes(self) -> float:
        """Of models an image, at most."""
        return 1 if len(self.table[0]) == 1 + len(self.table) else 2

    def shares(self, probabilities: Tensor) -> Tensor:
        """All to one model, or half to the global model and half to a specialist."""
        table = torch.tensor(self.table, dtype=torch.float64, device=probabilities.device)
        best = (probabilities.double() @ table).argmax(dim=1)
        sites = len(self.table)
        even = best > sites
        alone = chosen(torch.where(even, best - sites, best), sites)
        mixed = (alone + chosen(torch.zeros_like(best), sites)) / 2
        return torch.where(even[:, None], mixed, alone)


@dataclass(frozen=True)
class Blend:
    """The specialists of the `top` likeliest sites together, and the global model beside them.

    The specialists share `share` by the probabilities of their sites.
    """

    share: float
    top: int = 1
    name: ClassVar[str] = "blend"

    @property
    def passes(self) -> float:
        """Of models an image, at most."""
        return 1 + self.top

    def shares(self, probabilities: Tensor) -> Tensor:
        """Of the global model what the specialists leave."""
        sites = probabilities.shape[1]
        likely = probabilities.topk(min(self.top, sites), dim=1)
        weights = likely.values / likely.values.sum(dim=1, keepdim=True)
        shares = probabilities.new_zeros(len(probabilities), 1 + sites)
        shares[:, 0] = 1 - self.share
        return shares.scatter(1, likely.indices + 1, self.share * weights)


@dataclass(frozen=True)
class Argmax:
    """Algorithm 4 (FedSM-extra): a selector with an output 0 for the global model names its choice.

    Of equals the earlier output wins.
    """

    name: ClassVar[str] = "argmax"
    passes: ClassVar[float] = 1

    def shares(self, probabilities: Tensor) -> Tensor:
        """All to the model that the selector names."""
        return chosen(probabilities.argmax(dim=1), probabilities.shape[1] - 1)


@dataclass(frozen=True)
class Ensemble:
    """Every model, weighed by a selector with an output 0 for the global model (FedSM-ensemble)."""

    name: ClassVar[str] = "ensemble"
    passes: ClassVar[float] = torch.inf

    def shares(self, probabilities: Tensor) -> Tensor:
        """The selector's probabilities themselves."""
        return probabilities


@dataclass(frozen=True)
class Fixed:
    """Always the same model, whatever the selector says: 0 is the global one, k the k-th site's."""

    model: int = 0
    name: ClassVar[str] = "fixed"
    passes: ClassVar[float] = 1

    def shares(self, probabilities: Tensor) -> Tensor:
        """All to that model."""
        place = torch.full((len(probabilities),), self.model, device=probabilities.device)
        return chosen(place, probabilities.shape[1])


@dataclass(frozen=True)
class Even:
    """Every specialist, all alike: where there are only models of sites, and nobody to choose."""

    name: ClassVar[str] = "even"
    passes: ClassVar[float] = torch.inf

    def shares(self, probabilities: Tensor) -> Tensor:
        """An equal part to every specialist."""
        count, sites = probabilities.shape
        shares = torch.full((count, 1 + sites), 1 / sites, device=probabilities.device)
        shares[:, 0] = 0
        return shares


Rule: TypeAlias = Threshold | Utility | Blend | Argmax | Ensemble | Fixed | Even
RULES: dict[str, type[Rule]] = {
    kind.name: kind for kind in (Threshold, Utility, Blend, Argmax, Ensemble, Fixed, Even)
}
NEEDS_NO_SELECTOR = (Fixed, Even)
# For selectors with an output for the global model, which decide alone.
NAMES_MODELS: dict[str, Rule] = {rule.name: rule for rule in (Argmax(), Ensemble())}


def chosen(place: Tensor, sites: int) -> Tensor:
    """Shares that give everything to one model, by its column."""
    return one_hot(place, 1 + sites).float()


def to_json(rule: Rule) -> dict[str, Any]:
    """The rule as model.json has it."""
    return {"rule": rule.name, **asdict(rule)}


def from_json(data: Any, sites: int) -> Rule:
    """The rule of `to_json`, for so many sites; ValueError says what is wrong."""
    if not isinstance(data, dict) or data.get("rule") not in RULES:
        raise ValueError(f"routing: rule: one of {', '.join(RULES)}")
    kind = RULES[data["rule"]]
    given = {key: value for key, value in data.items() if key != "rule"}
    if set(given) != {field.name for field in fields(kind)}:
        raise ValueError(f"routing: not the settings of {kind.name}")
    rule = kind(**given)
    wrong = _wrong(rule, sites)
    if wrong:
        raise ValueError(f"routing: {wrong}")
    return rule


def in_words(rule: Rule) -> str:
    """Whom it asks, for people."""
    if isinstance(rule, Threshold):
        return f"the likeliest specialist if surer than {rule.gamma:g}, else the global model"
    if isinstance(rule, Blend):
        who = "specialist" if rule.top == 1 else f"{rule.top} specialists"
        return f"the likeliest {who} for {rule.share:.0%} of the answer, else the global model"
    if isinstance(rule, Utility):
        also = ", or a specialist and the global model together" if rule.passes > 1 else ""
        return f"the model with the highest expected score{also}"
    if isinstance(rule, Fixed):
        return "the global model" if rule.model == 0 else f"the specialist of site {rule.model}"
    if isinstance(rule, Even):
        return "every site's model, all alike"
    return "the model that the selector names" if rule == Argmax() else "all models, weighed"


def _wrong(rule: Rule, sites: int) -> str:
    """What no rule of so many sites can have; empty if it can be."""
    if isinstance(rule, Threshold) and not _is_share(rule.gamma):
        return f"gamma = {rule.gamma!r}: from 0 to 1"
    if isinstance(rule, Blend):
        if not _is_share(rule.share):
            return f"share = {rule.share!r}: from 0 to 1"
        if type(rule.top) is not int or not 1 <= rule.top <= sites:
            return f"top = {rule.top!r}: from 1 to {sites} sites"
    if isinstance(rule, Fixed) and (type(rule.model) is not int or not 0 <= rule.model <= sites):
        return f"model = {rule.model!r}: from 0 (the global model) to {sites}"
    if isinstance(rule, Utility):
        return _wrong_table(rule.table, sites)
    return ""


def _wrong_table(table: Any, sites: int) -> str:
    rows = table if isinstance(table, list | tuple) else []
    widths = {len(row) if isinstance(row, list | tuple) else 0 for row in rows}
    if len(rows) != sites or widths not in ({1 + sites}, {1 + 2 * sites}):
        return f"table: {sites} rows of {1 + sites} or {1 + 2 * sites} scores"
    good = all(_is_share(score) for row in rows for score in row)
    return "" if good else "table: scores are from 0 to 1"


def _is_share(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value <= 1

"""How well a super model answers, and what validation images choose of it.

In the federation this takes two questions to every site, each answered with sums over its own
validation images: how sure the selector may be and how good each answer is at this site
(`calibration`), then how good every rule would be (`rule_scores`). The server adds up and chooses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from konsil.data import Images
from konsil.evaluation import Columns, batches, joined, values_of
from konsil.networks.outputs import mixed
from konsil.supermodel import GLOBAL, Route, SiteSelector, SuperModel
from konsil.supermodel.discriminant import ImageMeans, means_layout
from konsil.supermodel.novelty import LIMITS
from konsil.supermodel.rules import NAMES_MODELS, Blend, Fixed, Rule, Threshold, Utility, chosen
from konsil.tasks import Task
from konsil.tasks.classification import expected_calibration_error
from konsil.weights import Weights

# 0 always asks a specialist, 1 never does; between them denser where selectors are sure.
GAMMAS = (*(round(0.05 * i, 2) for i in range(20)), 0.97, 0.99, 0.999, 1.0)
SHARES = (0.25, 0.5, 0.75)  # of the specialists in a blend
TEMPERATURES = tuple(2 ** (i / 2) for i in range(-6, 15))  # 1/8 to 128
CONFIDENCES = ("selector_confidence", "selector_confidence_raw")  # with and without temperature
# Of a test image: every output of the selector, every model's share, and every model's own score.
PROBABILITY, SHARE, SCORE_OF = "_probability_", "_share_", "score_of_"
ERRORS = ("selector_error", "selector_error_raw")  # their calibration errors


# --- what a site says ---------------------------------------------------------------------------


def routed_columns(
    model: SuperModel, images: Images, task: Task, site: str, detailed: bool = False
) -> Columns:
    """Per-image values of the super model, and of its selector for images of `site`.

    `detailed`: also all that the selector says, and what every model would score alone, so that
    other rules can be tried on the scores.
    """
    own = model.facts.sites.index(site) if site in model.facts.sites else -1
    raw = model.changed(temperature=1.0)
    pieces = []
    for x, y in batches(images, model.device):
        route, of_raw = _routes(model, raw, x)
        columns = values_of(task, model.logits_for(route.shares, x), y, detailed)
        if model.rule.name not in NAMES_MODELS:  # those selectors name models, not sites
            columns["selector_accuracy"] = (route.site == own).double().cpu()
            columns[CONFIDENCES[0]] = route.confidence.double().cpu()
            columns[CONFIDENCES[1]] = of_raw.confidence.double().cpu()
        columns["asked_specialist"] = route.specialist.double().cpu()
        columns["unfamiliar"] = route.unfamiliar.double().cpu()
        pieces.append(columns | (_alternatives(model, route, x, y, task) if detailed else {}))
    return joined(pieces)


def _routes(model: SuperModel, raw: SuperModel, x: Tensor) -> tuple[Route, Route]:
    """Whom the model asks, and so without temperature: the selector looks at images once."""
    if not model.facts.selector:
        return model.route(x), raw.route(x)
    said = model.selector(x)
    return model.route_of(*said), raw.route_of(*said)


def _alternatives(
    model: SuperModel, route: Route, x: Tensor, y: Tensor, task: Task
) -> dict[str, Tensor]:
    """What the selector says of each image, whose answer counts, and what each model scores."""
    columns = {}
    for name, values in ((PROBABILITY, route.probabilities), (SHARE, route.shares)):
        for place, column in enumerate(values.double().cpu().unbind(dim=1)):
            columns[f"{name}{place}"] = column
    for name in model.answerers:
        alone = task.columns(model.logits_of(name, x), y)
        columns[f"{SCORE_OF}{name}"] = alone[task.main_metric]
    return columns


def routed_names(model: SuperModel, detailed: bool) -> tuple[str, ...]:
    """The columns of `routed_columns` beside the task's own."""
    names_models, sites = model.rule.name in NAMES_MODELS, len(model.facts.sites)
    of_sites = () if names_models else ("selector_accuracy", *CONFIDENCES)
    plain = (*of_sites, "asked_specialist", "unfamiliar")
    if not detailed:
        return plain
    outputs = sites + 1 if names_models else sites
    probabilities = (f"{PROBABILITY}{place}" for place in range(outputs))
    shares = (f"{SHARE}{place}" for place in range(sites + 1))
    scores = (f"{SCORE_OF}{name}" for name in model.answerers)
    return (*plain, *probabilities, *shares, *scores)


def calibration_errors(columns: Columns) -> dict[str, float]:
    """Of the selector's confidence, with and without temperature, where both are known."""
    if not {"selector_accuracy", *CONFIDENCES} <= columns.keys():
        return {}
    right = columns["selector_accuracy"]
    found = (expected_calibration_error(columns[name], right) for name in CONFIDENCES)
    return dict(zip(ERRORS, found, strict=True))


def described(selector: SiteSelector, images: Images, site: int, sites: Sequence[str]) -> Weights:
    """Means over the images of one site of what the selector sees, and of their products."""
    means = None
    for x, _ in batches(images, selector.device):
        _, features = selector(x)
        means = means or ImageMeans(means_layout(len(sites), features.shape[1]))
        means.add(features, torch.full((len(x),), site))
    assert means is not None  # no site is without training images
    return means.result()


@dataclass(frozen=True)
class Calibration:
    """Sums over the validation images of one site."""

    surprise: list[float]  # -log p(site), for every linear layer and temperature
    above: list[int]  # how many images have more novelty than each limit
    scores: list[float]  # of the global model, each specialist, and each blended with it evenly


def calibration(
    model: SuperModel, heads: Sequence[tuple[Tensor, Tensor]], images: Images, task: Task, site: int
) -> Calibration:
    """What the server needs to know of this site's validation images before it offers rules.

    `heads`: linear layers (weight, bias) that compete to be the selector's; none: it has its own.
    """
    surprise = torch.zeros(max(1, len(heads)), len(TEMPERATURES), dtype=torch.float64)
    above = torch.zeros(len(LIMITS), dtype=torch.int64)
    scores = torch.zeros(1 + 2 * len(model.facts.sites), dtype=torch.float64)
    for x, y in batches(images, model.device):
        own, features = (found.cpu() for found in model.selector(x))
        label = torch.full((len(x),), site)
        for h, logits in enumerate([linear(features, *head) for head in heads] or [own]):
            for t, temperature in enumerate(TEMPERATURES):
                surprise[h, t] += cross_entropy(logits / temperature, label, reduction="sum")
        above += (model.route(x).novelty.cpu()[:, None] > torch.tensor(LIMITS)).sum(dim=0)
        said = [model.logits_of(name, x) for name in (GLOBAL, *model.answering)]
        shares = answers(len(model.answering))
        scores += torch.stack([_score(task, model, said, own, y) for own in shares])
    return Calibration(surprise.flatten().tolist(), above.tolist(), scores.tolist())


def answers(sites: int) -> list[Tensor]:
    """The shares of the answers that a row of the table has scores of."""
    alone = list(chosen(torch.arange(1 + sites), sites))
    return [*alone, *((alone[0] + own) / 2 for own in alone[1:])]


def _score(
    task: Task, model: SuperModel, logits: list[Tensor], shares: Tensor, y: Tensor
) -> Tensor:
    each = shares.to(logits[0].device).expand(len(y), -1)
    return task.columns(mixed(model.facts.targets, logits, each), y)[task.main_metric].sum()


def rule_scores(
    model: SuperModel, rules: Sequence[Rule], images: Images, task: Task
) -> list[float]:
    """For every rule the sum of validation scores; every model is asked once an image."""
    sums = [0.0] * len(rules)
    candidates = [model.with_rule(rule) for rule in rules]
    for x, y in batches(images, model.device):
        logits = [model.logits_of(name, x) for name in (GLOBAL, *model.answering)]
        route = model.route(x)
        for place, candidate in enumerate(candidates):
            shares = candidate.shares_of(route)
            said = task.columns(mixed(model.facts.targets, logits, shares), y)[task.main_metric]
            sums[place] += float(said.sum())
    return sums


# --- what the server chooses --------------------------------------------------------------------


def choose_calibration(
    surprise: dict[str, list[float]], images: dict[str, int]
) -> tuple[int, float]:
    """The linear layer and the temperature with the least surprise; each site counts alike."""
    mean = np.mean([np.array(surprise[site]) / images[site] for site in surprise], axis=0)
    head, place = divmod(int(mean.argmin()), len(TEMPERATURES))
    return head, TEMPERATURES[place]


def table_of(scores: dict[str, list[float]], images: dict[str, int]) -> list[list[float]]:
    """A row a site: the mean validation score of every answer there."""
    return [[min(1.0, max(0.0, s / images[site])) for s in scores[site]] for site in scores]


def rules_of(routing: str, table: list[list[float]]) -> list[Rule]:
    """The rules that validation images choose from; the first is the global model alone.

    Cheaper ones come first, because of equals the first is chosen.
    """
    sites = len(table)
    rules: list[Rule] = [Fixed(0)]
    if routing in ("auto", "threshold"):
        rules += [Threshold(gamma) for gamma in reversed(GAMMAS)]
    if routing in ("auto", "utility"):
        rules += [Utility([row[: 1 + sites] for row in table]), Utility(table)]
    if routing in ("auto", "blend"):
        tops = range(1, min(2, sites) + 1)
        rules += [Blend(share, top) for top, share in product(tops, SHARES)]
    return rules


def choose_rule(
    rules: Sequence[Rule], sums: dict[str, list[float]], images: dict[str, int]
) -> Rule:
    """The rule with the best validation mean over all images, the first of equals.

    Only those count whose plain mean of sites is not below the global model's either (the first
    rule), so that on validation the super model is below it in neither mean.
    """
    pooled = np.sum([sums[s] for s in sums], axis=0) / sum(images.values())
    by_site = np.mean([np.array(sums[s]) / images[s] for s in sums], axis=0)
    allowed = [place for place in range(len(rules)) if by_site[place] >= by_site[0]]
    return rules[max(allowed, key=lambda place: (pooled[place], -place))]

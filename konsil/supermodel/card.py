"""MODEL_CARD.md: what a super model is, for people who must decide whether to use it.

Everything in it is from `model.json`: the same facts give the same text, wherever it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from konsil.errors import StateError
from konsil.supermodel.rules import Blend, Threshold, Utility, in_words

if TYPE_CHECKING:
    from konsil.supermodel import Facts

WORDS = {
    "super": "super model",
    "global": "global model",
    "personal": "own model",
    "local": "own model",
    "centralized": "pooled images",
}
SPLITS = {"test": "Test images", "val": "Validation images"}
MEASURES = {
    "dice": "Dice",
    "accuracy": "Accuracy",
    "auc": "ROC-AUC",
    "hd95": "95 % Hausdorff distance in the network's pixels (less is better)",
    "surface_dice": "Surface Dice (outlines within one pixel)",
    "balanced_accuracy": "Balanced accuracy",
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "f1": "F1",
    "calibration_error": "Calibration error (less is better)",
}

INTENDED = """\
## Intended use
Research: to compare models across hospitals, and to draw {answers} of images like those below for
people to look at. It is not a medical device, nobody has approved it for care, and no decision
about a patient may rest on it alone.
"""

LIMITS = """\
## Limits
- It was trained and measured on images of the hospitals above. Images from elsewhere (another
  scanner, protocol or population) may be answered badly and surely. Measure it first on labelled
  images of the hospital that wants to use it: `konsil evaluate MODEL --data federation.yaml`.
- {selector}
- It sees every image at {size} x {size} pixels with {channels}. {best}
- The scores are those of one training run (seed {seed}); another seed gives other numbers.
- Validation images chose which round's models are here and whom to ask, so that validation scores
  are a little too good. Test images chose nothing.
"""

SELECTOR = """\
The selector only knows the hospitals above and can be very sure of one of them for an image that
  is like none. {novelty}"""
NO_SELECTOR = "There is no selector: nothing notices that an image is like no hospital's."
NOVELTY = """\
Images of more novelty than {limit:g} go to the global model and are named
  `unfamiliar`; a hospital whose images lie between those of others is not noticed."""
NO_NOVELTY = "Nothing here judges whether an image is like any hospital's."

REVEALS = """\
## What a specialist reveals
Who has this folder has every specialist in it, under its hospital's name. Of a model trained on one
hospital's images one may be able to tell whether a certain image was among them, or to reconstruct
features of them; few images and much training make that easier. Konsil adds no noise against it.
Who took part in training can work out each specialist as it left its hospital. The selector tells
which hospital an image resembles, and the routing table how well every model served each hospital's
validation images. Keep the folder inside the federation unless every hospital above agrees.
"""

ASK = """\
## How to ask it
    konsil predict MODEL IMAGE... -o DIR                    masks, pictures, a table of who answered
    konsil evaluate MODEL --data federation.yaml            scores on labelled images
    konsil serve MODEL                                      a page and an interface on this machine
    konsil export MODEL --to onnx|bundle|folder -o DIR      for onnxruntime, MONAI, or in 16 bit
`MODEL` is this folder.

## Licence
Konsil, which trained it and asks it, is under Apache-2.0. That says nothing about these weights:
they come from the hospitals' images, and who may have and use them is for the hospitals to say.
"""


def model_card(facts: Facts) -> str:
    """The text of MODEL_CARD.md; StateError if the facts are none that a run tells."""
    try:
        return _card(facts)
    except (TypeError, AttributeError, KeyError, ValueError, IndexError) as error:
        raise StateError(
            "model.json: its reading, scores, intervals or provenance are not what a run writes "
            f"({type(error).__name__}: {error})"
        ) from None


def _card(facts: Facts) -> str:
    parts = [
        "\n".join(_what_it_is(facts)),
        _intended(facts),
        "\n".join(_sites(facts)),
        "\n".join(_scores(facts)),
        "\n".join(_routing(facts)),
        "\n".join(_reading(facts)),
        _limits(facts),
        REVEALS.rstrip("\n"),
        ASK.rstrip("\n"),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _what_it_is(facts: Facts) -> Iterator[str]:
    told, network = facts.provenance, facts.network
    yield f"# Model card: {facts.task} of {', '.join(facts.labels)}"
    yield ""
    kind = "A super model: one global model, specialists of hospitals, and a selector that decides"
    if facts.selector:
        yield f"{kind}, image by image, whom to ask."
    else:
        yield "A model of several hospitals, without a selector: the same models always answer."
    yield ""
    yield from _table(("fact", ""), list(_facts(facts, told, network)))


def _facts(facts: Facts, told: dict[str, Any], network: dict[str, Any]) -> Iterator[list[str]]:
    channels, size = network["in_channels"], network["image_size"]
    yield ["task", f"{facts.task}: {', '.join(facts.labels)}"]
    yield ["network", f"{network['name']}, {channels} x {size} x {size} in"]
    if facts.selector:
        yield ["selector", str(facts.selector["name"])]
    if "method" in told:
        rounds, seed = told.get("rounds", "?"), told.get("seed", "?")
        yield ["method", f"{told['method']}, {rounds} rounds, seed {seed}"]
    if "konsil" in told:
        yield ["Konsil", str(told["konsil"])]
    if facts.plan:
        yield ["plan", f"`{facts.plan}` (the hash of everything that determines the numbers)"]
    if small := told.get("float16"):
        yield ["stored", f"in 16 bit: {_loss(small)}"]


def _loss(small: dict[str, Any]) -> str:
    if "largest_difference" in small:
        return (
            f"probabilities differ by {small['largest_difference']:.2g} at most from 32 bit on "
            f"{small['random_images']} random images"
        )
    name = MEASURES.get(small["metric"], small["metric"])
    return (
        f"mean {name} {small['before']:.4f} before and {small['after']:.4f} after "
        f"({small['after'] - small['before']:+.1e}), the mean over sites of "
        f"{small['labelled_images']} labelled images, some of which it may have been trained on"
    )


def _intended(facts: Facts) -> str:
    answers = "outlines" if facts.targets == "masks" else "up answers"
    return INTENDED.format(answers=answers)


def _sites(facts: Facts) -> Iterator[str]:
    told = facts.provenance
    scored, trained = told.get("scored", {}), told.get("images", {})
    yield "## Hospitals and their images"
    head = [
        "hospital",
        "training",
        *(w.split()[0].lower() for s, w in SPLITS.items() if s in scored),
    ]
    yield from _table(
        (*head, "specialist"),
        [
            [
                site,
                str(trained.get(site, "not known")),
                *(str(scored[split].get(site, "")) for split in SPLITS if split in scored),
                "stays with the hospital" if site in facts.withheld else "in this folder",
            ]
            for site in facts.sites
        ],
    )
    if facts.withheld:
        yield "For a model that stays with its hospital the others answer."


def _scores(facts: Facts) -> Iterator[str]:
    yield "## Scores"
    if not facts.scores:
        yield "None are known: no run has written this folder."
        return
    yield _of_what(facts)
    for split, words in SPLITS.items():
        roles = facts.scores.get(split, {})
        for metric in _metrics(roles):
            yield f"\n{words}: {MEASURES.get(metric, metric)}\n"
            yield from _table(
                ("hospital", *(WORDS.get(role, role) for role in roles)),
                [[s, *(_score(facts, split, r, s, metric) for r in roles)] for s in facts.sites],
            )
    yield from _of_the_selector(facts.scores)


def _of_what(facts: Facts) -> str:
    mean = "Each number is the mean over the hospital's own images, answered at the network's size."
    if not facts.intervals:
        return f"{mean} There are no intervals: the hospitals told means, and no single values."
    return (
        f"{mean} In brackets its 95 % interval (bootstrap, 2,000 draws), of test images over "
        "patients: how far the number may be off because they are few. It holds for this one "
        "model. It says nothing of other seeds or of other hospitals. Of validation images, and "
        "where nobody has told whose the images are, every image counts as a patient, and it is "
        "too narrow if one has several. Scores without brackets are no means of single images, or "
        "of one patient, or of a hospital that told its mean alone."
    )


def _metrics(roles: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Those of the task; the super model's own, about its selector, are told apart."""
    names = {role: [m for site in sites.values() for m in site] for role, sites in roles.items()}
    plain = [m for role, found in names.items() if role != "super" for m in found]
    return list(dict.fromkeys(plain or names.get("super", [])))


def _score(facts: Facts, split: str, role: str, site: str, metric: str) -> str:
    value = facts.scores[split][role].get(site, {}).get(metric)
    if value is None:
        return ""
    ends = facts.intervals.get(split, {}).get(role, {}).get(site, {}).get(metric)
    return f"{value:.3f}" + (f" ({ends[0]:.3f} to {ends[1]:.3f})" if ends else "")


def _of_the_selector(scores: dict[str, Any]) -> Iterator[str]:
    right = scores.get("test", {}).get("super", {})
    known = [site["selector_accuracy"] for site in right.values() if "selector_accuracy" in site]
    if known:
        mean = sum(known) / len(known)
        yield f"\nThe selector finds the right hospital for {mean:.0%} of the test images (the mean"
        yield f"over hospitals; the worst {min(known):.0%}, the best {max(known):.0%})."


def _routing(facts: Facts) -> Iterator[str]:
    rule = facts.rule
    yield "## Whom it asks"
    yield f"Rule `{rule.name}`: {in_words(rule)}."
    if facts.selector:
        chosen = isinstance(rule, Threshold | Utility | Blend)
        how = "Validation images chose the rule's numbers and the temperature" if chosen else ""
        said = f"The selector's logits are divided by a temperature of {facts.temperature:g}."
        yield f"{said} {how}." if how else said
        if facts.limit is not None:
            yield f"Images of more novelty than {facts.limit:g} go to the global model."


def _reading(facts: Facts) -> Iterator[str]:
    yield "## How image files are read"
    if not facts.reading:
        yield "Not known: this folder does not say how training read its files."
        return
    yield "As training read them; whoever asks Konsil need not say it again."
    words = {site: _in_words(reading) for site, reading in facts.reading.items()}
    if len(set(words.values())) == 1:
        yield f"All hospitals: {next(iter(words.values()))}."
    else:
        yield from (f"- {site}: {how}" for site, how in words.items())


def _in_words(reading: dict[str, Any]) -> str:
    said = [f"{key} {value}" for key, value in reading.items() if value is not None]
    usual = reading.get("window") is None
    return ", ".join(said) + (" (pictures in 8 bit, volumes in their usual window)" * usual)


def _limits(facts: Facts) -> str:
    channels, size = facts.network["in_channels"], facts.network["image_size"]
    novelty = NO_NOVELTY if facts.limit is None else NOVELTY.format(limit=facts.limit)
    best = ""
    if facts.targets == "masks":
        best = (
            "What is finer than its pixels\n  is lost: no answer can pass the Dice that this size "
            "leaves of a structure\n  (`konsil data check` computes it)."
        )
    return LIMITS.format(
        selector=SELECTOR.format(novelty=novelty) if facts.selector else NO_SELECTOR,
        size=size,
        channels="one grey channel" if channels == 1 else f"{channels} channels",
        best=best,
        seed=facts.provenance.get("seed", "not known"),
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a Markdown table; names of hospitals are anybody's, and may hold its signs."""
    yield _line(head)
    yield _line(["---"] * len(head))
    yield from map(_line, rows)


def _line(cells: Sequence[str]) -> str:
    plain = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(plain)} |"

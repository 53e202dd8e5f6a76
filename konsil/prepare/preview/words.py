"""What is said in sentences, with nothing in it that leads to a file or a patient."""

from __future__ import annotations

from collections import Counter

from konsil.data.recipe import mask_files
from konsil.data.sources import without_suffix
from konsil.prepare.check import CheckResult
from konsil.prepare.preview.shift import SiteGuess

ALIKE, DIFFERENT = 0.1, 0.5  # of the way from guessing to knowing


def what_it_means(guess: SiteGuess) -> str:
    """The number in a sentence."""
    if guess.skill < ALIKE:
        return (
            "The sites can hardly be told apart by their intensities: what differs between them, "
            "if anything, is what the images show, or how it was labelled."
        )
    if guess.skill < DIFFERENT:
        return (
            "The sites differ in their intensities, but overlap: a model that was trained at one "
            "site will find many, not all, images of another unfamiliar."
        )
    return (
        "Most images carry the mark of their site: scanner, protocol or camera. A model that was "
        "trained at one site meets unfamiliar intensities at another, so methods that adapt to "
        "the site (FedSM, FedBN, fine-tuning) have something to gain here. It does not say that "
        "a common model must fail."
    )


def problems_in_words(result: CheckResult) -> tuple[list[str], list[str]]:
    """Errors and warnings of the check, each in a line."""
    errors = []
    for problem in result.errors:
        if problem.cure:  # collected by kind: what it is names no file, its places do
            times = f" ({len(problem.places)} times)" if len(problem.places) > 1 else ""
            errors.append(f"{problem.what}{times}")
    refused = sum(not problem.cure for problem in result.errors)
    if refused:
        errors.append(f"refused for {'a reason' if refused == 1 else f'{refused} reasons'} more")
    secrets = _secrets(result)
    plain = [note.text for note in result.warnings if not _tells(note.text, secrets)]
    kinds = Counter(note.kind for note in result.warnings if _tells(note.text, secrets))
    named = [f"{kind}{f' ({times} times)' if times > 1 else ''}" for kind, times in kinds.items()]
    return errors, plain + named


def _secrets(result: CheckResult) -> set[str]:
    """Everything that leads to a file or a patient."""
    secrets: set[str] = set()
    for one in result.seen:
        item = one.item
        names = [item.image, *(mask_files(item) if result.task == "segmentation" else [])]
        for path in names:
            secrets |= {path, without_suffix(path).rpartition("/")[2]}
        secrets.add(item.patient)
    return secrets - {""}


def _tells(text: str, secrets: set[str]) -> bool:
    return any(secret in text for secret in secrets)

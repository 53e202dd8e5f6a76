"""Fine-tuning at a site after the last round, with early stopping on its validation images."""

from __future__ import annotations

from konsil.ingredients.site import Site
from konsil.weights import Weights


def at_the_finish(site: Site, rounds: int) -> bool:
    """Whether all these rounds are over: what a site does now is not fed back."""
    return site.round > rounds


def fine_tune(site: Site, network: str, weights: Weights, epochs: int) -> Weights:
    """The best on validation images of these weights after 0, 1, ..., `epochs` local epochs.

    The learner `network` should have the policy "reset": a fresh optimiser. Of equals the
    earliest wins: a small validation split ties often, and each epoch moves the model further
    from what all sites have learned together. What the learner does not train stays as it is,
    running statistics included. With no epoch, these weights come back.
    """
    if not epochs:
        return weights
    best, best_score = weights, site.score(weights)
    learner = site.learner(network, weights)
    trained = {e.name for e in learner.trained_layout.entries}
    for epoch in range(1, epochs + 1):
        for x, y in site.batches(f"fine-tuning {epoch}", epochs=1):
            learner.step(site.task.loss(learner(x), y))
        tuned = weights.replaced(learner.weights().only(trained))
        score = site.score(tuned)
        if score > best_score:
            best, best_score = tuned, score
    return best

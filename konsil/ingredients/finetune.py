"""Fine-tuning at a site after the last round, by default stopped early on validation images."""

from collections.abc import Callable, Iterator

from konsil.ingredients.context import Context, Shared, TrainedNetwork
from konsil.ingredients.piece import Averaged, Partition, Piece
from konsil.ingredients.site import Site
from konsil.weights import Weights


class FineTuned(Piece):
    """What local epochs after the last round make of a model; nothing is fed back."""

    private_roles = ("personal",)

    def __init__(
        self,
        model: Averaged,
        tuning_epochs: int,
        lr: float | None = None,
        *,
        early_stopping: bool = True,
        only: Partition | None = None,
    ) -> None:
        """`only`: the entries that are tuned; by default all."""
        self.model, self.lr, self.only = model, lr, only
        self.tuning_epochs, self.early_stopping = tuning_epochs, early_stopping

    def bind(self, context: Context) -> None:
        self.model.bind(context)
        super().bind(context)

    def networks(self) -> dict[str, TrainedNetwork]:
        """One of its own with a fresh optimiser, so that the model's moments are not touched."""
        only = None if self.only is None else self.only(self.model.initial.layout)
        return {"personal": TrainedNetwork(self.context.network, "reset", self.lr, only)}

    def receive(self, site: Site, shared: Shared) -> None:
        if site.round > self.context.rounds:
            model = site.localised(self.model.part, self.model.model(site, shared))
            tuned = fine_tune(site, "personal", model, self.tuning_epochs, self.early_stopping)
            site.private["personal"] = tuned

    def answers(self, site: Site, shared: Shared) -> dict[str, Weights]:
        """The fine-tuned model; none before the end."""
        tuned = site.private.get("personal")
        return {} if tuned is None else {"personal": tuned}


def fine_tune(
    site: Site,
    network: str,
    weights: Weights,
    epochs: int,
    early_stopping: bool = True,
    tell: Callable[[int, float], None] = lambda epoch, score: None,
) -> Weights:
    """The best on validation images of these weights after 0, 1, ..., `epochs` local epochs.

    Without early stopping: those after all of them, and no validation image is looked at.
    The learner `network` should have the policy "reset": a fresh optimiser. Of equals the
    earliest wins: a small validation split ties often, and each epoch moves the model further
    from what all sites have learned together. What the learner does not train stays as it is,
    running statistics included. With no epoch, these weights come back. With early stopping `tell`
    hears the score after every epoch.
    """
    if not epochs:
        return weights
    best, best_score = weights, site.score(weights) if early_stopping else 0.0
    for epoch, tuned in enumerate(tuned_epochs(site, network, weights, epochs), 1):
        if not early_stopping:
            best = tuned
            continue
        tell(epoch, score := site.score(tuned))
        if score > best_score:
            best, best_score = tuned, score
    return best


def tuned_epochs(site: Site, network: str, weights: Weights, epochs: int) -> Iterator[Weights]:
    """What these weights are after 1, 2, ..., `epochs` local epochs of one learner."""
    learner = site.learner(network, weights)
    trained = {e.name for e in learner.trained_layout.entries}
    for epoch in range(1, epochs + 1):
        site.train(learner, f"fine-tuning {epoch}", epochs=1)
        yield weights.replaced(learner.weights().only(trained))

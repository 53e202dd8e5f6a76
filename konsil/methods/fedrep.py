"""FedRep (Collins et al., ICML 2021, Algorithm 1): first the head, then the body.

A site fits its own head to the body as it came, on passes of their own, then trains the body
under that head by the round's usual batches. Only the body is averaged. With head = none it is
FedAvg; with head_epochs = 0 the head is never trained, as in FedBABU before its fine-tuning.
"""

from pydantic import Field

from konsil.ingredients.context import Shared, TrainedNetwork
from konsil.ingredients.method import Method, method
from konsil.ingredients.partition import AveragedBody, HeadSettings
from konsil.ingredients.piece import Piece
from konsil.ingredients.site import Site


class FedRepSettings(HeadSettings):
    """head = none is FedAvg."""

    head_epochs: int = Field(1, ge=0)  # a round, before the round's epochs on the body


class BodyUnderFittedHead(AveragedBody):
    """A body that is averaged, trained each round under the head that was fitted to it."""

    def __init__(self, head: str, head_epochs: int) -> None:
        super().__init__(head, trains_own=False)
        self.head_epochs = head_epochs

    def networks(self) -> dict[str, TrainedNetwork]:
        """Body and head, each with its own optimiser."""
        return super().networks() | {"head": TrainedNetwork(self.context.network, only=self.own)}

    def work(self) -> float:
        """An epoch on the head is a forward pass; its way back through the head is left out."""
        epochs = self.head_epochs if self.own else 0
        return 1 + epochs / (3 * self.context.training.local_epochs)

    def begin(self, site: Site, shared: Shared) -> None:
        """First the head with the body frozen; the batches train the body with the head frozen."""
        if self.own:
            head = site.learner("head", self.model(site, shared))
            site.train(head, "head", epochs=self.head_epochs)
            site.private[self.kept] = head.weights().only(self.own)  # not the body's statistics
        super().begin(site, shared)


@method("fedrep", paper="Collins et al., ICML 2021, Algorithm 1")
class FedRep(Method):
    """FedAvg of the body, each time after the site's own head was fitted to it."""

    Settings = FedRepSettings

    def pieces(self) -> list[Piece]:
        return [BodyUnderFittedHead(self.settings.head, self.settings.head_epochs)]

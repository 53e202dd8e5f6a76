"""FedRep (Collins et al., ICML 2021, Algorithm 1): first the head, then the body.

A site fits its own head to the body as it came, on passes of their own, then trains the body
under that head by the round's usual batches. Only the body is averaged. With head = none it is
FedAvg; with head_epochs = 0 the head is never trained, as in FedBABU before its fine-tuning.
"""

from pydantic import Field

from konsil.ingredients.context import TrainedNetwork, Upload
from konsil.ingredients.method import method
from konsil.ingredients.partition import HeadSettings, OwnHead
from konsil.ingredients.site import Site
from konsil.weights import Parts, Weights


class FedRepSettings(HeadSettings):
    """head = none is FedAvg."""

    head_epochs: int = Field(1, ge=0)  # a round, before the round's epochs on the body


@method("fedrep", paper="Collins et al., ICML 2021, Algorithm 1")
class FedRep(OwnHead):
    """FedAvg of the body, each time after the site's own head was fitted to it."""

    Settings = FedRepSettings

    def networks(self) -> dict[str, TrainedNetwork]:
        """Body and head, each with its own optimiser."""
        network = self.context.network
        return {
            "global": TrainedNetwork(network, only=self.others),
            "head": TrainedNetwork(network, only=self.own),
        }

    def work(self) -> float:
        """An epoch on the head costs a forward pass, and a backward pass of next to nothing."""
        epochs = self.settings.head_epochs if self.own else 0
        return 1 + epochs / (3 * self.context.training.local_epochs)

    def local(self, site: Site, shared: Parts) -> Upload:
        """The head with the body frozen, then the body with the head frozen."""
        body = site.learner("global", self.fit_head(site, self.whole(site, shared)))
        return self.divide(site, site.train(body).weights())

    def fit_head(self, site: Site, weights: Weights) -> Weights:
        """These weights with a head that was trained on them; the body's statistics too stay."""
        if not self.own:
            return weights
        head = site.learner("head", weights)
        for x, y in site.batches("head", epochs=self.settings.head_epochs):
            head.step(site.task.loss(head(x), y))
        return weights.replaced(head.weights().only(self.own))

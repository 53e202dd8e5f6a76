"""FedBABU (Oh, Kim, Yun, ICLR 2022, Algorithm 1): the body is learned under a random head.

While the federation lasts, the head is fixed at the initial weights that all sites share, and
only the body is trained and averaged. After the last round each site fine-tunes: here the head
really is trained (in the code published with FedSoup, the optimiser never holds it). With
finetune_epochs = 0 every site keeps the initial head; with head = none, too, it is FedAvg.
"""

from typing import Literal

from pydantic import Field

from konsil.errors import ConfigError
from konsil.ingredients.context import TrainedNetwork
from konsil.ingredients.finetune import at_the_finish, fine_tune
from konsil.ingredients.method import method
from konsil.ingredients.partition import HeadSettings, OwnHead
from konsil.ingredients.site import Site
from konsil.weights import Parts, Weights


class FedBABUSettings(HeadSettings):
    """finetune_epochs = 0 leaves the head as it was before round 1."""

    finetune_epochs: int = Field(5, ge=0)  # at most: the best on validation images is kept
    finetune: Literal["all", "head"] = "all"  # the whole network, as in the paper's main tables
    finetune_lr: float | None = Field(None, gt=0, description="the experiment's lr")


@method("fedbabu", paper="Oh, Kim, Yun, ICLR 2022, Algorithm 1")
class FedBABU(OwnHead):
    """FedAvg of the body under a head that nobody trains, then fine-tuning at every site."""

    Settings = FedBABUSettings

    def check(self) -> None:
        """There must be something to fine-tune."""
        super().check()
        if self.settings.finetune == "head" and not self.own:
            raise ConfigError("finetune = head: there is none with head = none")

    def networks(self) -> dict[str, TrainedNetwork]:
        """The body, and what is fine-tuned at the end with a fresh optimiser."""
        s, network = self.settings, self.context.network
        tuned = self.own if s.finetune == "head" else None
        return {
            "global": TrainedNetwork(network, only=self.others),
            "personal": TrainedNetwork(network, "reset", s.finetune_lr, tuned),
        }

    def receive(self, site: Site, shared: Parts) -> None:
        """After the last round: fine-tune; nothing is fed back."""
        super().receive(site, shared)
        if at_the_finish(site, self.context.rounds):
            site.private["personal"] = fine_tune(
                site, "personal", self.whole(site, shared), self.settings.finetune_epochs
            )

    def answers(self, site: Site, shared: Parts) -> dict[str, Weights]:
        """The body under the common head; at the end what fine-tuning made of it."""
        tuned = site.private.get("personal")
        return super().answers(site, shared) if tuned is None else {"personal": tuned}

"""FedBABU (Oh, Kim, Yun, ICLR 2022, Algorithm 1): the body is learned under a random head.

While the federation lasts, the head is fixed at the initial weights that all sites share, and
only the body is trained and averaged. After the last round each site fine-tunes: here the head
really is trained (in the code published with FedSoup, the optimiser never holds it). With
finetune_epochs = 0 every site keeps the initial head; with head = none, too, it is FedAvg.
"""

from typing import Literal

from pydantic import Field

from konsil.errors import ConfigError
from konsil.ingredients.finetune import FineTuned
from konsil.ingredients.method import Method, method
from konsil.ingredients.partition import AveragedBody, HeadSettings
from konsil.ingredients.piece import Piece


class FedBABUSettings(HeadSettings):
    """finetune_epochs = 0 leaves the head as it was before round 1."""

    finetune_epochs: int = Field(5, ge=0)  # at most: the best on validation images is kept, unless
    early_stopping: bool = True  # is off: then exactly as many
    finetune: Literal["all", "head"] = "all"  # the whole network, as in the paper's main tables
    finetune_lr: float | None = Field(None, gt=0, description="the experiment's lr")


@method("fedbabu", paper="Oh, Kim, Yun, ICLR 2022, Algorithm 1")
class FedBABU(Method):
    """FedAvg of the body under a head that nobody trains, then fine-tuning at every site."""

    Settings = FedBABUSettings

    def pieces(self) -> list[Piece]:
        s = self.settings
        self.body = AveragedBody(s.head, trains_own=False)
        tuned = self.body.stays if s.finetune == "head" else None
        tuning = {"early_stopping": s.early_stopping, "only": tuned}
        return [self.body, FineTuned(self.body, s.finetune_epochs, s.finetune_lr, **tuning)]

    def check(self) -> None:
        if self.settings.finetune == "head" and not self.body.own:
            raise ConfigError("finetune = head: there is none with head = none")

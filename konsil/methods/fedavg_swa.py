"""FedAvg with stochastic weight averaging of the global models: the control that FedSoup needs.

FedSoup's sites patch with means of late global models. How much of what that gains is the mean
over rounds alone? Here the answer is the plain mean of the global models of the last rounds
(SWA, Izmailov et al., UAI 2018, Algorithm 1, with rounds for epochs); training goes on from
FedAvg's model and does not notice. With share = 0, or so few rounds that the window has one, the
last model is FedAvg's.

Norm layers: averaged weights want statistics of their own (Sec. 3.2 of SWA). A site's images
alone would give those of that site, and no round is left to average them over the sites; the
running statistics are averaged over the rounds like the weights instead.
"""

from pydantic import Field

from konsil.ingredients.method import method
from konsil.ingredients.piece import Piece
from konsil.ingredients.soup import LateMean
from konsil.methods.fedavg import FedAvg, FedAvgSettings


class FedAvgSWASettings(FedAvgSettings):
    """share = 0 is FedAvg (its last model)."""

    share: float = Field(0.25, ge=0, le=1)  # of the rounds, the last ones; FedSoup's 1 - start


@method("fedavg-swa", paper="Izmailov et al., UAI 2018, on FedAvg's global models")
class FedAvgSWA(FedAvg):
    """FedAvg whose answer is the mean of its late global models."""

    Settings = FedAvgSWASettings
    best_by = ()  # no model of one round answers: both checkpoints are the average

    def pieces(self) -> list[Piece]:
        return [*super().pieces(), LateMean("global", self.settings.share)]

"""FedAvg (McMahan et al., AISTATS 2017, Algorithm 1): the mean of the models."""

from konsil.ingredients.context import MethodSettings
from konsil.ingredients.method import Method, method
from konsil.ingredients.optimizers import OptimizerPolicy
from konsil.ingredients.piece import Averaged, Piece


class FedAvgSettings(MethodSettings):
    """What becomes of a site's optimiser between rounds."""

    optimizer_state: OptimizerPolicy = "persist"


@method("fedavg", paper="McMahan et al., AISTATS 2017")
class FedAvg(Method):
    """One model for all: w <- sum_k p_k w_k with p_k = n_k / n."""

    Settings = FedAvgSettings

    def pieces(self) -> list[Piece]:
        return [Averaged("global", self.settings.optimizer_state)]

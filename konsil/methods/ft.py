"""FT: FedAvg, then each site fine-tunes the global model on its own images.

One of the personalisation methods that FedSM is compared with (Xu et al., CVPR 2022, Table 6).
After the last round: a few local epochs from the global model with a fresh optimiser, stopped
early on validation images. Nothing is fed back, so the global model is FedAvg's in any case; with
epochs = 0 the site's model is the global one.
"""

from pydantic import Field

from konsil.ingredients.context import MethodSettings
from konsil.ingredients.finetune import FineTuned
from konsil.ingredients.method import Method, method
from konsil.ingredients.piece import Averaged, Piece


class FTSettings(MethodSettings):
    """epochs = 0 is FedAvg."""

    epochs: int = Field(5, ge=0)  # at most: the best on validation images is kept, unless
    early_stopping: bool = True  # is off: then exactly as many
    lr: float | None = Field(None, gt=0, description="the experiment's lr")


@method("ft", paper="Xu et al., CVPR 2022, Table 6 (FT)")
class FT(Method):
    """FedAvg, and at the end a fine-tuned copy of its model at every site."""

    Settings = FTSettings

    def personal(self) -> list[Piece]:
        s = self.settings
        return [FineTuned(Averaged("global"), s.epochs, s.lr, early_stopping=s.early_stopping)]

    def pieces(self) -> list[Piece]:
        return [*self.personal(), Averaged("global")]

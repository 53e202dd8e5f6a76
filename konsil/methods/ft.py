"""FT: FedAvg, then each site fine-tunes the global model on its own images.

One of the personalisation methods that FedSM is compared with (Xu et al., CVPR 2022, Table 6).
After the last round: a few local epochs from the global model with a fresh optimiser, stopped
early on validation images. Nothing is fed back, so the global model is FedAvg's in any case; with
epochs = 0 the site's model is the global one.
"""

from pydantic import Field
from torch import Tensor

from konsil.ingredients.context import MethodSettings, TrainedNetwork, Upload
from konsil.ingredients.finetune import at_the_finish, fine_tune
from konsil.ingredients.method import method
from konsil.ingredients.personaliser import Personalised, Personaliser, personaliser
from konsil.ingredients.site import Site
from konsil.weights import Parts, Weights


class FTSettings(MethodSettings):
    """epochs = 0 is FedAvg."""

    epochs: int = Field(5, ge=0)  # at most: the best on validation images is kept
    lr: float | None = Field(None, gt=0, description="the experiment's lr")


@personaliser("ft")
class FTPersonaliser(Personaliser):
    """The global model of the last round, fine-tuned."""

    Settings = FTSettings

    def networks(self) -> dict[str, TrainedNetwork]:
        """One of its own, so that FedAvg's moments are not touched."""
        return {"personal": TrainedNetwork(self.context.network, "reset", self.settings.lr)}

    def work(self) -> float:
        """No work in the rounds; the epochs after the last one are not counted."""
        return 0.0

    def receive(self, site: Site, shared: Parts) -> None:
        """After the last round: fine-tune."""
        if at_the_finish(site, self.context.rounds):
            site.private["personal"] = fine_tune(
                site, "personal", site.localised("global", shared["global"]), self.settings.epochs
            )

    def begin(self, site: Site, shared: Parts) -> None:
        """Nothing happens in a round."""

    def see(self, x: Tensor, y: Tensor) -> None:
        """Nothing."""

    def end(self, upload: Upload) -> None:
        """Nothing."""

    def opinion(self, site: Site, shared: Parts) -> Weights | None:
        """The fine-tuned model; none before the end."""
        return site.private.get("personal")


@method("ft", paper="Xu et al., CVPR 2022, Table 6 (FT)")
class FT(Personalised):
    """FedAvg, and at the end a fine-tuned copy of its model at every site."""

    Settings = FTSettings
    Personaliser = FTPersonaliser

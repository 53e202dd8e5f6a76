"""FedSM with soups (beyond both papers): averages over rounds inside the super model.

From the last quarter of the rounds on, the server averages its global models (as SWA does), and
every site keeps a soup of its own specialists, each of which enters if the site's validation
images do not object (as FedSoup does). Training goes on from the plain models: a soup is only
what answers. SoftPull and averages over rounds are both linear, so that with a fixed lambda a
soup of pulled specialists is a pulled soup; and nothing more travels than in FedSM.

With `soup_share` = 0, or `soup: none`, it is FedSM.
"""

from typing import Literal

from pydantic import Field

from konsil.ingredients.method import method
from konsil.ingredients.piece import Piece
from konsil.ingredients.soup import LateMean, SiteSoup
from konsil.methods.fedsm import FedSM, FedSMSettings


class FedSMSoupSettings(FedSMSettings):
    """`soup_share` = 0 is FedSM."""

    soup_share: float = Field(0.25, ge=0, le=1)  # of the rounds: the last ones
    soup: Literal["greedy", "all", "none"] = "greedy"  # which specialists enter a site's soup


@method("fedsm-soup", paper="beyond the papers: FedSM with FedSoup's soups")
class FedSMSoup(FedSM):
    """FedSM whose global model and specialists are averages over the last rounds."""

    Settings = FedSMSoupSettings

    def pieces(self) -> list[Piece]:
        pieces, s = super().pieces(), self.settings
        if s.soup == "none":
            return pieces
        soups = [LateMean("global", s.soup_share), SiteSoup(self.models, s.soup_share, s.soup)]
        return [*pieces, *soups]

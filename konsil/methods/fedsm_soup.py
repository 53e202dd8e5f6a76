"""FedSM with soups (beyond both papers): averages over rounds inside the super model.

From the last quarter of the rounds on, the server averages its global models (as SWA does), and
every site keeps a soup of its own specialists, each of which enters if the site's validation
images do not object (as FedSoup does). Training goes on from the plain models: a soup is only
what answers. SoftPull and averages over rounds are both linear, so that with a fixed lambda a
soup of pulled specialists is a pulled soup; and nothing more travels than in FedSM.

With `soup_share` = 0, or `soup: none`, it is FedSM.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from konsil.ingredients.context import Means
from konsil.ingredients.method import method
from konsil.ingredients.site import Site
from konsil.ingredients.soup import first_of_the_last, running_mean
from konsil.methods.fedsm import FedSM, FedSMSettings
from konsil.weights import Parts, Weights

SERVER_SOUP = "server.soup"


class FedSMSoupSettings(FedSMSettings):
    """`soup_share` = 0 is FedSM."""

    soup_share: float = Field(0.25, ge=0, le=1)  # of the rounds: the last ones
    soup: Literal["greedy", "all", "none"] = "greedy"  # which specialists enter a site's soup


@method("fedsm-soup", paper="beyond the papers: FedSM with FedSoup's soups")
class FedSMSoup(FedSM):
    """FedSM whose global model and specialists are averages over the last rounds."""

    Settings = FedSMSoupSettings

    def souped(self, round: int) -> int:
        """How many of the models after rounds 1 .. `round` belong into a soup."""
        if self.settings.soup == "none":
            return 0
        first = first_of_the_last(self.settings.soup_share, self.context.rounds)
        return max(0, round - first + 1)

    def merge(self, shared: dict[str, Weights], means: Means) -> dict[str, Weights]:
        """FedSM's; the last round's global model makes room for the average."""
        new, count = super().merge(shared, means), self.souped(means.round)
        if count:
            new[SERVER_SOUP] = running_mean(
                shared.get(SERVER_SOUP, new["global"]), count - 1, new["global"]
            )
            if means.round == self.context.rounds:
                new["global"] = new[SERVER_SOUP]
        return new

    def receive(self, site: Site, shared: Parts) -> None:
        """After the pull the specialist may enter the soup."""
        super().receive(site, shared)
        if self.souped(site.round - 1):
            self.stir(site, self.personaliser.opinion(site, shared))

    def stir(self, site: Site, specialist: Weights | None) -> None:
        """One more ingredient, if the validation images do not object."""
        if specialist is None:
            return
        size, soup = site.notes.get("soup_size", 0), site.private.get("soup")
        tasted = site.recalibrated(running_mean(soup or specialist, size, specialist))
        if soup is None or self.settings.soup == "all" or site.score(tasted) >= site.score(soup):
            site.private["soup"], site.notes["soup_size"] = tasted, size + 1

    def answers(self, site: Site, shared: Parts) -> dict[str, Weights]:
        """The soup, as soon as there is one."""
        soup = site.private.get("soup")
        return super().answers(site, shared) | ({"personal": soup} if soup else {})

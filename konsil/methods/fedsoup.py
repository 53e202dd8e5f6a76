"""FedSoup (Chen et al., MICCAI 2023, Algorithm 1): soups of global models, picked at the site.

Deviations from the published code, all on purpose: the soup is chosen on the site's validation
split (the code chose it on test data), global models are appended to it (Eq. 2; line 8 of the
listing would replace it), and norm statistics are recomputed after every average.
"""

from typing import Literal

from pydantic import Field

from konsil.ingredients.context import MethodSettings, Shared, Upload
from konsil.ingredients.method import Method, method
from konsil.ingredients.optimizers import OptimizerPolicy
from konsil.ingredients.piece import Averaged, Piece
from konsil.ingredients.site import Site
from konsil.ingredients.soup import first_of_the_last, running_mean
from konsil.weights import Weights, mix


class FedSoupSettings(MethodSettings):
    """With `start` = 1 the soup never starts, and the global model is FedAvg's."""

    start: float = Field(0.75, ge=0, le=1)  # fraction of the rounds before the first soup
    ties: Literal["accept", "reject"] = "accept"  # >= as in the paper, > as in its code
    recompute_statistics: bool = True
    optimizer_state: OptimizerPolicy = "persist"


@method("fedsoup", paper="Chen et al., MICCAI 2023, Algorithm 1")
class FedSoup(Method):
    """FedAvg whose sites patch their models with a soup of the global models that help them."""

    Settings = FedSoupSettings
    private_roles = ("personal",)

    def pieces(self) -> list[Piece]:
        return [Averaged("global", self.settings.optimizer_state)]  # line 4

    def local(self, site: Site, shared: Shared) -> Upload:
        """Lines 5-9: train, and from round E on patch with the soup."""
        theta_g = shared["global"]
        theta_l = site.train(site.learner("global", theta_g)).weights()
        if site.round >= first_of_the_last(1 - self.settings.start, self.context.rounds):
            theta_l = self.patch(site, theta_l, theta_g)
        site.private["personal"] = theta_l
        return Upload().add("global", theta_l, weight=site.weight)

    def patch(self, site: Site, theta_l: Weights, theta_g: Weights) -> Weights:
        """Lines 7-9: does this round's global model improve the soup on validation images?"""
        m, soup = site.notes.get("soup_size", 0), site.private.get("soup", theta_g)
        without = self.average(site, [(1, theta_l), (m, soup)])
        with_global = self.average(site, [(1, theta_l), (m, soup), (1, theta_g)])
        if not self.improves(site.score(with_global), site.score(without)):
            return without
        site.private["soup"] = running_mean(soup, m, theta_g)
        site.notes["soup_size"] = m + 1
        return with_global

    def average(self, site: Site, terms: list[tuple[int, Weights]]) -> Weights:
        """The mean of models counted so many times each, with statistics that fit it."""
        count = sum(times for times, _ in terms)
        mean = mix([(times / count, weights) for times, weights in terms])
        return site.recalibrated(mean) if self.settings.recompute_statistics else mean

    def improves(self, candidate: float, current: float) -> bool:
        """Small validation splits tie often: the paper accepts ties, its code does not."""
        return candidate >= current if self.settings.ties == "accept" else candidate > current

    def answers(self, site: Site, shared: Shared) -> dict[str, Weights]:
        """The mean of the patched models, and the site's last patched one."""
        personal = site.private.get("personal")
        return {"global": shared["global"]} | ({"personal": personal} if personal else {})

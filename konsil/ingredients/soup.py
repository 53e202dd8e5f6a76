"""Soups: means of models of several rounds."""

from collections.abc import Sequence
from math import floor
from typing import Literal

from konsil.ingredients.context import SERVER_ONLY, Means, Shared
from konsil.ingredients.piece import Piece
from konsil.ingredients.site import Site
from konsil.weights import Weights, mix


def first_of_the_last(share: float, rounds: int) -> int:
    """The first round r with r > (1 - share) rounds ((1 - 0.9) * 10 is a hair below 1)."""
    return floor((1 - share) * rounds + 1e-9) + 1


def running_mean(mean: Weights, count: int, new: Weights) -> Weights:
    """The mean of `count` models with one more. With count = 0 it is the new one, bit for bit."""
    return mix([(count / (count + 1), mean), (1 / (count + 1), new)])


class LateMean(Piece):
    """The server averages a part over the last rounds, beside the training (SWA).

    Training goes on from the part itself; after the last round the average takes its place.
    """

    def __init__(self, part: str, share: float) -> None:
        """`share` of the rounds, the last ones."""
        self.part, self.share, self.kept = part, share, f"{SERVER_ONLY}{part}.soup"

    def merge(self, shared: Shared, means: Means, new: Shared) -> None:
        averaged = means.round - first_of_the_last(self.share, self.context.rounds)
        if averaged < 0:
            return
        model = new[self.part]
        new[self.kept] = running_mean(shared.get(self.kept, model), averaged, model)
        if means.round == self.context.rounds:
            new[self.part] = new[self.kept]  # nobody trains after this


class SiteSoup(Piece):
    """Each site averages its own model over the last rounds; the soup answers, and trains nothing.

    A model enters if the site's validation images do not object (`greedy`), or in any case.
    """

    private_roles = ("personal",)

    def __init__(
        self, models: Sequence[Piece], share: float, entry: Literal["greedy", "all"]
    ) -> None:
        """`models`: the pieces among which one answers as `personal`."""
        self.models, self.share, self.entry = models, share, entry

    def receive(self, site: Site, shared: Shared) -> None:
        """What the site's model has become by the means may enter."""
        if site.round > first_of_the_last(self.share, self.context.rounds):
            answers = [piece.answers(site, shared) for piece in self.models]
            for model in (found["personal"] for found in answers if "personal" in found):
                self.stir(site, model)

    def stir(self, site: Site, model: Weights) -> None:
        """One more model, if the validation images do not object."""
        size, soup = site.notes.get("soup_size", 0), site.private.get("soup")
        tasted = site.recalibrated(running_mean(soup or model, size, model))
        if soup is None or self.entry == "all" or site.score(tasted) >= site.score(soup):
            site.private["soup"], site.notes["soup_size"] = tasted, size + 1

    def answers(self, site: Site, shared: Shared) -> dict[str, Weights]:
        soup = site.private.get("soup")
        return {} if soup is None else {"personal": soup}

"""APFL (Deng, Kamani, Mahdavi 2020, Algorithm 1): a mixture of a model of one's own and FedAvg's.

Beside FedAvg's w each site keeps v_k, and answers with vbar = a v + (1 - a) w. On every batch
v <- v - eta a grad f(vbar), and a itself follows its gradient <v - w, grad f(vbar)>. With a fixed
a = 0 the site answers with FedAvg's model, with a = 1 it trains alone; w is FedAvg's in any case.
The published code overwrites v by the mixture every round; the algorithm does not, nor does this.
"""

import torch
from pydantic import Field
from torch import Tensor

from konsil.ingredients.context import MethodSettings, Shared, Upload
from konsil.ingredients.method import Method, method
from konsil.ingredients.piece import Averaged, Personal, Piece
from konsil.ingredients.site import Site
from konsil.weights import Weights, mix


class APFLSettings(MethodSettings):
    """Not adaptive, alpha = 0 is FedAvg and alpha = 1 is local training."""

    alpha: float = Field(0.5, ge=0, le=1)  # at the start, if adaptive
    adaptive: bool = True
    alpha_lr: float | None = Field(None, gt=0, description="the experiment's lr")


class MixedWithGlobal(Personal):
    """v_k, trained where it is used: in the mixture with FedAvg's w."""

    def __init__(self, settings: APFLSettings) -> None:
        self.settings = settings

    def begin(self, site: Site, shared: Shared) -> None:
        super().begin(site, shared)
        self.alpha = self.alpha_of(site)

    def on_batch(self, x: Tensor, y: Tensor) -> None:
        """One step of v and a, both from the values before it and from one gradient at vbar."""
        v, w, a = self.v.parameters, self.site.running("global").parameters, self.alpha
        with self.v.at(torch.lerp(w, v, a)):  # exact at both ends, in one pass over memory
            self.v.accumulate(self.site.task.loss(self.v(x), y))
        if self.settings.adaptive:
            self.alpha = self.moved(a, float(torch.dot(v - w, self.v.grad)))
        self.v.grad.mul_(a)
        self.v.apply()

    def moved(self, a: float, grad: float) -> float:
        """a <- a - eta_a <v - w, grad f(vbar)>, kept in [0, 1]."""
        rate = self.settings.alpha_lr or self.context.training.lr
        return min(max(a - rate * grad, 0.0), 1.0)

    def end(self, upload: Upload) -> None:
        super().end(upload)
        self.site.notes["alpha"] = self.alpha

    def alpha_of(self, site: Site) -> float:
        """The site's a: as it was after its last round, or as settings begin."""
        return float(site.notes.get("alpha", self.settings.alpha))

    def answers(self, site: Site, shared: Shared) -> dict[str, Weights]:
        """vbar of v_k and the received mean."""
        a, v = self.alpha_of(site), site.private["personal"]
        vbar = mix([(a, v), (1 - a, shared["global"])])
        # v's learner ran as vbar: the statistics are vbar's
        return {"personal": vbar.with_statistics_of(v)}


@method("apfl", paper="Deng, Kamani, Mahdavi, 2020, Algorithm 1")
class APFL(Method):
    """FedAvg, and a model a site that is used and trained mixed with FedAvg's."""

    Settings = APFLSettings

    def personal(self) -> list[Piece]:
        return [MixedWithGlobal(self.settings)]

    def pieces(self) -> list[Piece]:
        # first in the list: v's step reads w before w's own step on the batch
        return [*self.personal(), Averaged("global")]

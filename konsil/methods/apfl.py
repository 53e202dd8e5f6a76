"""APFL (Deng, Kamani, Mahdavi 2020, Algorithm 1): a mixture of a model of one's own and FedAvg's.

Beside FedAvg's w each site keeps v_k, and answers with vbar = a v + (1 - a) w. On every batch
v <- v - eta a grad f(vbar), and a itself follows its gradient <v - w, grad f(vbar)>. With a fixed
a = 0 the site answers with FedAvg's model, with a = 1 it trains alone; w is FedAvg's in any case.
The published code overwrites v by the mixture every round; the algorithm does not, nor does this.
"""

import torch
from pydantic import Field
from torch import Tensor

from konsil.ingredients.context import MethodSettings, Upload
from konsil.ingredients.method import method
from konsil.ingredients.personaliser import OwnModel, Personalised, personaliser
from konsil.ingredients.site import Site
from konsil.weights import Parts, Weights, mix


class APFLSettings(MethodSettings):
    """Not adaptive, alpha = 0 is FedAvg and alpha = 1 is local training."""

    alpha: float = Field(0.5, ge=0, le=1)  # at the start, if adaptive
    adaptive: bool = True
    alpha_lr: float | None = Field(None, gt=0, description="the experiment's lr")


@personaliser("apfl")
class APFLPersonaliser(OwnModel):
    """v_k, trained where it is used: in the mixture."""

    Settings = APFLSettings

    def begin(self, site: Site, shared: Parts) -> None:
        """Go on with v_k and a."""
        self.site = site
        self.w = site.running("global")
        self.v = site.learner("personal", site.private["personal"])
        self.alpha = self.alpha_of(site)

    def see(self, x: Tensor, y: Tensor) -> None:
        """One step of v and a, both from the values before it and from one gradient at vbar."""
        v, w, a = self.v.parameters, self.w.parameters, self.alpha
        with self.v.at(torch.lerp(w, v, a)):  # exact at both ends, in one pass over memory
            self.v.accumulate(self.site.task.loss(self.v(x), y))
        if self.settings.adaptive:
            self.alpha = self.moved(a, float(torch.dot(v - w, self.v.grad)))
        self.v.grad.mul_(a)
        self.v.apply()

    def moved(self, a: float, slope: float) -> float:
        """a <- a - eta_a <v - w, grad f(vbar)>, kept in [0, 1]."""
        rate = self.settings.alpha_lr or self.context.training.lr
        return min(max(a - rate * slope, 0.0), 1.0)

    def end(self, upload: Upload) -> None:
        """v_k and a stay at the site."""
        self.site.private["personal"] = self.v.weights()
        self.site.notes["alpha"] = self.alpha

    def alpha_of(self, site: Site) -> float:
        """The site's a."""
        return float(site.notes.get("alpha", self.settings.alpha))

    def opinion(self, site: Site, shared: Parts) -> Weights:
        """vbar of v_k and the received mean."""
        a, v = self.alpha_of(site), site.private["personal"]
        vbar = mix([(a, v), (1 - a, shared["global"])])
        return vbar.with_statistics_of(v)  # v's learner ran as vbar: the statistics are vbar's


@method("apfl", paper="Deng, Kamani, Mahdavi, 2020, Algorithm 1")
class APFL(Personalised):
    """FedAvg, and a model a site that is used and trained mixed with FedAvg's."""

    Settings = APFLSettings
    Personaliser = APFLPersonaliser

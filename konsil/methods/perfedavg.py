"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, Algorithm 1): a start that adapts well.

The shared model minimises the loss *after* one gradient step at the site, F_k(w) =
f_k(w - alpha grad f_k(w)). With three batches B1, B2, B3 and u = w - alpha grad f(w; B1) its
gradient is (I - alpha H(w; B3)) grad f(u; B2), by one of the paper's two approximations:

    first_order    d = grad f(u; B2): the Hessian H is left out
    hessian_free   d - alpha (grad f(w + delta d; B3) - grad f(w - delta d; B3)) / (2 delta)

B2 is the batch that every method sees, so with inner_lr = 0 both are FedAvg. Each site answers
with the mean after `adapt_steps` gradient steps on its training images; with 0 steps, the mean.
"""

from itertools import islice
from typing import Literal

from pydantic import Field
from torch import Tensor

from konsil.ingredients.context import MethodSettings, Shared
from konsil.ingredients.method import Method, method
from konsil.ingredients.piece import AveragedStart, Piece
from konsil.ingredients.site import Site
from konsil.weights import Weights

Batch = tuple[Tensor, Tensor]


class PerFedAvgSettings(MethodSettings):
    """inner_lr = 0 is FedAvg; adapt_steps = 0 answers with the global model."""

    variant: Literal["first_order", "hessian_free"] = "first_order"
    inner_lr: float = Field(0.01, ge=0)  # alpha
    adapt_steps: int = Field(1, ge=0)
    delta: float = Field(1e-3, gt=0)  # how far from w the two gradients of hessian_free are taken


class AdaptableStart(AveragedStart):
    """The shared start w, and what a few steps at the site make of it."""

    def __init__(self, part: str, settings: PerFedAvgSettings) -> None:
        super().__init__(part)
        self.settings = settings

    def work(self) -> float:
        """One gradient a batch of B1 and of B2, and two of B3."""
        return 2.0 if self.settings.variant == "first_order" else 4.0

    def begin(self, site: Site, shared: Shared) -> None:
        """As many inner and Hessian batches as there are batches: none runs out."""
        super().begin(site, shared)
        self.inner = site.batches("inner")
        self.hessian = site.batches("hessian")

    def on_batch(self, x: Tensor, y: Tensor) -> None:
        """One outer step: the optimiser's, along the gradient of the loss after an inner step."""
        alpha, w = self.settings.inner_lr, self.w.parameters
        u = w - alpha * self.gradient_aside(w, next(self.inner))
        d = self.gradient(u, (x, y))
        if self.settings.variant == "hessian_free":
            d -= alpha * self.hessian_times(d, next(self.hessian))
        self.w.grad.copy_(d)
        self.w.apply()

    def hessian_times(self, d: Tensor, batch: Batch) -> Tensor:
        """H(w) d by a central difference. Its length, not that of d, decides how far it looks."""
        length = float(d.norm())
        if length == 0:
            return d
        w, delta = self.w.parameters, self.settings.delta / length
        ahead = self.gradient_aside(w + delta * d, batch)
        behind = self.gradient_aside(w - delta * d, batch)
        return (ahead - behind) / (2 * delta)

    def gradient_aside(self, values: Tensor, batch: Batch) -> Tensor:
        """A gradient whose forward pass does not count in the norm statistics: B2's do."""
        with self.w.statistics_kept():
            return self.gradient(values, batch)

    def gradient(self, values: Tensor, batch: Batch) -> Tensor:
        """The gradient of the batch's loss at these values."""
        x, y = batch
        with self.w.at(values):
            self.w.accumulate(self.site.task.loss(self.w(x), y))
        result = self.w.grad.clone()
        self.w.grad.zero_()
        return result

    def answers(self, site: Site, shared: Shared) -> dict[str, Weights]:
        """The start, and the site's model that a few steps make of it."""
        return super().answers(site, shared) | {"personal": self.adapted(site, shared)}

    def adapted(self, site: Site, shared: Shared) -> Weights:
        """The received mean after plain gradient steps on training images.

        They borrow the learner, which `begin` loads anew; its optimiser takes no step here.
        """
        steps = self.settings.adapt_steps
        model = site.learner(self.part, shared[self.part])
        for x, y in islice(site.batches("adapt", epochs=steps), steps):
            model.accumulate(site.task.loss(model(x), y))
            model.parameters.sub_(model.grad, alpha=self.settings.inner_lr)
            model.grad.zero_()
        return model.weights()


@method("perfedavg", paper="Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, Algorithm 1")
class PerFedAvg(Method):
    """One start for all, from which a few gradient steps lead to a site's own model."""

    Settings = PerFedAvgSettings

    def personal(self) -> list[Piece]:
        return [AdaptableStart("personal", self.settings)]

    def pieces(self) -> list[Piece]:
        return [AdaptableStart("global", self.settings)]

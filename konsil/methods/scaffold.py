"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1): controls against client drift.

A site's control c_k stands for its mean gradient, the server's c for that of all sites. Local
steps go along g - c_k + c: the direction of all, with the site's own noise. After M steps
c_k+ = c_k - c + (x - y) / (M eta) (option II); then x <- x + eta_g (mean y_k - x) and
c <- c + sum_k p_k (c_k+ - c_k), with the weights p_k that the model has (1/N in the paper).
Round 1 is FedAvg's, as all controls are zero; frozen there, every round is.

Option II is the mean gradient only if steps go along gradients. With Adam they do not; either
correction below is consistent there, and with plain SGD they are the same:

- gradient: g - c_k + c goes through the optimiser, and c_k+ is the mean of the raw gradients g.
- direction: the optimiser takes g, then y <- y - eta (c - c_k). Controls are mean steps of the
  optimiser, and option II is exact.

Controls are for trainable values only; running statistics are averaged as in FedAvg. A site that
is away keeps its control and its share of c; so does one whose reply the server does not take
(late, refused), as it goes back to the round before.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from konsil.ingredients.context import Means, MethodSettings, Shared, Upload
from konsil.ingredients.learner import Learner
from konsil.ingredients.method import Method, method
from konsil.ingredients.piece import Averaged, Piece
from konsil.ingredients.server_optimizer import ServerMomentum, partial_step, trainable_part
from konsil.ingredients.site import Site
from konsil.weights import Weights, mix


class ScaffoldSettings(MethodSettings):
    """freeze_controls with server_lr = 1 is FedAvg."""

    correction: Literal["gradient", "direction"] = "gradient"  # before or after Adam
    server_lr: float = Field(1.0, gt=0)  # eta_g
    freeze_controls: bool = False  # they stay zero: to see what they change


@method("scaffold", paper="Karimireddy et al., ICML 2020, Algorithm 1")
class Scaffold(Method):
    """FedAvg whose local steps are corrected for where the other sites want to go."""

    Settings = ScaffoldSettings

    def pieces(self) -> list[Piece]:
        """The global model; `server.momentum` takes its mean as a direction, with eta_g."""
        beta, eta = self.context.momentum, self.settings.server_lr
        return [Averaged("global", server=ServerMomentum(beta, eta) if beta else None)]

    def start(self) -> dict[str, Weights]:
        """The global model x and its control c = 0."""
        parts = super().start()
        return parts | {"control": Weights.zeros(trainable_part(parts["global"]).layout)}

    def local(self, site: Site, shared: Shared) -> Upload:
        """Lines 7-14: corrected steps; the model and the change of the control are sent."""
        c = shared["control"]
        c_k = site.private.get("control", Weights.zeros(c.layout))  # zero for newcomers
        y = site.learner("global", shared["global"])
        train = by_gradient if self.settings.correction == "gradient" else by_direction
        new = Weights(c.layout, train(site, y, (c - c_k).trainable.to(y.device)).cpu())
        site.private["control"] = c_k if self.settings.freeze_controls else new
        upload = Upload().add("global", y.weights(), weight=site.weight)
        return upload.add("control", site.private["control"] - c_k, weight=site.weight)

    def merge(self, shared: Shared, means: Means) -> Shared:
        """Lines 16-17. Absent sites keep their controls, and with them their share of c."""
        answered = sum(self.context.share(site) for site in means.sites)
        new = super().merge(shared, means)
        if not self.context.momentum:
            eta_g = self.settings.server_lr
            new["global"] = partial_step(shared["global"], means["global"], eta_g)
        new["control"] = mix([(1.0, shared["control"]), (answered, means["control"])])
        return new


def by_gradient(site: Site, y: Learner, correction: Tensor) -> Tensor:
    """Steps of the optimiser along g + correction; c_k+ is the mean of the raw g."""
    total, steps = torch.zeros_like(y.parameters), 0
    for images, target in site.batches():
        y.accumulate(site.task.loss(y(images), target))
        total.add_(y.grad)
        y.grad.add_(correction)
        y.apply()
        steps += 1
    return total / steps


def by_direction(site: Site, y: Learner, correction: Tensor) -> Tensor:
    """Steps of the optimiser along g, each corrected; c_k+ by option II, with the real M."""
    x, steps = y.parameters.clone(), 0
    for images, target in site.batches():
        y.step(site.task.loss(y(images), target))
        y.parameters.sub_(correction, alpha=y.lr)
        steps += 1
    return (x - y.parameters) / (steps * y.lr) - correction

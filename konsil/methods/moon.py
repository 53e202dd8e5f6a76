"""MOON (Li, He and Song, CVPR 2021, Eq. 3-4): what a site sees stays near what all see.

To the task's loss comes mu times the model-contrastive loss: the features z of the model in
training are drawn to those of the global model, z_g, and away from those of the site's model of
the round before, z_prev:

    -log( exp(cos(z, z_g) / tau) / (exp(cos(z, z_g) / tau) + exp(cos(z, z_prev) / tau)) )

z is what a classifier's head sees, or a U-Net's bottleneck averaged over the image: the paper's
projection head, one more network, is left out, so that all methods train the same model. In a
site's first round its model of the round before is the global one, and the term has no gradient.
With mu = 0 it is FedAvg.
"""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from konsil.ingredients.context import Shared, Upload
from konsil.ingredients.method import method
from konsil.ingredients.site import Site
from konsil.methods.fedavg import FedAvg, FedAvgSettings


class MoonSettings(FedAvgSettings):
    """mu = 0 is FedAvg."""

    mu: float = Field(1.0, ge=0)
    tau: float = Field(0.5, gt=0)  # temperature


@method("moon", paper="Li et al., CVPR 2021, Eq. 3-4")
class Moon(FedAvg):
    """FedAvg with a contrast of features: near the global model's, far from one's last own."""

    Settings = MoonSettings

    def work(self) -> float:
        """FedAvg's, and two forwards for z_g and z_prev."""
        return 1 + 2 / 3 if self.settings.mu else 1.0

    def local(self, site: Site, shared: Shared) -> Upload:
        """FedAvg's steps along the two losses."""
        if not self.settings.mu:
            return super().local(site, shared)
        model = site.learner("global", shared["global"])
        w_g = site.localised("global", shared["global"])
        # in evaluation mode: they must not change, not even in their running statistics
        global_net = site.frozen("global", w_g)
        previous_net = site.frozen("previous", site.private.get("previous", w_g))
        for x, y in site.batches():
            logits, z = model.with_features(x)
            with torch.no_grad():
                z_g, z_prev = (net.with_features(x)[1] for net in (global_net, previous_net))
            contrast = contrastive_loss(z, z_g, z_prev, self.settings.tau)
            model.step(site.task.loss(logits, y) + self.settings.mu * contrast)
        site.private["previous"] = model.weights()
        return Upload().add("global", site.private["previous"], weight=site.weight)


def contrastive_loss(z: Tensor, z_g: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """Eq. 3, the mean over the images: -log(e^a / (e^a + e^b)) = log(1 + e^(b - a))."""
    a, b = cosine_similarity(z, z_g), cosine_similarity(z, z_prev)
    return softplus((b - a) / tau).mean()

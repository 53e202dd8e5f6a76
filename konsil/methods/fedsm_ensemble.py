"""FedSM's ensemble (Xu et al., CVPR 2022, Sec. 3.1.1): the selector weighs all models' answers.

Phase 1 and what is handed out are FedSM-extra's. In phase 2 the selector's softmax s mixes the
probability maps of the frozen models, h = sum_{k=0..K} s_k h_k, and is trained through L(h, y).
The paper found it worse than the global model; it is here as the baseline that it is.
"""

import torch
from torch import Tensor, softmax

from konsil.errors import ConfigError
from konsil.ingredients.context import Shared, Upload
from konsil.ingredients.method import method
from konsil.ingredients.site import Site
from konsil.methods.fedsm_extra import FedSMExtra, TwoPhaseSettings, frozen
from konsil.methods.selector import SELECTOR, Selector
from konsil.networks.outputs import blended
from konsil.weights import Weights


@method("fedsm-ensemble", paper="Xu et al., CVPR 2022, Sec. 3.1.1")
class FedSMEnsemble(FedSMExtra):
    """FedSM's models, then a selector that learns to mix their answers."""

    Settings = TwoPhaseSettings
    best_by = (("global", "global"), (SELECTOR, "ensemble"))

    @property
    def routing(self) -> str:
        return "ensemble"

    def check(self) -> None:
        """The selector learns through the mixture: there are no labels to solve for."""
        super().check()
        if type(self.selector) is not Selector:
            raise ConfigError(
                f"selector_optimizer = {self.settings.selector_optimizer}: the ensemble's selector "
                "is trained through the models' answers, batch by batch; choose average_moments"
            )

    def _selector_warnings(self) -> list[str]:
        return []  # no one-class problem: the mixture's loss sees all models at every site

    def study(self, site: Site, models: list[Weights]) -> None:
        """Keep the frozen models: every batch of phase 2 asks all of them."""
        for name, model in zip(self.context.sites, models[1:], strict=True):
            site.private[frozen(name)] = model

    def select(self, site: Site, shared: Shared) -> Upload:
        """L(sum_k s_k h_k, y), with the models frozen."""
        w_s = site.learner(SELECTOR, shared[SELECTOR])
        for x, y in site.batches():
            mixture = self.mixture(site, softmax(w_s(x), dim=1), x)
            w_s.step(site.task.loss(mixture, y))
        return Upload().add(SELECTOR, w_s.weights(), weight=site.images)

    def mixture(self, site: Site, shares: Tensor, x: Tensor) -> Tensor:
        """The frozen models' answers, mixed, as logits; one network says them all in turn."""
        models = ["global", *map(frozen, self.context.sites)]
        with torch.no_grad():
            logits = [site.frozen("candidate", site.private[name])(x) for name in models]
        return blended(site.task.targets, logits, shares)

    def selector_measures(self, site: Site, shared: Shared) -> dict[str, float]:
        """How good the mixture is on the site's validation images."""
        w_s, scores = site.eval_network(SELECTOR, shared[SELECTOR]), []
        with torch.no_grad():
            for x, y in site.in_order(site.validation):
                mixture = self.mixture(site, softmax(w_s(x), dim=1), x)
                scores.append(site.task.columns(mixture, y)[site.task.main_metric])
        return {"ensemble": float(torch.cat(scores).mean())}

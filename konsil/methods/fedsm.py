"""FedSM (Xu et al., CVPR 2022): global model, one specialist a site, and a selector.

`pieces` is Algorithm 1; the loop over sites, batches and pieces (lines 3-5, 7, 10, 12, 14) is the
one of all methods, `train` and `merged` in `konsil/ingredients/piece.py`. SoftPull (line 16,
Eq. 11) is finished by the site: `konsil/ingredients/softpull.py`. How the selector learns, and why
that is delicate, is `selector.py` beside this file; Algorithm 2 (inference) is `supermodel/`.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from konsil.errors import ConfigError
from konsil.ingredients.context import Context
from konsil.ingredients.method import Method, borrowed, method
from konsil.ingredients.optimizers import OptimizerPolicy
from konsil.ingredients.piece import Averaged, Piece
from konsil.ingredients.server_optimizer import ServerOptimizer
from konsil.ingredients.softpull import SoftPullSettings, softpull_pieces
from konsil.methods.selector import SELECTORS, Selector, SelectorOptimizer

FEW_ROUNDS = 100  # below this, selectors trained by gradients have not been seen to converge
SOFTPULL = {"name": "softpull"}


class SuperModelSettings(SoftPullSettings):
    """lambda = 1/K with equal sites is the plain average, lambda = 1 is local training."""

    # SoftPull's lambda, lambda_guard and allow_extrapolation, and:
    # Table 6: softpull, or ft, apfl, perfedavg, pfedme, ditto; {name: apfl, alpha: 0.5} with
    # settings. They have no lambda of SoftPull's.
    personaliser: dict[str, Any] = Field(SOFTPULL, description="softpull")
    # fedavgm, fedadam or fedyogi, or {name: fedavgm, momentum: 0.5}: under the means of the global
    # model and of SoftPull's specialists
    server_optimizer: dict[str, Any] | None = Field(None, description="none")
    # any network for classification: small, vgg11, vgg11_pooled, ..., or one of your own
    selector: str | None = Field(None, description="small, or features with closed_form")
    selector_lr: float | None = Field(None, gt=0, description="the experiment's lr")  # eta_s
    selector_optimizer: SelectorOptimizer = "average_moments"
    selector_epochs: int | None = Field(None, ge=1, description="training.local_epochs")
    global_optimizer_state: OptimizerPolicy = "persist"
    personal_optimizer_state: OptimizerPolicy = "persist"

    @field_validator("personaliser", "server_optimizer", mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given


class FedSMSettings(SuperModelSettings):
    """lambda = 1/K with equal sites is the plain average, lambda = 1 is local training."""

    # solved after training, from the global model's first layers; Algorithm 1 trains one instead
    selector_optimizer: SelectorOptimizer = "encoder"
    # whom the super model asks: by a threshold (Algorithm 2), by the expected score, by blending,
    # or by whichever of these is best on validation images
    routing: Literal["auto", "threshold", "utility", "blend"] = "utility"


@method("fedsm", paper="Xu et al., CVPR 2022, Algorithms 1-2")
class FedSM(Method):
    """A super model: FedAvg's model, SoftPull's specialists, and a selector of sites."""

    Settings: ClassVar[type[SuperModelSettings]] = FedSMSettings
    super_model = True
    selector: Selector
    further_outputs = 0  # of the selector, beside one a site

    def pieces(self) -> list[Piece]:
        s = self.settings
        self.models: list[Piece] = [
            # in front: some personalisers read the global model before its step on the batch
            *self.specialists(self.context),  # lines 2, 6, 9, 13, 15, 16
            # lines 2, 6, 8, 13, 15
            Averaged("global", s.global_optimizer_state, server=self.optimizer()),
        ]
        kind, policy = SELECTORS[s.selector_optimizer]
        more = self.further_outputs, s.selector_epochs
        self.selector = kind(policy, s.selector, s.selector_lr, *more)
        return [*self.models, self.selector]  # lines 2, 6, 11, 13, 15

    @property
    def routing(self) -> str:
        """The setting: Algorithm 2, or a rule beyond it."""
        return str(self.settings.routing)

    def specialists(self, context: Context) -> list[Piece]:
        """SoftPull's, or another method's in their place (Table 6)."""
        given = self.settings.personaliser
        if given == SOFTPULL:
            state = self.settings.personal_optimizer_state
            pieces = softpull_pieces(self.settings, context, state, self.optimizer())
        elif given.get("name") == "softpull":
            raise ConfigError(
                f"personaliser = {given}: SoftPull's settings (lambda, ...) are FedSM's own; "
                "write them beside personaliser"
            )
        else:
            pieces = borrowed(given, "personal", context, "personaliser").personal()
        for piece in pieces:
            piece.bind(context)
        return pieces

    def optimizer(self) -> ServerOptimizer | None:
        """What takes the means of both models as directions, if anything does."""
        given = self.settings.server_optimizer
        if given is None:
            return None
        return borrowed(given, "server", self.context, "server_optimizer").server()

    def warnings(self) -> list[str]:
        return super().warnings() + self._ignored() + self._selector_warnings()

    def _ignored(self) -> list[str]:
        default = SuperModelSettings.model_fields["lambda_"].default
        if self.settings.personaliser == SOFTPULL or self.settings.lambda_ == default:
            return []
        return [f"lambda is SoftPull's: {self.settings.personaliser['name']} does not know it"]

    def _selector_warnings(self) -> list[str]:
        optimizer = self.settings.selector_optimizer
        if "known_to_fail" in optimizer:
            return [f"selector_optimizer {optimizer}: Algorithm 1 to the letter trains no selector"]
        if optimizer not in ("closed_form", "encoder") and self.context.rounds < FEW_ROUNDS:
            return [
                f"selector_optimizer {optimizer} can take a hundred rounds to tell sites apart; "
                "closed_form takes one (docs/methods.md)"
            ]
        return []

"""A pull towards an anchor while training: the term (mu / 2) ||w - anchor||^2."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from konsil.ingredients.learner import Learner

# With Adam the two differ: coupled, the term's gradient is rescaled like every other gradient;
# decoupled (as AdamW does with weight decay), the pull has the strength it says.
Coupling = Literal["coupled", "decoupled"]


@dataclass(frozen=True)
class Pull:
    """Steps along the gradient of loss + (mu / 2) ||w - anchor||^2: a `Step` of `Averaged`."""

    mu: float
    coupling: Coupling = "coupled"

    def __call__(self, model: Learner, loss: Tensor, anchor: Tensor) -> None:
        """One step. With mu = 0 it is `model.step(loss)`, bit for bit."""
        model.accumulate(loss)
        if self.coupling == "coupled":
            model.grad.add_(model.parameters - anchor, alpha=self.mu)
        away = model.parameters - anchor if self.coupling == "decoupled" else None
        model.apply()
        if away is not None:
            model.parameters.sub_(away, alpha=model.lr * self.mu)

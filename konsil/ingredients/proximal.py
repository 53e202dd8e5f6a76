"""A pull towards an anchor while training: the term (mu / 2) ||w - anchor||^2."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from konsil.ingredients.learner import Learner

# With Adam the two differ: coupled, the term's gradient is rescaled like every other gradient;
# decoupled (as AdamW does with weight decay), the pull has the strength it says.
Coupling = Literal["coupled", "decoupled"]


def step_with_pull(
    model: Learner, loss: Tensor, mu: float, anchor: Tensor, coupling: Coupling
) -> None:
    """One optimiser step along the gradient of loss + (mu / 2) ||w - anchor||^2.

    With mu = 0 it is `model.step(loss)`, bit for bit.
    """
    model.accumulate(loss)
    if coupling == "coupled":
        model.grad.add_(model.parameters - anchor, alpha=mu)
    away = model.parameters - anchor if coupling == "decoupled" else None
    model.apply()
    if away is not None:
        model.parameters.sub_(away, alpha=model.lr * mu)

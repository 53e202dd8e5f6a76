"""pFedMe (T Dinh, Tran, Nguyen, NeurIPS 2020, Algorithm 1): Moreau envelopes.

On every batch a site moves theta by `inner_steps` steps on f(theta; B) + (lambda / 2)
||theta - w||^2, then w along the envelope's gradient lambda (w - theta). Sites answer with theta,
the server keeps (1 - beta) w + beta mean(w_k). theta begins each round at w, with fresh moments.

The step of w is the experiment's optimiser's. With SGD that is the paper's
w <- w - eta lambda (w - theta). With Adam inside, theta is about one learning rate away from w,
so that the paper's step would be of the order eta^2 lambda: the global model stays at chance.

With beta = 0 the global model never moves. With lambda = 0 and one inner step w never moves
either, and theta is FedAvg's local model of the first round.
"""

from pydantic import Field
from torch import Tensor

from konsil.errors import ConfigError
from konsil.ingredients.context import Means, MethodSettings, Shared, TrainedNetwork, Upload
from konsil.ingredients.method import Method, method
from konsil.ingredients.piece import AveragedStart, Piece
from konsil.ingredients.proximal import Pull
from konsil.ingredients.site import Site
from konsil.weights import Weights, mix


class PFedMeSettings(MethodSettings):
    """beta = 0 leaves the global model where it began, and so does lambda = 0."""

    # the paper's 15 goes with SGD; through Adam so strong a pull drowns the loss's own gradient
    lambda_: float = Field(5.0, ge=0, alias="lambda")
    inner_steps: int = Field(5, ge=1)  # K
    inner_lr: float | None = Field(None, gt=0, description="the experiment's lr")
    beta: float = Field(1.0, ge=0)  # above 1 the server extrapolates


class MoreauEnvelope(AveragedStart):
    """The shared w, and theta, which stays near it. "Per-FedMe" in Table 6 of FedSM is this."""

    def __init__(self, part: str, settings: PFedMeSettings) -> None:
        super().__init__(part)
        self.settings, self.pull = settings, Pull(settings.lambda_)

    def check(self) -> None:
        """With SGD the pull overshoots from inner_lr * lambda = 2 on."""
        training, s = self.context.training, self.settings
        rate = s.inner_lr or training.lr
        if training.optimizer == "sgd" and rate * s.lambda_ >= 2:
            raise ConfigError(
                f"lambda = {s.lambda_:g}: times inner_lr = {rate:g} it is 2 or more, "
                "which sends theta away from w in ever larger steps; lower one of them"
            )

    def networks(self) -> dict[str, TrainedNetwork]:
        """w, and theta with an optimiser that forgets."""
        theta = TrainedNetwork(self.context.network, "reset", self.settings.inner_lr)
        return super().networks() | {"theta": theta}

    def work(self) -> float:
        """The inner steps; the step of w needs no pass."""
        return float(self.settings.inner_steps)

    def begin(self, site: Site, shared: Shared) -> None:
        super().begin(site, shared)
        self.theta = site.learner("theta", shared[self.part])

    def on_batch(self, x: Tensor, y: Tensor) -> None:
        """Lines 7-8: theta towards the proximal point of this batch, then w towards theta."""
        w = self.w.parameters
        for _ in range(self.settings.inner_steps):
            self.pull(self.theta, self.site.task.loss(self.theta(x), y), w)
        self.w.grad.add_(w - self.theta.parameters, alpha=self.settings.lambda_)
        self.w.apply()

    def end(self, upload: Upload) -> None:
        """theta stays, w is shared, with theta's norm statistics: w itself never sees an image."""
        theta = self.theta.weights()
        self.w.bound.load(self.w.weights().with_statistics_of(theta))
        self.site.private["theta"] = theta
        super().end(upload)

    def merge(self, shared: Shared, means: Means, new: Shared) -> None:
        """w <- (1 - beta) w + beta mean(w_k); a term with factor 0 is left out, to the bit."""
        beta = self.settings.beta
        terms = [(1 - beta, shared[self.part]), (beta, means[self.part])]
        new[self.part] = mix([term for term in terms if term[0] != 0], extrapolate=True)

    def answers(self, site: Site, shared: Shared) -> dict[str, Weights]:
        """w, and theta of the last local training; before any, the mean."""
        theta = site.private.get("theta", shared[self.part])
        return super().answers(site, shared) | {"personal": theta}


@method("pfedme", paper="T Dinh, Tran, Nguyen, NeurIPS 2020, Algorithm 1")
class PFedMe(Method):
    """A shared model of Moreau envelopes, and a model a site that is held near it."""

    Settings = PFedMeSettings

    def personal(self) -> list[Piece]:
        return [MoreauEnvelope("personal", self.settings)]

    def pieces(self) -> list[Piece]:
        return [MoreauEnvelope("global", self.settings)]

"""A network of its specification: normalisation, the net itself, and features for those who ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from konsil.errors import ConfigError
from konsil.networks.kinds import NETWORKS
from konsil.networks.layers import Classifier, PerImageNorm
from konsil.networks.spec import NetworkSpec, check_spec, target_arguments
from konsil.networks.target import target_class
from konsil.networks.watch import Watched, averaged


class Network(nn.Module):
    """A network with its own input normalisation.

    Parameter names are the same with and without normalisation, which has no parameters.
    """

    def __init__(
        self,
        net: nn.Module,
        normalise: bool,
        deepest: Callable[[nn.Module], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.entry = PerImageNorm() if normalise else nn.Identity()
        self.net = net
        self.deepest = deepest

    def forward(self, images: Tensor) -> Tensor:
        """Logits of raw images in [0, 1]."""
        logits: Tensor = self.net(self.entry(images))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """What the head of a classifier sees, [B, features]."""
        if not isinstance(self.net, Classifier):
            raise ConfigError("features: a segmentation network has none; use a classifier")
        return self.net.features(self.entry(images))

    def with_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and of the same pass one vector an image: what a classifier's head sees, or
        the average over a segmenter's bottleneck.
        """
        if isinstance(self.net, Classifier):
            features = self.net.features(self.entry(images))
            return self.net.head(features), features
        if self.deepest is not None:
            return self._seen_at(self.deepest(self.net), images)
        with Watched(self.net) as watched:
            logits = self(images)
        return logits, watched.bottleneck if logits.dim() == 4 else watched.before_head

    def _seen_at(self, module: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        hook = module.register_forward_hook(lambda *call: seen.append(call[2]))
        try:
            logits = self(images)
        finally:
            hook.remove()
        return logits, averaged(seen[0])


def build_network(spec: NetworkSpec) -> Network:
    """The network with random initial weights from torch's global generator."""
    check_spec(spec)
    if spec.is_target:
        return Network(target_class(spec.name)(**target_arguments(spec)), spec.normalise)
    kind = NETWORKS.find(spec.name, "network.name")
    options: dict[str, Any] = dict(spec.arguments)
    if kind.norm is not None:
        options["norm"] = spec.norm or kind.norm
    if spec.width is not None:
        options["width"] = spec.width
    net = kind.build(spec.in_channels, spec.outputs, **options)
    return Network(net, spec.normalise, kind.deepest)

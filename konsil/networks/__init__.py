"""The networks that sites train, built from a specification that fits into a JSON file.

Raw images in [0, 1] go in, logits come out. Nothing here knows about training, so that a saved
super model needs only this package.
"""

from konsil.networks.build import Network, arranged, build_network, decoder_of
from konsil.networks.layers import PerImageNorm
from konsil.networks.spec import (
    NETWORKS,
    NetworkSpec,
    check_spec,
    network,
    network_spec,
    networks_for,
)
from konsil.networks.trial import try_out

__all__ = [
    "NETWORKS",
    "Network",
    "NetworkSpec",
    "PerImageNorm",
    "arranged",
    "build_network",
    "check_spec",
    "decoder_of",
    "network",
    "network_spec",
    "networks_for",
    "try_out",
]

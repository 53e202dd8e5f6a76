"""Random streams by name, so that no stream depends on what ran before it.

Everything random in a run is drawn from (seed, site, round, purpose): an engine may compute sites
in any order, on any number of workers, or again after a crash, and draw the same numbers.

Torch is loaded when a stream of it is asked for: preparing data does without.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def digest(*names: object, between: str = "\x1f") -> bytes:
    """32 bytes that depend on every name and on their order, on every machine and version.

    What was drawn with other characters `between` the names stays with them.
    """
    return hashlib.sha256(between.join(map(str, names)).encode()).digest()


def derive(*names: object) -> int:
    """A 63-bit seed that depends on every name and on their order."""
    return int.from_bytes(digest(*names)[:8], "big") >> 1


def generator(*names: object) -> torch.Generator:
    """A CPU generator of its own for this purpose."""
    import torch  # here and not above: who only derives a seed does without

    return torch.Generator().manual_seed(derive(*names))


@contextmanager
def global_stream(*names: object) -> Iterator[None]:
    """Seed torch's global generator (initial weights, dropout) and put it back afterwards."""
    import torch

    if torch.cuda.is_available() or torch.backends.mps.is_available():
        with torch.random.fork_rng():
            torch.manual_seed(derive(*names))
            yield
        return
    # Where there is no GPU `torch.manual_seed` notes where it was called from, for the day that
    # one appears: two milliseconds, as much as a site of ten images trains.
    own = torch.default_generator.get_state()
    try:
        torch.default_generator.manual_seed(derive(*names))
        yield
    finally:
        torch.default_generator.set_state(own)

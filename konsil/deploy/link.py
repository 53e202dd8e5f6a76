"""What carries bytes between the coordinator and the sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from konsil.federation.messages import Failure

BytesFor = Callable[[str], bytes]  # a site's own; made when it is fetched, never all at once
Answer = tuple[str, bytes | Failure]  # from which site


class Link(Protocol):
    """Carries bytes between the coordinator and the sites; knows nothing of their meaning."""

    def send(
        self, topic: str, sites: Sequence[str], message: BytesFor, deadline: float | None = None
    ) -> Iterator[Answer]:
        """To each site its own bytes; answers in the order of arrival.

        A Failure for each site that has not answered after `deadline` seconds, or is gone.
        """

    def too_late(self) -> list[tuple[str, bytes]]:
        """Answers, since the last call, that came when nobody waited for them any more."""

    def here(self, site: str) -> bool:
        """Whether a site is connected now."""

"""A link without an engine: the clients of all sites in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from konsil.config import Experiment
from konsil.deploy.agreement import without_places
from konsil.deploy.coordinator import Answer, BytesFor, coordinate
from konsil.deploy.policy import Policy
from konsil.deploy.site_client import SiteClient
from konsil.federation.messages import Failure


class DirectLink:
    """Hands bytes over; keeps all that passed, for tests that look for what should not."""

    def __init__(self, clients: Mapping[str, SiteClient]) -> None:
        self.clients = dict(clients)
        self.passed: list[tuple[str, str, bytes]] = []
        self.gone: set[str] = set()
        self.slow: set[str] = set()  # they compute, and answer after the deadline
        self._late: list[tuple[str, bytes]] = []

    def send(
        self, topic: str, sites: Sequence[str], message: BytesFor, deadline: float | None = None
    ) -> Iterator[Answer]:
        for site in reversed(sites):  # the order of arrival is not the roster's
            if site in self.gone:
                yield site, Failure(site, "not connected")
                continue
            payload = message(site)
            self.passed.append((topic, site, payload))
            answer = self.clients[site].answer(topic, payload)
            self.passed.append((topic, site, answer))
            if site in self.slow:
                self._late.append((site, answer))
                yield site, Failure(site, "no answer before the deadline")
                continue
            yield site, answer

    def here(self, site: str) -> bool:
        return site not in self.gone

    def too_late(self) -> list[tuple[str, bytes]]:
        late, self._late = self._late, []
        return late


def clients(
    experiment: Experiment, folder: Path, sites: list[str], policies: Mapping[str, Policy] = {}
) -> dict[str, SiteClient]:
    """One client a site; each opens its own part of the experiment's federation."""
    block = experiment.federation.model_dump(exclude_unset=True)
    source: dict[str, Any] = {k: v for k, v in block.items() if k in ("folder", "csv", "file")}
    source |= {k: v for k, v in block.items() if k == "synthetic"}
    return {
        site: SiteClient(site, source, policies.get(site, Policy()), folder / "clients" / site)
        for site in sites
    }


def deploy(
    experiment: Experiment, folder: Path, sites: list[str], policies: Mapping[str, Policy] = {}
) -> DirectLink:
    """The whole experiment over a direct link; the run is in folder/run."""
    link = DirectLink(clients(experiment, folder, sites, policies))
    coordinate(without_places(experiment), sites, link, folder / "run")
    return link

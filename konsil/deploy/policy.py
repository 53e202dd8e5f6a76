"""What a site agrees to: its `policy.yaml`, on its own disk, which nobody else can change."""

from collections import Counter
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from konsil.config import Block, Experiment, checked, number_of_bytes, parse_yaml
from konsil.errors import KonsilError
from konsil.federation.plan import Plan


class PolicyRefused(KonsilError):
    """What a site does not agree to. The text may be sent: it names no file and no patient."""


class Policy(Block):
    """Every key is a limit; a site without a file agrees to the defaults."""

    methods: list[str] | None = None  # default: any
    max_payload: int | str = "1 GB"  # of one message, either way
    hand_out_specialist: bool = True  # at the end, for the super model
    scores: Literal["images", "means"] = "images"  # what leaves of the evaluation
    min_training_images: int = Field(1, ge=1)
    min_sites_in_mean: int = Field(1, ge=1)
    # files that this site has looked at: methods, networks and tasks of one's own (.py), and what
    # a network may begin with (.safetensors)
    plugins: list[Path] = Field(default_factory=list)
    # classes, or packages of classes, that this site lets `network: {target: ...}` name
    network_targets: list[str] = Field(default_factory=lambda: ["monai.networks.nets"])

    @field_validator("max_payload")
    @classmethod
    def _readable(cls, limit: int | str) -> int | str:
        number_of_bytes(limit)
        return limit

    def check_size(self, size: int, what: str) -> None:
        """Refuse a message that is too large."""
        if size > number_of_bytes(self.max_payload):
            raise PolicyRefused(
                f"{what} of {size:,} bytes: max_payload of this site's policy is {self.max_payload}"
            )

    def check_choices(self, experiment: Experiment) -> None:
        """Refuse an experiment with a method or a network that was not agreed to."""
        names = [method.name for method in experiment.methods]
        refused = [name for name in names if self.methods is not None and name not in self.methods]
        if refused:
            allowed = ", ".join(self.methods or [])
            raise PolicyRefused(f"method {', '.join(refused)}: this site's policy allows {allowed}")
        self.check_network(experiment.network.target)

    def check_network(self, target: str | None) -> None:
        """Refuse a class that was not agreed to, before its module is imported."""
        if target is not None and not any(
            f"{target}.".startswith(f"{allowed}.") for allowed in self.network_targets
        ):
            raise PolicyRefused(
                f"network.target = {target}: network_targets of this site's policy allows "
                f"{', '.join(self.network_targets) or 'none'}"
            )

    def check_plan(self, plan: Plan, site: str) -> None:
        """Refuse a plan that asks for more than was agreed to."""
        self.check_choices(plan.experiment)
        images = plan.counts[site]["train"]
        if images < self.min_training_images:
            raise PolicyRefused(
                f"{images} training images: this site's policy asks for at least "
                f"{self.min_training_images}, so that a model does not learn single patients"
            )
        together = fewest_in_a_mean(plan)
        if together < self.min_sites_in_mean:
            raise PolicyRefused(
                f"server.min_sites and server.absences: a mean may be of {together} sites, this "
                f"site's policy asks for at least {self.min_sites_in_mean}"
            )
        for job in plan.jobs:
            method = plan.method(job)
            if method.pooled:
                raise PolicyRefused(f"method {method.name}: it would move images to one place")
            if method.needs == "individual" and not self.hand_out_specialist:
                raise PolicyRefused(
                    f"method {method.name}: the server needs each site's own model, and this "
                    "site's policy has hand_out_specialist: false"
                )


def fewest_in_a_mean(plan: Plan) -> int:
    """With how many sites the server would go on, in the round that needs the fewest."""
    server = plan.experiment.server
    asked = server.asked(len(plan.sites))
    if server.min_sites:
        return min(server.min_sites, asked)
    away = Counter(
        number
        for site in plan.sites
        for number in set(server.absences.get(site, []))
        if 1 <= number <= plan.experiment.rounds
    )
    return max(1, asked - max(away.values(), default=0))


def read_policy(path: Path | None) -> Policy:
    """The policy of a file; without one, the defaults."""
    return Policy() if path is None else checked(Policy, parse_yaml(path, "policy"), str(path))

"""deploy.yaml: who takes part, and where the server is; what a site's processes are told."""

import re
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationInfo, field_validator

from konsil.config import Block, checked, parse_yaml
from konsil.errors import ConfigError
from konsil.files import write_text

SERVER, ADMIN = "server", "admin"  # the folders of their kits
ORGANISATION, ROLE = "konsil", "project_admin"  # what certificates say of every party, of the admin
NAME = r"^[A-Za-z0-9_-]{1,60}$"
LABEL = "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"  # of a host's name
HOST = rf"^(?=.{{1,64}}$)({LABEL}\.)*{LABEL}$"
EMAIL = r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}$"
ADDRESSES = {
    "server": (HOST, "a host's name or an IPv4 address"),
    "admin": (EMAIL, "an e-mail address, such as lead@hospital.org"),
}
RUN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")  # it becomes a folder


class Deployment(Block):
    """A deployment file: the server's address, the sites and the admins."""

    name: str = Field("konsil", pattern=NAME)
    server: str = "localhost"  # its address, as the sites see it
    port: int = Field(8002, ge=1, le=65535)  # the only one that must be open, at the server only
    sites: list[str] = Field(min_length=1)
    admin: str = "admin@konsil.org"  # who submits: an e-mail address
    valid_days: int = Field(365, ge=1, le=3650)  # of every certificate

    @field_validator(*ADDRESSES)
    @classmethod
    def _address(cls, text: str, info: ValidationInfo) -> str:
        pattern, words = ADDRESSES[str(info.field_name)]
        if not re.match(pattern, text):
            raise ValueError(f"must be {words}")
        return text

    @field_validator("sites")
    @classmethod
    def _names(cls, sites: list[str]) -> list[str]:
        for site in sites:
            if not re.match(NAME, site):
                raise ValueError(
                    f"{site!r}: a site's name in a deployment is letters, digits, - and _ (it "
                    "stands in a certificate)"
                )
            if site.lower() in (SERVER, ADMIN):
                raise ValueError(f"{site!r}: not a site's name, there is a party of that name")
        lower = [site.lower() for site in sites]
        twice = sorted({site for site in sites if lower.count(site.lower()) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)}: every name once")
        return sites


class SiteSettings(Block):
    """What `konsil site start` writes down for the site's processes."""

    site: str
    source: dict[str, Any]  # the block `federation` of an experiment, as this site has it
    state: Path
    policy: Path | None = None
    device: str = ""

    @classmethod
    def read(cls, path: Path) -> Self:
        """The settings of a file."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: not a site's settings ({error})") from None

    def write(self, path: Path) -> None:
        """Write them down for the site's process to find."""
        write_text(path, self.model_dump_json(indent=1))


def read_deployment(path: Path) -> Deployment:
    """The deployment of a YAML file."""
    return check_deployment(parse_yaml(path, "deployment"), str(path))


def check_deployment(raw: dict[str, object], source: str) -> Deployment:
    """A checked deployment, or a ConfigError that lists every mistake."""
    return checked(Deployment, raw, source)

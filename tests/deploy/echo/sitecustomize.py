"""Puts an echo in the place of what coordinates and of what answers, in every process below."""

import sys
from importlib.abc import MetaPathFinder
from importlib.util import spec_from_file_location
from pathlib import Path

STUBS = {
    "konsil.deploy.coordinator": "echo_coordinator.py",
    "konsil.deploy.site_client": "echo_party.py",
}


class Stubs(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in STUBS:
            return spec_from_file_location(name, Path(__file__).parent / STUBS[name])
        return None


sys.meta_path.insert(0, Stubs())

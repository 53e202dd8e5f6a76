"""The same tiny federations as the tests of konsil/data have."""

from tests.data.conftest import build, shared_data  # noqa: F401

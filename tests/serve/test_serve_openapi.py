"""The API is what its description says: schemathesis tries what it allows, and what it does not."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, GenerationMode

schema = schemathesis.pytest.from_fixture("described")


@pytest.fixture(scope="session")
def described(served):
    """Of the running server."""
    loaded = schemathesis.openapi.from_url(f"{served.url}/api/openapi.json")
    loaded.config.generation.modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    return loaded


@schema.parametrize()
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_endpoint_keeps_its_word(case: Case) -> None:
    """No 500, no undocumented status, no body of another kind."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [not_a_server_error, status_code_conformance, content_type_conformance,
              response_schema_conformance]  # fmt: skip
    case.call_and_validate(checks=checks, timeout=120)


def test_everything_is_described(served):
    paths = served.client.get("/api/openapi.json").json()["paths"]
    assert {"/api/health", "/api/models", "/api/predict", "/api/mask"} <= set(paths)
    assert {"/info/", "/infer/{who}", "/session/", "/auth/"} <= set(paths)

"""The API is what its description says: schemathesis tries what it allows, and what it does not."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = 15
ENDPOINTS = [
    "GET /api/health",
    "GET /api/models",
    "POST /api/predict",
    "POST /api/mask",
    "GET /info/",
    "POST /infer/{who}",
    "PUT /session/",
    "GET /session/{name}",
    "DELETE /session/{name}",
    "GET /auth/",
    "POST /auth/token",
    "GET /auth/token/valid",
]


@pytest.fixture(scope="session")
def described(served):
    """Of the running server."""
    return schemathesis.openapi.from_url(f"{served.url}/api/openapi.json")


def test_everything_is_described(described):
    found = [one.ok() for one in described.get_all_operations()]
    assert {f"{one.method.upper()} {one.path}" for one in found} == set(ENDPOINTS)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_endpoint_keeps_its_word(described, endpoint, mode):
    """No 500, no undocumented status, no body of another kind than described."""
    method, path = endpoint.split()
    operation = described[path][method]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def tried(case):
        case.call_and_validate(checks=CHECKS, timeout=120)

    try:
        tried()
    except Exception as error:
        if "nsatisfiable" not in type(error).__name__:  # there is nothing it does not allow
            raise

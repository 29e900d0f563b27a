"""The OpenAPI document: well formed, and true of the service, as random calls made from it show."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from millpond.serving import http_app

from .answering import TARGETS, Answering

CHECKS = (
    not_a_server_error,
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

fetcher = Answering()
fetcher.batches = dict.fromkeys(("route", "aircraft"), fetcher.batches["route"])
schema = schemathesis.openapi.from_asgi("/openapi.json", http_app(fetcher))


# Arrow cannot be drawn from a document; tests/serving/http/test_arrow.py alters real streams.
@pytest.mark.filterwarnings("ignore:Skipped test cases with unsupported payload media types")
@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_service_is_as_its_document_says(case):
    case.call_and_validate(checks=CHECKS)


def test_the_document_has_a_path_for_each_target_with_its_own_types(url, call):
    _, _, document = call(url, "GET", "/openapi.json")
    assert document["openapi"] == "3.1.0"
    assert {f"/v1/fetch/{name}" for name in TARGETS} < set(document["paths"])
    keys = document["components"]["schemas"]["typed_keys"]
    assert keys["additionalProperties"] is False
    assert keys["properties"]["a_date"] == {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}


def test_with_api_keys_the_document_says_where_they_are_needed(serving, call):
    url = serving(api_keys=["a-key-0123456789-abc"])
    document = call(url, "GET", "/openapi.json", headers={"Authorization": "Bearer a-key-0123456789-abc"})[2]
    assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    assert document["paths"]["/v1/fetch/route"]["post"]["security"] == [{"key": []}]
    assert "security" not in document["paths"]["/health"]["get"]

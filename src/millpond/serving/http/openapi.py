"""The OpenAPI 3.1 document of the service, made from the types that its decoders use.

Place on the data path: read by people, client generators and tests; no call depends on it. Invariant: the
decoder takes exactly the bodies that fit the document, because both come from
`json_bodies.body_type` and from the answers' own types.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from millpond.metrics.families import MEDIA_TYPE
from millpond.serving.http.asgi import ARROW_MEDIA_TYPE
from millpond.serving.http.bodies.json_bodies import FetchResults, body_type
from millpond.serving.http.limits import Limits
from millpond.serving.http.problems import KINDS, RETRIED, Failure
from millpond.serving.http.served_targets import ServedGroupBys, ServedJoins, ServedTarget, Status
from millpond.serving.messages import Target

Json = dict[str, Any]

_ANSWERS = (FetchResults, Failure, ServedTarget, ServedGroupBys, ServedJoins, Status)
_KINDS = {"group_by": "GroupBy", "join": "Join"}
_SMALL_STATUSES = (405, 408, 429, 431, 500, 503)
_FETCH_STATUSES = (400, 406, 413, 415, *_SMALL_STATUSES)
_JSON = "application/json"
_BINARY = {"type": "string", "format": "binary"}


def openapi_document(targets: Iterable[Target], limits: Limits, *, with_keys: bool) -> Json:
    """Return the document for these GroupBys and Joins; `with_keys` if callers must send an API key.

    >>> sorted(openapi_document([], Limits(), with_keys=False)["paths"])[:2]
    ['/health', '/metrics']
    """
    # Importing importlib.metadata imports the email package too.
    from importlib.metadata import version

    targets = list(targets)
    bodies = [body_type(target, limits) for target in targets]
    schemas, components = msgspec.json.schema_components(
        [*_ANSWERS, *bodies], ref_template="#/components/schemas/{name}"
    )
    refs = {answer.__name__: schema for answer, schema in zip(_ANSWERS, schemas, strict=False)}
    describe = _Operations(with_keys=with_keys)
    paths: Json = {
        "/v1/group_bys": {"get": describe.get("All GroupBys, with the batch served.", refs["ServedGroupBys"])},
        "/v1/joins": {"get": describe.get("All Joins, with the batches served.", refs["ServedJoins"])},
        "/v1/stats": {"get": describe.get("The fetcher's counts.", {"type": "object"})},
        "/v1/caches": {"get": describe.get("The caches, with their hit-rate curves.", {"type": "object"})},
        "/health": {"get": describe.get("Whether the process is alive.", refs["Status"], needs_key=False)},
        "/ready": {"get": describe.get("Whether every GroupBy can be answered.", refs["Status"], needs_key=False)},
        "/metrics": {"get": describe.get("Counts for Prometheus.", {"type": "string"}, MEDIA_TYPE)},
        "/openapi.json": {"get": describe.get("This document.", {"type": "object"})},
    }
    for target, body in zip(targets, schemas[len(_ANSWERS) :], strict=True):
        paths[f"/v1/fetch/{target.name}"] = {
            "get": describe.get(f"What the {_KINDS[target.kind]} takes and gives.", refs["ServedTarget"]),
            "post": describe.fetch(target, body, refs["FetchResults"]),
        }
    for name, schema in components.items():
        if name.endswith(("_keys", "_context")):
            schema["additionalProperties"] = False
            _add_numbers_to_decimals(schema)
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": "Millpond", "version": version("millpond"), "description": "Features of keys, as of a time."},
        "paths": paths,
        "components": {"schemas": components},
    }
    if with_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


class _Operations:
    """Makes operations of the document; `with_keys` if the service needs API keys."""

    def __init__(self, *, with_keys: bool) -> None:
        self._with_keys = with_keys

    def get(self, summary: str, schema: Json, media_type: str = _JSON, *, needs_key: bool = True) -> Json:
        return self._operation(summary, {media_type: {"schema": schema}}, _SMALL_STATUSES, needs_key=needs_key)

    def fetch(self, target: Target, body: Json, results: Json) -> Json:
        summary = f"The features of some keys of the {_KINDS[target.kind]} {target.name}."
        answers = {_JSON: {"schema": results}, ARROW_MEDIA_TYPE: {"schema": _BINARY}}
        operation = self._operation(summary, answers, _FETCH_STATUSES, needs_key=True)
        operation["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": body}, ARROW_MEDIA_TYPE: {"schema": _BINARY}},
        }
        return operation

    def _operation(self, summary: str, answers: Json, statuses: Iterable[int], *, needs_key: bool) -> Json:
        responses: Json = {"200": {"description": "The answer.", "content": answers}}
        needs_key = needs_key and self._with_keys
        for status in sorted([*statuses, 401] if needs_key else statuses):
            responses[str(status)] = _failure(status)
        operation: Json = {"summary": summary, "responses": responses}
        if needs_key:
            operation["security"] = [{"key": []}]
        return operation


def _add_numbers_to_decimals(schema: Any) -> None:
    """Add that a decimal is also read from a number: msgspec does so, but its schema does not say it."""
    if isinstance(schema, dict):
        if schema.get("format") == "decimal":
            schema["type"] = ["string", "number"]
        for inner in schema.values():
            _add_numbers_to_decimals(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _add_numbers_to_decimals(inner)


def _failure(status: int) -> Json:
    codes = sorted(code for code, kind in KINDS.items() if kind.status == status)
    described: Json = {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(codes)}.",
        "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Failure"}}},
    }
    if status in RETRIED:
        seconds = {"description": "Seconds to wait before trying again.", "schema": {"type": "integer"}}
        described["headers"] = {"Retry-After": seconds}
    return described

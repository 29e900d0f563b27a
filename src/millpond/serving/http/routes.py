"""The paths of the service, and the handlers of all but fetches, which `fetch_route` answers.

Invariant: a path is in this table or it is not found.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from millpond.cache.curves import curves_view
from millpond.metrics.families import MEDIA_TYPE, Family, of_processes, prometheus_text
from millpond.serving.http.asgi import Call, Handler, Reply, Route, json_reply, problem_reply
from millpond.serving.http.bodies.request_bodies import RequestBodies
from millpond.serving.http.fetch_route import FetchRoute
from millpond.serving.http.openapi import openapi_document
from millpond.serving.http.page.page_routes import page_routes
from millpond.serving.http.readiness import Readiness
from millpond.serving.http.served_targets import ServedGroupBys, ServedJoins, Status, served_target
from millpond.serving.messages import Target

if TYPE_CHECKING:
    from millpond.serving.http.app import HttpApp

OtherProcesses = Callable[[], Awaitable[dict[str, list[Family]]]]
"""Returns the counts of the other processes that share the port, by the number of the process."""


def routes_of(app: "HttpApp") -> dict[str, Route]:
    """Return the routes of an application, by path."""
    fetcher, limits = app.fetcher, app.limits
    bodies = RequestBodies(limits)
    targets = fetcher.targets
    routes: dict[str, Route] = {}
    for target in targets.values():
        path = f"/v1/fetch/{target.name}"
        fetch = FetchRoute(fetcher, target, limits, bodies, app.in_flight)
        handlers: dict[str, Handler] = {"POST": fetch, "GET": _described(app, target)}
        routes[path] = Route(path, handlers, takes=fetch.takes, now=fetch.now, now_headers=fetch.json_headers)
    document = json_reply(openapi_document(targets.values(), limits, with_keys=app.api_keys.required))
    readiness = Readiness(fetcher, app.clock)

    async def group_bys(_call: Call) -> Reply:
        served = [served_target(fetcher, target) for target in targets.values() if target.kind == "group_by"]
        return json_reply(ServedGroupBys(served))

    async def joins(_call: Call) -> Reply:
        served = [served_target(fetcher, target) for target in targets.values() if target.kind == "join"]
        return json_reply(ServedJoins(served))

    async def stats(_call: Call) -> Reply:
        return json_reply(fetcher.stats())

    async def caches(_call: Call) -> Reply:
        return json_reply(curves_view())

    async def health(_call: Call) -> Reply:
        return json_reply(Status("ok"))

    async def ready(_call: Call) -> Reply:
        problem = "the server is stopping." if app.draining else await readiness.problem()
        return json_reply(Status("ready")) if problem is None else problem_reply("not_ready", problem)

    async def metrics(_call: Call) -> Reply:
        families = app.families()
        if app.process is not None:
            families = of_processes({app.process: families, **await app.other_processes()})
        return Reply(200, [(b"content-type", MEDIA_TYPE.encode())], prometheus_text(families).encode())

    async def openapi(_call: Call) -> Reply:
        return document

    small: tuple[tuple[str, Handler, bool], ...] = (
        ("/v1/group_bys", group_bys, True),
        ("/v1/joins", joins, True),
        ("/v1/stats", stats, True),
        ("/v1/caches", caches, True),
        ("/metrics", metrics, True),
        ("/openapi.json", openapi, True),
        ("/health", health, False),
        ("/ready", ready, False),
    )
    routes |= {path: Route(path, {"GET": handler}, needs_key) for path, handler, needs_key in small}
    return routes | page_routes(app)


def _described(app: "HttpApp", target: Target) -> Handler:
    async def described(_call: Call) -> Reply:
        return json_reply(served_target(app.fetcher, target))

    return described

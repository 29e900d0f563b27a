"""The paths of the web page: its files, and a JSON document for each view.

Place on the data path: beside it. The files hold no user data and are sent without an API key; the documents
need one, as every answer with data does.

The documents are made in the event loop that answers fetches. With a thousand GroupBys that takes tens of
milliseconds. So a document that took long is used again for `_USED_FOR` times as long. A page takes at most a
tenth of the loop, whatever its refresh interval.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from millpond.cache.curves import reports
from millpond.errors import OptionError
from millpond.metrics.families import Family, of_processes
from millpond.serving.http.asgi import JSON_TYPE, Call, Handler, Header, Reply, Route, json_reply
from millpond.serving.http.page.page_views import features_view
from millpond.ui.cache_views import Bounds, cache_views
from millpond.ui.static_files import GUARDS, StaticFile, static_files
from millpond.ui.totals import totals
from millpond.ui.views import Overview, Queries, StoredStates

if TYPE_CHECKING:
    from millpond.serving.http.app import HttpApp

_GUARDS: list[Header] = [(name.encode(), value.encode()) for name, value in GUARDS.items()]
_FILES = "/ui"
_LONG_SECONDS = 0.01
_USED_FOR = 9
_OLDEST_SECONDS = 1.0


def page_routes(app: "HttpApp") -> dict[str, Route]:
    """Return the routes of the page, by path."""
    newest = NewestFamilies(app)

    async def overview(_call: Call) -> Reply:
        return _document(Overview("millpond serve", totals(await newest.get())))

    async def caches(call: Call) -> Reply:
        families = await newest.get()
        processes = len({one.labels.get("process") for each in families for one in each.samples}) or 1
        bounds = {
            name: Bounds(*(None if each is None else each * processes for each in (bound.entries, bound.max_bytes)))
            for name, bound in app.fetcher.cache_bounds.items()
        }
        return _document(cache_views(families, bounds, _query(call, "filter").get("filter", ""), reports()))

    async def features(call: Call) -> Reply:
        asked = _query(call, "filter", "name")
        return _document(features_view(app.fetcher, asked.get("filter", ""), asked.get("name")))

    async def queries(_call: Call) -> Reply:
        return _document(Queries())

    async def state(_call: Call) -> Reply:
        return _document(StoredStates())

    views: dict[str, Handler] = {
        "overview": overview,
        "caches": caches,
        "features": features,
        "queries": queries,
        "state": state,
    }
    files = {path: Route(_FILES, {"GET": _sender(file)}, needs_key=False) for path, file in static_files().items()}
    return files | {f"/ui/{name}.json": Route(f"/ui/{name}.json", {"GET": view}) for name, view in views.items()}


class NewestFamilies:
    """All counts of this process, or of all processes if several share the port.

    Args:
        app: the service.
        clock: seconds, for the age of what was made.
        spent: the processor seconds of this thread.
    """

    def __init__(
        self,
        app: "HttpApp",
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._app = app
        self._clock = clock
        self._spent = spent
        self._until = clock()
        self._families: list[Family] = []

    async def get(self) -> list[Family]:
        """Return the present counts, or recent ones if they took long to make."""
        if self._clock() < self._until:
            return self._families
        began, app = self._spent(), self._app
        families = app.families()
        took = self._spent() - began
        if app.process is not None:
            others = await app.other_processes()
            began = self._spent()
            families = of_processes({app.process: families, **others})
            took += self._spent() - began
        if took >= _LONG_SECONDS:
            self._families = families
            self._until = self._clock() + min(_USED_FOR * took, _OLDEST_SECONDS)
        return families


def _document(content: object) -> Reply:
    reply = json_reply(content)
    return Reply(reply.status, [JSON_TYPE, (b"cache-control", b"no-store"), *_GUARDS], reply.body)


def _sender(file: StaticFile) -> Handler:
    headers = [(name.encode(), value.encode()) for name, value in file.headers.items()]

    async def send(call: Call) -> Reply:
        if call.headers.get(b"if-none-match") == file.etag.encode():
            return Reply(304, headers, b"")
        return Reply(200, headers, file.body)

    return send


def _query(call: Call, *known: str) -> dict[str, str]:
    """Return the parameters of the query string; raise `OptionError` for one that is not known."""
    text: bytes = call.scope.get("query_string", b"")
    given = {name: values[-1] for name, values in parse_qs(text.decode("latin-1"), keep_blank_values=True).items()}
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise OptionError(f"the query string has {unknown}; expected some of {sorted(known)}.")
    return given

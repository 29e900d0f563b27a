"""Combines the pages of several processes into one, for `millpond ui`.

Place on the data path: beside it. A service and a Spark driver are two processes. Given both, one page shows the whole
data path. Each document is requested from every page, and the answers are merged.

Invariant: a page that does not answer is left out, and the overview names it.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import msgspec

from millpond.errors import OptionError, UnavailableError
from millpond.metrics.families import Family
from millpond.ui.server import PageSource, Posted, View
from millpond.ui.stored_state import StoredStateView
from millpond.ui.totals import is_greatest
from millpond.ui.views import Caches, Features, Overview, Queries, StoredRows, StoredStates

_TIMEOUT_SECONDS = 10.0

T = TypeVar("T")


def joined_pages(urls: Sequence[str], state: StoredStateView, key: str | None = None) -> PageSource:
    """Combine pages into one source.

    Args:
        urls: the pages' URLs, such as ``http://127.0.0.1:8766``.
        state: the view of the locations that this process reads itself.
        key: the API key that is sent to the pages.

    Raises:
        OptionError: a URL does not begin with ``http://`` or ``https://``.
    """
    for url in urls:
        if urlsplit(url).scheme not in ("http", "https"):
            raise OptionError(f"{url!r} is no page. Give its URL, such as http://127.0.0.1:8766.")
    pages = _Pages([url.rstrip("/") for url in urls], key)
    views: dict[str, View] = {
        "overview": lambda _: _overview(pages),
        "caches": lambda query: _caches(pages, query),
        "features": lambda query: _features(pages, query),
        "queries": lambda query: Queries(
            [each for found in pages.all("queries", query, Queries) for each in found.queries]
        ),
        "state": lambda query: _state(pages, state, query),
    }
    return PageSource(views, _no_families, post=pages.post, get=pages.get)


def _no_families() -> list[Family]:
    return []


class _Pages:
    """The pages, which are asked in parallel."""

    def __init__(self, urls: Sequence[str], key: str | None) -> None:
        self._urls = urls
        self._key = key
        self._threads = ThreadPoolExecutor(max(1, 2 * len(urls)), thread_name_prefix="millpond-pages")

    def asked(self, view: str, query: Mapping[str, str], kind: type[T]) -> dict[str, T | None]:
        """Return the document of a view by page; None for a page that does not answer."""
        path = f"/ui/{view}.json?{urlencode(query)}"
        found = self._threads.map(lambda url: self._document(url, path, kind), self._urls)
        return dict(zip(self._urls, found, strict=True))

    def all(self, view: str, query: Mapping[str, str], kind: type[T]) -> list[T]:
        """Return the documents of the pages that answer."""
        return [found for found in self.asked(view, query, kind).values() if found is not None]

    def post(self, path: str, body: bytes) -> Posted:
        """Post to the pages in turn. Return the answer of the first that has this path."""
        return self._first(path, body)

    def get(self, path: str) -> Posted:
        """Return the document of the first page that has this path."""
        return self._first(path, None)

    def _first(self, path: str, body: bytes | None) -> Posted:
        answer = Posted(404, b'{"error":{"code":"not_found","message":"None of the pages has this."}}')
        for url in self._urls:
            try:
                answer = self._call(url, path, body)
            except UnavailableError:
                continue
            if answer.status != HTTPStatus.NOT_FOUND:
                break
        return answer

    def _document(self, url: str, path: str, kind: type[T]) -> T | None:
        try:
            answer = self._call(url, path, None)
            return msgspec.json.decode(answer.body, type=kind) if answer.status == HTTPStatus.OK else None
        except (UnavailableError, msgspec.MsgspecError):
            return None

    def _call(self, url: str, path: str, body: bytes | None) -> Posted:
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = Request(url + path, body, headers)  # noqa: S310 - `joined_pages` allows only HTTP
        try:
            with urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310
                return Posted(response.status, response.read())
        except HTTPError as error:
            return Posted(error.code, error.read())
        except (URLError, OSError, HTTPException) as error:
            raise UnavailableError(f"{url} does not answer: {error}.") from error


def _overview(pages: _Pages) -> Overview:
    found = pages.asked("overview", {}, Overview)
    metrics: dict[str, dict[str, float]] = {}
    notices: list[str] = []
    for url, one in found.items():
        if one is None:
            notices.append(f"The page {url} does not answer, or wants another API key.")
            continue
        notices += one.notices
        for name, samples in one.metrics.items():
            of = metrics.setdefault(name, {})
            add: Callable[[float, float], float] = max if is_greatest(name) else float.__add__
            for labels, value in samples.items():
                of[labels] = add(float(of.get(labels, 0)), float(value))
    processes = [one.process for one in found.values() if one is not None]
    return Overview(" + ".join(processes) or "millpond ui", metrics, notices)


def _caches(pages: _Pages, query: Mapping[str, str]) -> Caches:
    found = pages.all("caches", query, Caches)
    caches = sorted((cache for each in found for cache in each.caches), key=lambda cache: -cache.misses)
    return Caches(caches, sum(each.total for each in found))


def _features(pages: _Pages, query: Mapping[str, str]) -> Features:
    found = pages.all("features", query, Features)
    target = next((each.target for each in found if each.target is not None), None)
    return Features([row for each in found for row in each.targets], sum(each.total for each in found), target)


def _state(pages: _Pages, state: StoredStateView, query: Mapping[str, str]) -> Any:
    """Return rows of a location, read here or by the first page that has it; without a location, list all."""
    if "location" in query:
        if query["location"] in state.locations():
            return state(query)
        found = pages.all("state", query, StoredRows)
        return found[0] if found else state(query)
    own = state(query)
    assert isinstance(own, StoredStates)  # noqa: S101 - without a location
    return StoredStates(
        [*own.locations, *(each for page in pages.all("state", query, StoredStates) for each in page.locations)]
    )

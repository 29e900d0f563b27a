"""The view of stored state: the locations, what they hold, and rows on demand.

Place on the data path: beside it. A location was named by the user who started the page, or is the checkpoint of one of
the driver's queries. The page cannot request any other.

Invariant: however often the list is requested, a location is read at most once in `FRESH_SECONDS`.
"""

import threading
import time
from base64 import b16encode
from collections.abc import Callable, Mapping
from typing import Any

from millpond.errors import MillpondError, OptionError
from millpond.state.checkpoint.stored_state import Asked, StoredState
from millpond.ui.views import LocationView, StateRow, StoredRows, StoredStates

FRESH_SECONDS = 10.0
"""How long the result of reading a location is reused."""

SHOWN = 100
"""The largest number of rows in one answer."""

_EXACT = 1 << 53
"""Integers up to this size are exact in a browser. Larger ones are sent as text."""


class StoredStateView:
    """Makes the documents for the view of stored state; thread-safe.

    Args:
        locations: returns the locations that may be read.
        open_state: opens one of them.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        locations: Callable[[], list[str]],
        open_state: Callable[[str], StoredState],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.locations = locations
        self._open = open_state
        self._clock = clock
        self._lock = threading.Lock()
        self._read: dict[str, tuple[float, LocationView]] = {}

    def __call__(self, query: Mapping[str, str]) -> StoredStates | StoredRows:
        """List the locations or, if the query names one, return rows of a state.

        Raises:
            OptionError: the location, state or version does not exist.
        """
        if "location" in query:
            return self._rows(query)
        return StoredStates([self._view(location) for location in self.locations()])

    def _view(self, location: str) -> LocationView:
        with self._lock:
            read = self._read.get(location)
            if read is None or self._clock() - read[0] >= FRESH_SECONDS:
                view = self._looked_into(location)
                read = self._read[location] = (self._clock(), view)
            return read[1]

    def _looked_into(self, location: str) -> LocationView:
        try:
            stored = self._open(location)
            records, sizes = stored.states(), stored.sizes()
        except MillpondError as error:
            return LocationView(name=location, problem=str(error))
        states = [
            StateRow(
                name=record["state"],
                declared=record["declared"],
                operator=record.get("operator"),
                operator_name=record.get("name"),
                rows=sizes.get((record.get("operator"), record["state"]), (None, None))[0],
                bytes=sizes.get((record.get("operator"), record["state"]), (None, None))[1],
            )
            for record in records
            if record["state"] is not None
        ]
        return LocationView(
            name=location,
            kind=stored.kind,
            versions=next((record["versions"] for record in records), None),
            states=states,
            rows=sum(rows for rows, _ in sizes.values()),
            bytes=sum(size for _, size in sizes.values()),
        )

    def _rows(self, query: Mapping[str, str]) -> StoredRows:
        location = query["location"]
        if location not in self.locations():
            raise OptionError(
                f"{location!r} is not one of the locations of this page. Name it when the page is started."
            )
        if not query.get("state"):
            raise OptionError("the query string names no state. Add &state=NAME.")
        numbers = {name: _number(name, query[name]) for name in ("operator", "version", "since") if query.get(name)}
        rows = self._open(location).rows(Asked(query["state"], **numbers))
        found = rows.first(SHOWN + 1, query.get("search", ""))
        plain = [[_plain(value) for value in row.values()] for row in found.slice(0, SHOWN).to_pylist()]
        return StoredRows(found.column_names, plain, found.num_rows > SHOWN)


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise OptionError(f"{name} is {text!r}; a whole number is needed.")
    return int(text)


def _plain(value: Any) -> Any:
    """Convert a value to one that JSON can hold and a browser can show."""
    if isinstance(value, bytes):
        return f"0x{b16encode(value).decode().lower()}"
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bool | str | None):
        return value
    if isinstance(value, int) and -_EXACT <= value <= _EXACT:
        return value
    if isinstance(value, float) and value == value and abs(value) != float("inf"):  # noqa: PLR0124 - not NaN
        return value
    return str(value)

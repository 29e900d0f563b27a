"""The options that several commands share, and the printing of their results.

Progress goes to stderr, results to stdout. With ``--json`` the result is JSON.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
import msgspec
import numpy as np

_Command = TypeVar("_Command", bound=Callable[..., Any])


def definitions_argument(command: _Command) -> _Command:
    """Add the argument for the files and modules with the definitions."""
    return click.argument("definitions", nargs=-1, required=True, metavar="DEFINITIONS...")(command)


def json_option(command: _Command) -> _Command:
    """Add the option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)


def quiet_option(command: _Command) -> _Command:
    """Add the option `--quiet`."""
    return click.option("--quiet", is_flag=True, help="Show no progress.")(command)


class TimeOfDay(click.ParamType[int]):
    """A time as milliseconds since the epoch, as a date (midnight UTC), or as an ISO time (UTC without a zone).

    >>> TimeOfDay().convert("1970-01-02", None, None)
    86400000
    """

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time in milliseconds since 1970 UTC."""
        if isinstance(value, int):
            return value
        if str(value).isdigit():
            return int(value)
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is no time; write 2026-06-01, 2026-06-01T05:00, or milliseconds since 1970", param, ctx
            )
        aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return int(aware.timestamp() * 1000)


def shown_time(time_ms: int) -> str:
    """Return milliseconds since the epoch as text that `TimeOfDay` takes.

    >>> shown_time(1_780_272_000_000), shown_time(1_780_272_300_000)
    ('2026-06-01', '2026-06-01T00:05Z')
    """
    return str(np.datetime_as_string(np.datetime64(time_ms, "ms"), unit="auto", timezone="UTC"))


def snapshots_end_option(command: _Command) -> _Command:
    """Add the option for the batch end of the entity sources' snapshots."""
    return click.option(
        "--snapshots-end",
        "snapshots_end_ms",
        type=TimeOfDay(),
        help="The batch end of the entity sources' snapshots; required if there are any.",
    )(command)


def tell(result: Any, *, as_json: bool, text: str) -> None:
    """Print a command's result: `result` as JSON, or `text`."""
    click.echo(msgspec.json.encode(result).decode() if as_json else text)

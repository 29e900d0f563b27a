"""Shows what a command waits for while another system works, such as Spark: one line on a terminal, else plain lines.

`progress` is for commands that know their steps. Here a thread polls the state of the work, while the command itself
just makes the long call.

On a terminal the line is rewritten every half second, with a bar if the share of finished work is known. Elsewhere a
line is written when something has changed: at first at most every five seconds, later at most once a minute. So a job
that runs for days does not fill a log.

Invariant: a poll that fails, because the work just ended, shows nothing. It never fails the command.
"""

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Self, TextIO

_LOOK_SECONDS: Final = 0.5
_FIRST_GAP_SECONDS: Final = 5.0
_LONGEST_GAP_SECONDS: Final = 60.0
_BAR_WIDTH: Final = 24
_REWRITE: Final = "\r\x1b[K"
"""Returns to the beginning of a terminal's line and clears it."""

log = logging.getLogger("millpond.commands")


class Wait(NamedTuple):
    """What a command waits for, and how many of its parts are done; `of` is 0 if that is unknown.

    >>> str(Wait("stage 3: 6 of 8 tasks done", 6, 8))
    '[##################------] stage 3: 6 of 8 tasks done'
    """

    text: str
    done: int = 0
    of: int = 0

    def __str__(self) -> str:
        """Return the line for a terminal."""
        if not self.of:
            return self.text
        filled = _BAR_WIDTH * min(self.done, self.of) // self.of
        return f"[{'#' * filled}{'-' * (_BAR_WIDTH - filled)}] {self.text}"


class Lines:
    """Writes what a command waits for, to a terminal or elsewhere.

    Args:
        out: the stream to write to.

    >>> lines = Lines(sys.stdout)
    >>> for second in range(12): lines.show(Wait(f"{second // 4} of 2 stages"), seconds=second)
    1 of 2 stages
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._rewrites = out.isatty()
        self._gap = self._next = _FIRST_GAP_SECONDS
        self._said = ""

    def show(self, wait: Wait, seconds: float) -> None:
        """Show what the command waits for; `seconds` have passed since it began."""
        if self._rewrites:
            line = f"{wait} ({seconds:.0f} s)"
            self._write(_REWRITE + line[: shutil.get_terminal_size().columns - 1])
        elif seconds >= self._next and wait.text != self._said:
            self._said = wait.text
            self._gap = min(2 * self._gap, _LONGEST_GAP_SECONDS)
            self._next = seconds + self._gap
            self._write(f"{wait.text}\n")

    def end(self) -> None:
        """Clear the line on a terminal."""
        if self._rewrites:
            self._write(_REWRITE)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class Waiting:
    """Shows what `look` returns, until the work in the `with` block ends.

    Args:
        look: returns what the command waits for. It is called in another thread, and its errors are not shown.
        quiet: whether to show nothing.
        out: the stream to write to; stderr by default.
        every_seconds: the interval between two calls of `look`.

    >>> with Waiting(lambda: Wait("opening the store"), out=sys.stdout):
    ...     pass  # was open within five seconds: there is nothing to say
    """

    def __init__(
        self,
        look: Callable[[], Wait],
        *,
        quiet: bool = False,
        out: TextIO | None = None,
        every_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._look = look
        self._lines = Lines(sys.stderr if out is None else out)
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._thread = None if quiet else threading.Thread(target=self._watch, name="millpond-waiting", daemon=True)

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._lines.end()

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(self._every_seconds):
            try:
                wait = self._look()
            except Exception as error:  # noqa: BLE001 - see the invariant
                log.debug("what is waited for cannot be told: %s", error)
            else:
                self._lines.show(wait, time.monotonic() - began)

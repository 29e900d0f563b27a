"""Shows the progress of a long command on stderr: a bar on a terminal, plain lines elsewhere.

For commands that know their number of steps; `waiting` is for the others. The demo has a display of its own. The bar is
click's.
"""

import sys
from types import TracebackType
from typing import Any, Self, TextIO

import click


class Progress:
    """Shows how far a command is; a context manager.

    On a terminal it is a bar followed by the last step. Elsewhere each step is a line.

    Args:
        label: what the command does.
        steps: the number of steps.
        quiet: whether to show nothing.
        out: the stream to write to; stderr by default.

    >>> with Progress("replay", 2, out=sys.stdout) as progress:
    ...     progress.step("lru 100")
    ...     progress.step("lru 200")
    replay
    1 of 2: lru 100
    2 of 2: lru 200
    """

    def __init__(self, label: str, steps: int, *, quiet: bool = False, out: TextIO | None = None) -> None:
        self._label = label
        self._steps = steps
        self._quiet = quiet
        self._out = sys.stderr if out is None else out
        self._done = 0
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self._quiet:
            return self
        if self._out.isatty():
            self._bar = click.progressbar(
                length=self._steps, label=self._label, file=self._out, item_show_func=lambda text: text
            )
            self._bar.__enter__()
        else:
            click.echo(self._label, file=self._out)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, trace)

    def step(self, text: str) -> None:
        """Show that one step is done; `text` names it."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(1, text)
        elif not self._quiet:
            click.echo(f"{self._done} of {self._steps}: {text}", file=self._out)

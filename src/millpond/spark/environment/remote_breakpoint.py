"""`breakpoint()` without a terminal: Python's debugger over a private Unix socket.

A Python worker of Spark reads from /dev/null, so a debugger that `breakpoint()` starts there ends at once.
This debugger waits for a terminal to connect. The executor's log has the command for it:

    python -m millpond.spark.environment.breakpoint_terminal /tmp/millpond-1000/breakpoint-4711.sock

The socket is in the user's private folder and takes one connection. A debugger that the user has chosen
(`PYTHONBREAKPOINT`) is kept.
"""

import contextlib
import os
import pdb  # noqa: T100 - it is what this module is about
import select
import socket
import sys
from collections.abc import Iterator
from typing import Any

from millpond.errors import UnavailableError
from millpond.spark.environment.folders import user_folder
from millpond.spark.environment.peer import check_peer

WAIT_SECONDS = 600.0


@contextlib.contextmanager
def breakpoints_over_a_socket() -> Iterator[None]:
    """Make `breakpoint()` wait for a terminal to connect, unless the user has chosen another debugger."""
    if sys.breakpointhook is not sys.__breakpointhook__ or os.environ.get("PYTHONBREAKPOINT"):
        yield
        return
    sys.breakpointhook = _stop
    try:
        yield
    finally:
        sys.breakpointhook = sys.__breakpointhook__


def _stop(*_: Any, **__: Any) -> None:
    path = user_folder() / f"breakpoint-{os.getpid()}.sock"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        try:
            listener.listen(1)
            command = f"{sys.executable} -m millpond.spark.environment.breakpoint_terminal {path}"
            print(f"breakpoint() waits for a terminal: {command}", file=sys.stderr, flush=True)  # noqa: T201
            if not select.select([listener], [], [], WAIT_SECONDS)[0]:
                raise UnavailableError(
                    f"no debugger connected to the breakpoint within {WAIT_SECONDS:.0f} s; run: {command}"
                )
            visitor, _ = listener.accept()
        finally:
            path.unlink(missing_ok=True)
    with contextlib.ExitStack() as refused:
        refused.enter_context(visitor)
        check_peer(visitor, "the terminal of a breakpoint")
        refused.pop_all()
    _Visited(visitor).set_trace(sys._getframe(1))  # noqa: SLF001 - as pdb itself does


class _Visited(pdb.Pdb):
    """A debugger that closes the connection when it is told to continue and has no more breakpoints."""

    def __init__(self, visitor: socket.socket) -> None:
        # Two files are needed: one that both reads and writes loses what it has read ahead when it writes.
        typed, said = (visitor.makefile(mode, buffering=1, encoding="utf-8") for mode in ("r", "w"))
        super().__init__(stdin=typed, stdout=said)
        self._visitor = visitor

    def set_continue(self) -> None:
        """Continue the program. Close the connection if no breakpoint can stop it again."""
        super().set_continue()
        if not self.breaks:
            self._leave()

    def set_quit(self) -> None:
        """Abort the batch and close the connection."""
        super().set_quit()
        self._leave()

    def _leave(self) -> None:
        with contextlib.suppress(OSError):
            self._visitor.shutdown(socket.SHUT_RDWR)

"""Fold each run of Millpond's frames in a traceback into one line, so that users see their own frames.

An error of a processor or a lookup function passes through a dozen frames of Millpond, in a worker and in a
state host, before Spark prints it. These frames do not help to find the cause, so `fold_own_frames` folds
them at the boundary. A traceback is a linked list, and Python can build one from given frames. The line for
a folded run is the frame of a code object that was compiled to have that name.

The last run is kept if the error is not Millpond's own: Millpond raised it unexpectedly, and the frames are
needed to fix that.
"""

import ast
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception, format_exception_only
from types import FrameType, TracebackType
from typing import NamedTuple, NoReturn

from millpond.errors import MillpondError

_PACKAGE = str(Path(__file__).parents[2])
_GLUE = str(contextlib.__file__)
_MOST_LINKS = 20


class Place(NamedTuple):
    """The source position of one frame of a traceback.

    Attributes:
        file: the file of the code.
        function: the function's name.
        line: the line's number, from 1.
        end_line: the line where the expression ends.
        column: where the expression begins, in bytes; None where the interpreter keeps no columns.
        end_column: where the expression ends, in bytes.
    """

    file: str
    function: str
    line: int
    end_line: int | None = None
    column: int | None = None
    end_column: int | None = None


@dataclass(frozen=True)
class _Entry:
    """One entry of a traceback."""

    frame: FrameType
    instruction: int
    line: int

    @property
    def file(self) -> str:
        return self.frame.f_code.co_filename

    @property
    def is_own(self) -> bool:
        """Whether it is Millpond's. The file of a compiled module is where the wheel was built, so its name counts."""
        return self.file.startswith(_PACKAGE) or str(self.frame.f_globals.get("__name__")).startswith("millpond.")


def fold_own_frames(error: BaseException) -> None:
    """Fold Millpond's frames in the traceback of an error, and in those of its causes and contexts.

    Call it where the error leaves Millpond, in an `except` block that ends in a plain `raise`.
    """
    purposeful = isinstance(error, MillpondError)
    for each in _linked(error):
        whole = list(_entries(each.__traceback__))
        each.__traceback__ = _joined(_folded(whole, purposeful=purposeful or isinstance(each, MillpondError)))


def folded_texts(error: BaseException) -> tuple[str, str]:
    """Return an error as one line, and as text with its folded traceback. Dead letters hold texts, not exceptions."""
    fold_own_frames(error)
    return "".join(format_exception_only(error)).strip(), "".join(format_exception(error))


def places(traceback: TracebackType | None) -> list[Place]:
    """Return the places of a traceback's frames, from which `built` makes it again in another process."""
    return [_place(entry) for entry in _entries(traceback)]


def built(found: Sequence[Place]) -> TracebackType | None:
    """Build a traceback that prints like the one that these places came from."""
    return _joined([_entry(place) for place in found])


def _linked(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes and contexts, each once, up to `_MOST_LINKS`."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting and len(seen) < _MOST_LINKS:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, each.__context__]


def _entries(traceback: TracebackType | None) -> Iterator[_Entry]:
    while traceback is not None:
        yield _Entry(traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)
        traceback = traceback.tb_next


def _folded(entries: list[_Entry], *, purposeful: bool) -> list[_Entry]:
    """Replace each run of Millpond's entries by one. `purposeful` says that Millpond raised the error on purpose."""
    own = [entry.is_own for entry in entries]
    # A frame of contextlib between two of Millpond's frames counts as Millpond's.
    for at in range(1, len(entries) - 1):
        own[at] = own[at] or (entries[at].file == _GLUE and own[at - 1] and own[at + 1])
    folded: list[_Entry] = []
    at = 0
    while at < len(entries):
        end = at
        while end < len(entries) and own[end]:
            end += 1
        if end == at:
            folded.append(entries[at])
            at += 1
            continue
        is_last = end == len(entries)
        folded += entries[at:end] if is_last and not purposeful else [_line(end - at)]
        at = end
    return folded


def _line(frames: int) -> _Entry:
    return _entry(Place("<millpond>", f"… {frames} frame{'s' * (frames > 1)} of millpond", 1))


def _joined(entries: Sequence[_Entry]) -> TracebackType | None:
    traceback: TracebackType | None = None
    for entry in reversed(entries):
        traceback = TracebackType(traceback, entry.frame, entry.instruction, entry.line)
    return traceback


def _place(entry: _Entry) -> Place:
    code = entry.frame.f_code
    instruction = entry.instruction // 2
    for at, (line, end_line, column, end_column) in enumerate(code.co_positions()):
        if at == instruction and line is not None:
            return Place(code.co_filename, code.co_name, line, end_line, column, end_column)
    return Place(code.co_filename, code.co_name, entry.line)


class _Stop(Exception):  # noqa: N818 - it ends code, and is never seen
    pass


def _stop() -> NoReturn:
    raise _Stop


def _entry(place: Place) -> _Entry:
    """Make an entry for a place: compile code with that position, run it, and take its frame when it stops."""
    tree = ast.parse("stop()")
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt):
            node.lineno, node.end_lineno = place.line, place.end_line or place.line
            node.col_offset, node.end_col_offset = place.column or 0, place.end_column or 0
    code = compile(tree, place.file, "exec").replace(co_name=place.function, co_qualname=place.function)
    try:
        exec(code, {"stop": _stop})  # noqa: S102 - see above
    except _Stop as stopped:
        here = stopped.__traceback__
        assert here is not None  # noqa: S101 - for the type checker
        assert here.tb_next is not None  # noqa: S101 - likewise
        # Without columns there is no instruction to mark.
        return _Entry(here.tb_next.tb_frame, -1 if place.column is None else here.tb_next.tb_lasti, place.line)
    raise AssertionError

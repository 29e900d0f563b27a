"""Writes `docs/reference/errors.md`: every error that Millpond raises on purpose, and what to do about it.

    .venv/bin/python scripts/error_index.py    writes the page anew; a test fails where it is not the code's

The classes and what to do come from their docstrings. The messages are read from the source: the text of every call of
such a class, with `{name}` for a value that is put in. A message ends with how to mend what is wrong, which stands
behind an arrow.
"""

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from millpond.errors import MillpondError, OptionError

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/millpond"
PAGE = ROOT / "docs/reference/errors.md"

HEAD = """# Errors

Which error is this, and what do I do about it?
Search this page for the words of your message.
Words in braces stand for values, and `{…}` for what is computed.

Every error that Millpond raises on purpose is a `MillpondError`.
There are few kinds, by what you should do:

| class | also a | do |
|---|---|---|
"""

AFTER_TABLE = """
- **Over HTTP** an error has a status and a code: [failures](http.md#failures).
- **A command** prints the message in one line and ends with exit code 2.
- **On Spark** the error reaches the driver with its type and message, between Spark's own frames.
  [How to read it](../how-to/errors-and-logs.md).
- **A machine or session that is not fit** for Millpond is found by `millpond doctor`.
  [When something does not work](../how-to/install.md#when-something-does-not-work).
- **Any other exception** out of Millpond's own frames is a bug; report it with its traceback.
"""


class Message(NamedTuple):
    """A message as the source has it, with the class's name; no text where another error gives it."""

    room: str
    name: str
    text: str


def classes() -> list[type[MillpondError]]:
    """The base and every class that derives from it, bases first."""
    found: list[type[MillpondError]] = [MillpondError]
    defined = [(path, each) for path in _modules() for each in _parsed(path).body if isinstance(each, ast.ClassDef)]
    for base in found:
        for path, each in defined:
            if base.__name__ in map(ast.unparse, each.bases):
                module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
                derived = getattr(importlib.import_module(module), each.name)
                found += [derived] if derived not in found else []
    return found


def _modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def messages(names: set[str]) -> Iterator[Message]:
    """The text of every call of a class with one of these names; empty where the source does not have it."""
    for path in _modules():
        first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        room = f"millpond.{first}"
        for call in ast.walk(_parsed(path)):
            if isinstance(call, ast.Call) and _name(call.func) in names:
                for text in _texts(call.args[0]) if call.args else [""]:
                    yield Message(room, _name(call.func), text)
            elif isinstance(call, ast.Call) and call.args and _adds_to_a_list_of_faults(call.func):
                for text in filter(None, _texts(call.args[0])):
                    yield Message(room, OptionError.__name__, text)


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else ""


def _adds_to_a_list_of_faults(function: ast.expr) -> bool:
    """Whether a call is `problems.append(...)` or the like: several faults of options make one error."""
    if not isinstance(function, ast.Attribute) or function.attr not in {"append", "add"}:
        return False
    return ast.unparse(function.value).strip("_").removeprefix("self._") in {"problems", "faults"}


def _texts(given: ast.expr) -> list[str]:
    """What an argument says: one text, or one for each branch of a condition."""
    match given:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            return ["".join(_piece(value) for value in values)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [before + after for before in _texts(left) for after in _texts(right)]
        case ast.IfExp(body=body, orelse=other):
            return [*_texts(body), *_texts(other)]
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(joiner)), attr="join"), args=[ast.List(elts=each)]
        ):
            return [joiner.join([*(text for one in each[:1] for text in _texts(one)), "{…}"])]
    return [""]


def _piece(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    inner = value.value if isinstance(value, ast.FormattedValue) else value
    match inner:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return f"{{{name.strip('_')}}}"
    return "{…}"


def page() -> str:
    """The whole page."""
    every = classes()
    names = {each.__name__ for each in every}
    said = list(messages(names))
    lines = [HEAD + "\n".join(_row(each) for each in every[1:]) + "\n" + AFTER_TABLE]
    for each in every[1:]:
        lines.append(f"\n## {each.__name__}\n\n{_sentences(each)}\n")
        own = [message for message in said if message.name == each.__name__]
        for room in sorted({message.room for message in own}):
            texts = sorted({message.text for message in own if message.room == room and message.text})
            if texts:
                lines.append(f"\n### {each.__name__} in {room}\n\n" + "\n".join(map(_item, texts)) + "\n")
        if any(not message.text for message in own):
            rooms = sorted({message.room for message in own if not message.text})
            lines.append(f"\nIn {', '.join(rooms)} it also passes on what another error says.\n")
    return "".join(lines)


def _row(each: type[MillpondError]) -> str:
    bases = [base for base in each.__bases__ if base is not MillpondError]
    of_ours = [base for base in bases if issubclass(base, MillpondError)]
    does = _sentences(of_ours[0] if of_ours else each).split("\n")[-1]
    also = ", ".join(f"`{base.__name__}`" for base in bases) or "–"
    return f"| [`{each.__name__}`](#{each.__name__.lower()}) | {also} | {does} |"


def _sentences(each: type[MillpondError]) -> str:
    """The first paragraph of a docstring, one sentence a line."""
    paragraph = " ".join((each.__doc__ or "").split("\n\n")[0].split())
    return re.sub(r"(?<=\.) (?=[A-Z])", "\n", paragraph)


def _item(text: str) -> str:
    """A message, with what to do behind an arrow."""
    flat = " ".join(text.split())
    says, _, fix = flat.partition(". ") if ". " in flat else flat.partition("; ")
    return f"- {_code(says.rstrip('.'))}" + (f" → {_code(fix)}" if fix else "")


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

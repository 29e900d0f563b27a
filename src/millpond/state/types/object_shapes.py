"""The shape of objects, read from the text that a checkpoint has of their type.

This is the inverse of `object_types.text_of`, as far as columns need it: which values are records of known fields,
which are dicts of any keys, and which are collections. Their bytes do not tell a record from a dict. So with the shape
a reader without the classes can give a record as a struct and a dict as a map.

A text that cannot be parsed gives a shape that says nothing, never an error: the values can be read without it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from millpond.state.types.object_types import COLLECTIONS


@dataclass(frozen=True)
class Leaf:
    """A value without parts, or of which nothing more is known. `kind` is its type's name (`int`, `any`), or empty."""

    kind: str = ""


@dataclass(frozen=True)
class Items:
    """A list, set or tuple of values of one shape."""

    item: "Shape"


@dataclass(frozen=True)
class Entries:
    """A dict of any keys."""

    key: "Shape"
    value: "Shape"


@dataclass(frozen=True)
class Record:
    """An object of a class, by its fields.

    Attributes:
        fields: the name and shape of each.
        tagged: whether the object names its class beside the fields.
        ordered: whether an object that is written without field names has just these fields, in this order.
    """

    fields: tuple[tuple[str, "Shape"], ...]
    tagged: bool = False
    ordered: bool = True


Shape = Leaf | Items | Entries | Record

ANY_DICT = Entries(Leaf(), Leaf())
ANY_ITEMS = Items(Leaf())

_NOTHING = (Leaf("None"), Leaf("none"))
_NAME = re.compile(r"[^\s:,|=()\[\]'\"]+")
_FIELD = re.compile(r"([^:,|=()\[\]'\"]+): ")
_RECORD = re.compile(rf"\((\)|{_FIELD.pattern})")
_QUOTED = re.compile(r"b?'(?:[^'\\]|\\.)*'|b?\"(?:[^\"\\]|\\.)*\"")
_CLOSING = {"(": ")", "[": "]"}


def shape_of(text: str) -> Shape:
    """Return the shape of a type.

    >>> shape_of("dict[str, list[int | None]]")
    Entries(key=Leaf(kind='str'), value=Items(item=Leaf(kind='int')))
    >>> shape_of("User(name: str(max_length=9), age: int)").fields
    (('name', Leaf(kind='str')), ('age', Leaf(kind='int')))
    """
    reader = _Reader(text)
    try:
        shape = reader.union()
    except _NotUnderstoodError:
        return Leaf()
    return shape if reader.at == len(text) else Leaf()


class _NotUnderstoodError(Exception):
    """The text is not that of a type."""


class _Reader:
    """Parses a text from position `at` on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def union(self) -> Shape:
        """Parse one type, or a union of several."""
        members = [self._member()]
        while self._took(" | "):
            members.append(self._member())
        return _joined(shape for shape in members if shape not in _NOTHING)

    def _member(self) -> Shape:
        name = self._name()
        if name in COLLECTIONS.values() and self._took("["):
            return self._collection(name)
        if name == "dict" and self._took("["):
            key = self.union()
            self._expect(", ")
            value = self.union()
            self._expect("]")
            self._skip("(")
            return Entries(key, value)
        if name == "Literal":
            self._skip("[")
            return Leaf()
        tagged = self._text.startswith("[tag=", self.at)
        self._skip("[")
        if _RECORD.match(self._text, self.at):
            return self._record(tagged=tagged)
        self._skip("(")  # limits, or the members of an enumeration
        return Leaf(name)

    def _collection(self, name: str) -> Shape:
        items = [self.union()]
        while self._took(", "):
            if self._took("..."):
                name = "list"
            else:
                items.append(self.union())
        self._expect("]")
        self._skip("(")
        return ANY_ITEMS if name == "tuple" and len(set(items)) > 1 else Items(items[0])

    def _record(self, *, tagged: bool) -> Shape:
        fields: list[tuple[str, Shape]] = []
        self._expect("(")
        while not self._took(")"):
            if fields:
                self._expect(", ")
            found = _FIELD.match(self._text, self.at)
            if found is None:
                raise _NotUnderstoodError
            self.at = found.end()
            fields.append((found[1], self.union()))
        return Record(tuple(fields), tagged)

    def _name(self) -> str:
        found = _NAME.match(self._text, self.at)
        if found is None:
            raise _NotUnderstoodError
        self.at = found.end()
        return found[0]

    def _took(self, words: str) -> bool:
        found = self._text.startswith(words, self.at)
        if found:
            self.at += len(words)
        return found

    def _expect(self, words: str) -> None:
        if not self._took(words):
            raise _NotUnderstoodError

    def _skip(self, opening: str) -> bool:
        """Skip a part in these brackets, if there is one. Return whether there was."""
        if not self._took(opening):
            return False
        open_brackets = [_CLOSING[opening]]
        while open_brackets:
            quoted = _QUOTED.match(self._text, self.at)
            if quoted is not None:
                self.at = quoted.end()
                continue
            if self.at == len(self._text):
                raise _NotUnderstoodError
            letter = self._text[self.at]
            self.at += 1
            if letter in _CLOSING:
                open_brackets.append(_CLOSING[letter])
            elif letter == open_brackets[-1]:
                open_brackets.pop()
        return True


def _joined(shapes: Iterable[Shape]) -> Shape:
    """Return the shape of values that have one of several shapes: for records all fields, else an empty `Leaf`."""
    found = list(dict.fromkeys(shapes))
    if len(found) < 2:  # noqa: PLR2004 - one of several
        return found[0] if found else Leaf()
    fields: dict[str, list[Shape]] = {}
    for shape in found:
        if not isinstance(shape, Record):
            return Leaf()
        for name, field in shape.fields:
            fields.setdefault(name, []).append(field)
    tagged = any(isinstance(shape, Record) and shape.tagged for shape in found)
    return Record(tuple((name, _joined(each)) for name, each in fields.items()), tagged, ordered=False)

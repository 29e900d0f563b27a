"""Facts about a type whose objects are state, determined once per declaration.

- Its *text*: stable words, with the fields of classes, by which a checkpoint notices that a type has changed.
- Whether its objects are *mutable*.
- The part of it that msgspec cannot write.
"""

from typing import Any

from msgspec import inspect

ClassType = inspect.StructType | inspect.DataclassType | inspect.NamedTupleType | inspect.TypedDictType
COLLECTIONS: dict[type[inspect.Type], str] = {
    inspect.ListType: "list",
    inspect.SetType: "set",
    inspect.FrozenSetType: "frozenset",
    inspect.VarTupleType: "tuple",
}
"""Types of many items of one type."""
_UNKNOWN = (inspect.CustomType, inspect.RawType, inspect.ExtType, inspect.MemoryViewType)
LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
"""Restrictions that an annotation may add to the type."""


def unknown_in(info: inspect.Type) -> str | None:
    """Return the first type in this one that msgspec cannot write, or None."""
    for found in _within(info):
        if isinstance(found, _UNKNOWN):
            cls = getattr(found, "cls", None)
            return type(found).__name__ if cls is None else f"{cls.__module__}.{cls.__qualname__}"
    return None


def text_of(info: inspect.Type, known: frozenset[Any] = frozenset()) -> str:
    """Return the type in words that are the same in every process. Classes have their fields, once.

    >>> text_of(inspect.type_info(dict[str, list[int | None]]))
    'dict[str, list[int | None]]'
    """
    if isinstance(info, ClassType):
        return _text_of_class(info, known)
    if isinstance(info, inspect.EnumType):
        return f"{info.cls.__name__}({', '.join(f'{member.name}={member.value!r}' for member in info.cls)})"
    if isinstance(info, inspect.LiteralType):
        return f"Literal[{', '.join(sorted(map(repr, info.values)))}]"
    if isinstance(info, inspect.UnionType):
        # None is written last and the others in order: `int | str` and `str | int` are one type.
        words = sorted(text_of(member, known) for member in info.types if not isinstance(member, inspect.NoneType))
        return " | ".join([*words, "None"] if info.includes_none else words)
    limits = [f"{limit}={value!r}" for limit in LIMITS if (value := getattr(info, limit, None)) is not None]
    name = COLLECTIONS.get(type(info)) or type(info).__name__.removesuffix("Type").lower()
    if isinstance(info, inspect.DictType):
        name = f"dict[{text_of(info.key_type, known)}, {text_of(info.value_type, known)}]"
    elif isinstance(info, inspect.TupleType):
        name = f"tuple[{', '.join(text_of(item, known) for item in info.item_types)}]"
    elif type(info) in COLLECTIONS:
        more = ", ..." if isinstance(info, inspect.VarTupleType) else ""
        name = f"{name}[{text_of(info.item_type, known)}{more}]"  # type: ignore[attr-defined]
    return f"{name}({', '.join(limits)})" if limits else name


def _text_of_class(info: ClassType, known: frozenset[Any]) -> str:
    name: str = info.cls.__name__
    if info.cls in known:
        return name
    fields = ", ".join(f"{field.encode_name}: {text_of(field.type, known | {info.cls})}" for field in info.fields)
    tag = getattr(info, "tag", None)
    how = [] if tag is None else [f"tag={tag!r}"]
    how += ["array_like"] if getattr(info, "array_like", False) else []
    return f"{name}{'[' + ', '.join(how) + ']' if how else ''}({fields})"


def is_mutable(info: inspect.Type, known: frozenset[Any] = frozenset()) -> bool:
    """Return whether objects of the type, or objects in them, can be changed in place.

    >>> is_mutable(inspect.type_info(tuple[int, str])), is_mutable(inspect.type_info(tuple[int, list[int]]))
    (False, True)
    """
    if isinstance(info, inspect.ListType | inspect.SetType | inspect.DictType | inspect.TypedDictType):
        return True
    if isinstance(info, inspect.AnyType | inspect.ByteArrayType):
        return True
    if isinstance(info, inspect.StructType | inspect.DataclassType | inspect.NamedTupleType):
        if info.cls in known:
            return False
        return not _is_frozen(info) or any(is_mutable(field.type, known | {info.cls}) for field in info.fields)
    return any(is_mutable(inner, known) for inner in _inner(info))


def _is_frozen(info: ClassType) -> bool:
    if isinstance(info, inspect.StructType):
        return bool(info.cls.__struct_config__.frozen)
    if isinstance(info, inspect.NamedTupleType):
        return True
    params = getattr(info.cls, "__dataclass_params__", None)
    return params is not None and bool(params.frozen)


def _inner(info: inspect.Type) -> tuple[inspect.Type, ...]:
    """Return the types of which a type is made, one level down."""
    if isinstance(info, ClassType):
        return tuple(field.type for field in info.fields)
    if isinstance(info, inspect.UnionType):
        return info.types
    if isinstance(info, inspect.TupleType):
        return info.item_types
    if isinstance(info, inspect.DictType):
        return info.key_type, info.value_type
    return (info.item_type,) if type(info) in COLLECTIONS else ()  # type: ignore[attr-defined]


def _within(info: inspect.Type) -> list[inspect.Type]:
    """Return a type and every type in it, each once."""
    found: dict[int, inspect.Type] = {}
    waiting = [info]
    while waiting:
        info = waiting.pop()
        if id(info) not in found:
            found[id(info)] = info
            waiting.extend(reversed(_inner(info)))
    return list(found.values())

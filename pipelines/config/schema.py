"""The keys of a configuration with their types, limits and meanings, as its dataclasses declare them.

pydantic's JSON schema is not used, since it has neither the docstrings of attributes nor the checks of names,
and would have to be put into words too.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import pydantic

NAME = "NAME"
"""Placeholder for a name that users choose, e.g. in `style.paintings.sources.NAME.source`."""
WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}
MAPPINGS = (dict, Mapping)
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True)
class Setting:
    """A key that has a value."""

    name: str
    """Full name, e.g. `offline_rl.algorithms.bcq.tau`."""
    type: str
    """Type and limits, in words."""
    meaning: str
    """The docstring of the attribute; may be empty."""
    named: bool
    """Whether the value is a mapping from names that users choose."""


@dataclass(frozen=True)
class SettingGroup:
    """The keys that one dataclass declares, without those of nested dataclasses."""

    name: str
    """Prefix of the keys; empty for the whole configuration."""
    meaning: str
    keys: tuple[Setting, ...]


def groups(config: type, name: str = "") -> Iterator[SettingGroup]:
    """The groups of a configuration dataclass in the order of their declaration, outer groups first."""
    hints = typing.get_type_hints(config, include_extras=True)
    meanings = _attribute_docstrings(config)
    own, inner = [], []
    for field in dataclasses.fields(config):
        full = f"{name}.{field.name}" if name else field.name
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            inner.append((hint, full))
        elif get_origin(hint) in MAPPINGS and dataclasses.is_dataclass(get_args(hint)[1]):
            inner.append((get_args(hint)[1], f"{full}.{NAME}"))
        else:
            named = get_origin(hint) in MAPPINGS
            own.append(Setting(full, describe(hint), meanings.get(field.name, ""), named))
    yield SettingGroup(name, _one_line(inspect.getdoc(config) or ""), tuple(own))
    for kind, full in inner:
        yield from groups(typing.cast(type, kind), full)


def describe(hint: Any) -> str:
    """A type in words, e.g. `list of integer ≥ 1, at least 1 long`."""
    arguments = get_args(hint)
    match get_origin(hint):
        case origin if origin is Annotated:
            kind, *constraints = arguments
            limits = " and ".join(_limit(constraint) for constraint in constraints)
            return f"{describe(kind)}{' ' if limits[0] in SIGNS.values() else ', '}{limits}"
        case origin if origin is Literal:
            return " or ".join(f"`{value}`" for value in arguments)
        case origin if origin in (Union, types.UnionType):
            return " or ".join(describe(argument) for argument in arguments)
        case origin if origin is tuple:
            return f"list of {describe(arguments[0])}"
        case origin if origin in MAPPINGS:
            return f"{describe(arguments[1])} by {describe(arguments[0])}"
    return WORDS[hint]


def _limit(constraint: Any) -> str:
    """A constraint in words.

    Raises:
        TypeError: there is no description of this kind of constraint yet.
    """
    match constraint:
        case annotated_types.MinLen(length):
            return f"at least {length} long"
        case annotated_types.Len(length, longest) if length == longest:
            return f"{length} long"
        case pydantic.AfterValidator(func=check):
            # The message with which such a check rejects a name lists the names that it accepts.
            try:
                check(NAME)  # type: ignore[call-arg]
            except ValueError as error:
                return str(error).partition("; ")[2]
    for name, sign in SIGNS.items():
        if hasattr(constraint, name):
            return f"{sign} {getattr(constraint, name):g}"
    raise TypeError(f"{constraint}: say in {__name__} how to describe it")


def _attribute_docstrings(config: type) -> dict[str, str]:
    """The docstrings of the attributes of a class and its bases, which Python itself discards."""
    return {
        name: text
        for kind in reversed(config.__mro__)
        if dataclasses.is_dataclass(kind)
        for name, text in _own_attribute_docstrings(kind).items()
    }


def _own_attribute_docstrings(config: type) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        statement.target.id: _one_line(inspect.cleandoc(text))
        for statement, after in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(text := after.value.value, str)
    }


def _one_line(text: str) -> str:
    """The text without line breaks and without Sphinx's roles."""
    return re.sub(r":\w+:`~?", "`", " ".join(text.split()))

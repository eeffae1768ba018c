"""The keys of a configuration as its dataclasses declare them, and docs/configuration.md, which lists them.

pydantic's JSON schema is not used: it has neither the docstrings of attributes nor the checks of names, and
it, too, would have to be put into words.
"""

import ast
import dataclasses
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

import annotated_types
import pydantic
import yaml

from pipelines.config.offline_rl import OfEachAlgorithm
from pipelines.config.params import CONF, Config, configuration

NAME = "NAME"
"""Placeholder for a name that users choose, e.g. in `style.paintings.sources.NAME.source`."""
WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
PAGE = Path("docs/configuration.md")
PROFILES = ("smoke", "default", "study", "paper")


class Setting(NamedTuple):
    """A key that has a value: its full name, its type and limits in words, the docstring of its attribute."""

    name: str
    type: str
    meaning: str


class SettingGroup(NamedTuple):
    """The keys below a prefix that one dataclass declares, without those of nested dataclasses."""

    name: str
    meaning: str
    keys: list[Setting]


def groups(config: type, name: str = "") -> Iterator[SettingGroup]:
    """The groups of a configuration dataclass in the order of their declaration, outer groups first."""
    hints = typing.get_type_hints(config, include_extras=True)
    meanings = _attribute_docstrings(config)
    own, inner = [], []
    for field in dataclasses.fields(config):
        hint, full = hints[field.name], f"{name}.{field.name}".lstrip(".")
        if get_origin(hint) in (dict, Mapping) and dataclasses.is_dataclass(get_args(hint)[1]):
            hint, full = get_args(hint)[1], f"{full}.{NAME}"
        match get_args(hint):
            case (_, OfEachAlgorithm() as each):
                inner += [(kind, f"{full}.{name}") for name, kind in each.types.items()]
                continue
        if dataclasses.is_dataclass(hint):
            inner.append((typing.cast(type, hint), full))
        else:
            own.append(Setting(full, describe(hint), meanings.get(field.name, "")))
    yield SettingGroup(name, _one_line(inspect.getdoc(config) or ""), own)
    for kind, full in inner:
        yield from groups(kind, full)


def describe(hint: Any) -> str:
    """A type in words, e.g. `list of integer ≥ 1, at least 1 long`."""
    first, *others = get_args(hint) or (None,)
    match get_origin(hint):
        case typing.Annotated:
            limits = " and ".join(map(_limit, others))
            return f"{describe(first)}{' ' if limits[0] in SIGNS.values() else ', '}{limits}"
        case typing.Literal:
            return " or ".join(f"`{value}`" for value in (first, *others))
        case typing.Union | types.UnionType:
            return " or ".join(map(describe, (first, *others)))
        case None:
            return WORDS[hint]
        case origin if origin is tuple:
            return f"list of {describe(first)}"
    return f"{describe(others[0])} by {describe(first)}"


def _limit(constraint: Any) -> str:
    match constraint:
        case annotated_types.MinLen(length):
            return f"at least {length} long"
        case annotated_types.Len(length):
            return f"{length} long"
        case pydantic.AfterValidator(func=check):
            # The message with which such a check rejects a name lists the names that it accepts.
            try:
                check(NAME)  # type: ignore[call-arg]
            except ValueError as error:
                return str(error).partition("; ")[2]
    name = next(name for name in SIGNS if hasattr(constraint, name))
    return f"{SIGNS[name]} {getattr(constraint, name):.7g}"


def _attribute_docstrings(config: type) -> dict[str, str]:
    found = {}
    for kind in filter(dataclasses.is_dataclass, reversed(config.__mro__)):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, after in zip(definition.body, definition.body[1:], strict=False):
            match statement, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = _one_line(text)
    return found


def _one_line(text: str) -> str:
    return re.sub(r":\w+:`~?", "`", " ".join(text.split()))


def render() -> str:
    """The text of the page. The working directory has to be the repository's root."""
    values = {profile: dataclasses.asdict(configuration(f"profile={profile}")) for profile in PROFILES}
    lines = [PAGE.read_text(encoding="utf-8").partition("\n## ")[0], "## Files of `conf/`", ""]
    for entry in yaml.safe_load((CONF / "config.yaml").read_text("utf-8"))["defaults"]:
        for key, default in entry.items() if isinstance(entry, dict) else ():
            names = sorted(file.stem for file in (CONF / key.partition("@")[0]).glob("*.yaml"))
            marked = ", ".join(f"`{name}`" + " (default)" * (name == default) for name in names)
            lines.append(f"- `{key}=` {marked}")
    for group in groups(Config):
        if group.keys:
            title = f"`{group.name}`" if group.name else "All of it"
            head = "| key | type | value | |\n|---|---|---|---|"
            lines += ["", f"## {title}", "", group.meaning, "", head]
            for setting in group.keys:
                cells = (f"`{setting.name}`", setting.type, _value(setting, values), setting.meaning)
                lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _value(setting: Setting, values: Mapping[str, Mapping[str, Any]]) -> str:
    if NAME in setting.name.split("."):
        return "by name in `conf/`"
    if setting.name == "conf_digest":
        return "computed"
    shown = {}
    for profile, value in values.items():
        for name in setting.name.split("."):
            value = value[name]
        text = f"`{json.dumps(value, ensure_ascii=False)}`".replace('"', "")
        shown[profile] = "–" if value in ({}, ()) else text
    first, *others = set(shown.values())
    return ", ".join(f"{profile} {text}" for profile, text in shown.items()) if others else first


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")

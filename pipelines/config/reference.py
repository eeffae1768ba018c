"""The keys of a configuration as its dataclasses declare them, and docs/configuration.md, which lists them.

pydantic's JSON schema is not used, since it has neither the docstrings of attributes nor the checks of names,
and would have to be put into words too.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import pydantic
import yaml

NAME = "NAME"
"""Placeholder for a name that users choose, e.g. in `style.paintings.sources.NAME.source`."""
WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}
MAPPINGS = (dict, Mapping)
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}

PAGE = Path("docs/configuration.md")
PROFILES = ("smoke", "default", "study", "paper")
INTRODUCTION = """\
# Configuration

<!-- Written by `make docs` from dataclasses and the files of conf/. Edit those. -->

`conf/` holds the configuration as [Hydra](https://hydra.cc) groups. It composes to `params.yaml`, which is
all that `dvc repro` reads:

```console
$ python -m pipelines params profile=smoke executor=local 'offline_rl.sweep.seeds=[0,1,2]'
```

`KEY=VALUE` overrides one of the keys below. `GROUP=OPTION` chooses a file of `conf/`:

{groups}

A key that doesn't exist, or a value that isn't allowed, is an error that names it. The values below are
those of the profiles smoke, default, study and paper: one if they agree, else all four. A dash is an empty
list or mapping.
"""


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
        full = f"{name}.{field.name}".lstrip(".")
        hint, named = hints[field.name], get_origin(hints[field.name]) in MAPPINGS
        if dataclasses.is_dataclass(hint):
            inner.append((hint, full))
        elif named and dataclasses.is_dataclass(get_args(hint)[1]):
            inner.append((get_args(hint)[1], f"{full}.{NAME}"))
        else:
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
    from pipelines.config.params import CONF, Config, configuration

    values = {profile: dataclasses.asdict(configuration(f"profile={profile}")) for profile in PROFILES}
    defaults = yaml.safe_load((CONF / "config.yaml").read_text("utf-8"))["defaults"]
    chosen = {key: value for entry in defaults if isinstance(entry, dict) for key, value in entry.items()}
    options = []
    for key, default in chosen.items():
        names = sorted(file.stem for file in (CONF / key.partition("@")[0]).glob("*.yaml"))
        marked = ", ".join(f"`{name}`" + " (default)" * (name == default) for name in names)
        options.append(f"- `{key}=` {marked}")
    lines = [INTRODUCTION.format(groups="\n".join(options))]
    for group in groups(Config):
        if group.keys:
            title = f"`{group.name}`" if group.name else "All of it"
            lines += [f"## {title}", "", group.meaning, "", "| key | type | value | |", "|---|---|---|---|"]
            for setting in group.keys:
                cells = (f"`{setting.name}`", setting.type, _value(setting, values), setting.meaning)
                lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
            lines.append("")
    return "\n".join(lines)


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

"""Overrides of `conf/` as users write them: on the command line, or in a YAML file."""

import contextlib
import io
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from singleshot.errors import UserError, explained, shown


def read_yaml(path: Path, fix: str) -> Any:
    """The values of a YAML file that contains no references.

    Raises:
        UserError: the file can't be read, a key has no value, or a value only refers to another.
    """
    with explained(f"{path}: can't be read", fix):
        text = path.read_text("utf-8")
        refuse_references(path, text, also_keys=True)
        values = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), throw_on_missing=True)
        json.dumps(values)  # YAML has values that JSON has not, such as !!binary
        return values


def refuse_references(path: Path, text: str, *, also_keys: bool = False) -> None:
    """Refuse a YAML file whose text has aliases, or `also_keys`, that is `${…}`.

    With aliases of aliases, 300 bytes become an endless structure.

    Raises:
        UserError: it has one.
    """
    with contextlib.suppress(yaml.YAMLError):  # which the file's reader tells
        for event in yaml.parse(text, yaml.CSafeLoader):
            if isinstance(event, yaml.AliasEvent) or (also_keys and "${" in getattr(event, "value", "")):
                line = event.start_mark.line + 1
                raise UserError(f"{path}: line {line} refers to something else; write the value itself")


def in_text(text: str) -> list[str]:
    """The overrides in a text, separated by blanks or line ends; quotes keep blanks together, as in a shell.

    A backslash stands for itself.

    Raises:
        UserError: a quotation mark is not closed.
    """
    words = shlex.shlex(text, posix=True)
    words.whitespace_split, words.escape, words.commenters = True, "", ""
    try:
        return list(words)
    except ValueError as error:
        reason = str(error).lower()  # the text may have a password
        raise UserError(f"SET: {reason}; put such a value into a file, and give FROM=FILE") from error


def in_file(path: Path, conf: Path) -> list[str]:
    """The overrides in a YAML file, whose keys are nested as in params.yaml or have dots.

    Where `conf` has a folder of a key's name, the value chooses a file in it, e.g. `profile: smoke`.

    Raises:
        UserError: the file can't be read, or isn't a mapping.
    """
    values = read_yaml(path, "give a YAML file of settings")
    if not isinstance(values, dict):
        raise UserError(f"{path}: a list, not a mapping; write one KEY: VALUE a line")
    values.pop("conf_digest", None)  # of a params.yaml; the new one gets its own
    return list(_flat(values, conf))


def _flat(values: Mapping[Any, Any], conf: Path, above: str = "") -> Iterator[str]:
    for name, value in values.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, conf, f"{key}.")
        elif (conf / key.partition("@")[0]).is_dir():
            names = value if isinstance(value, list) else [value]
            if not all(isinstance(name, str) and name.isprintable() and "/" not in name for name in names):
                raise UserError(f"{key} is {shown(value)}; give the name of a file in conf/{key}")
            yield f"{key}={value}"
        else:
            yield f"++{key}={_value(value)}"


def _value(value: Any) -> str:
    match value:
        case str():
            return quoted(value)
        case list():
            return f"[{','.join(map(_value, value))}]"
        case dict():
            return f"{{{','.join(f'{key}:{_value(inner)}' for key, inner in value.items())}}}"
    return json.dumps(value)


def readable(override: str) -> str:
    """An override whose value Hydra reads as one value: as it is, or with the value as a quoted text.

    A URL with `&` or `=`, for example, is not a value in Hydra's grammar, and with a comma it would be two.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, equals, value = override.partition("=")
    with contextlib.suppress(HydraException):
        if not OverridesParser.create().parse_override(override).is_sweep_override():
            return override
    return f"{key}={quoted(value)}" if equals else override


def quoted(text: str) -> str:
    """A text in Hydra's grammar."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text, Quote.single).with_quotes()

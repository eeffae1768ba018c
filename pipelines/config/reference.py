"""`make docs` runs this module, which writes docs/configuration.md from the dataclasses and conf/."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipelines.config.params import CONF, Config, configuration
from pipelines.config.schema import NAME, Setting, SettingGroup, groups

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


def render() -> str:
    """The text of the page. The working directory has to be the repository's root."""
    values = {profile: dataclasses.asdict(configuration(f"profile={profile}")) for profile in PROFILES}
    parts = [INTRODUCTION.format(groups="\n".join(_options()))]
    parts += [_section(group, values) for group in groups(Config) if group.keys]
    return "\n".join(parts)


def _options() -> Iterator[str]:
    """A line for each group of conf/."""
    defaults = yaml.safe_load((CONF / "config.yaml").read_text("utf-8"))["defaults"]
    chosen = {key: value for entry in defaults if isinstance(entry, dict) for key, value in entry.items()}
    for key in chosen:
        names = sorted(file.stem for file in (CONF / key.partition("@")[0]).glob("*.yaml"))
        yield f"- `{key}=` " + ", ".join(f"`{name}`" + " (default)" * (name == chosen[key]) for name in names)


def _section(group: SettingGroup, values: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        f"| `{key.name}` | {_cell(key.type)} | {_value(key, values)} | {_cell(key.meaning)} |"
        for key in group.keys
    ]
    title = f"`{group.name}`" if group.name else "All of it"
    return "\n".join(
        [f"## {title}", "", group.meaning, "", "| key | type | value | |", "|---|---|---|---|", *rows, ""]
    )


def _value(key: Setting, values: Mapping[str, Mapping[str, Any]]) -> str:
    if NAME in key.name.split("."):
        return "by name in `conf/`"
    if key.name == "conf_digest":
        return "computed"
    shown = [_shown(key, values[profile]) for profile in PROFILES]
    return shown[0] if len(set(shown)) == 1 else ", ".join(map(" ".join, zip(PROFILES, shown, strict=True)))


def _shown(key: Setting, values: Mapping[str, Any]) -> str:
    value: Any = values
    for name in key.name.split("."):
        value = value[name]
    return "–" if value in ({}, ()) else f"`{json.dumps(value, ensure_ascii=False)}`".replace('"', "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")

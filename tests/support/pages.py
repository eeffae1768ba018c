"""Code blocks of the project's Markdown pages, and doing in a checkout what they tell a reader to do."""

import re
from dataclasses import dataclass
from typing import Any

import yaml
from checkouts import ROOT, Checkout

BLOCK = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    language: str
    path: str
    """The file that it is the whole of; empty for others."""
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks of `docs/<page>.md`, in their order."""
    return [Block(*found) for found in BLOCK.findall((ROOT / f"docs/{page}.md").read_text())]


def write_files(page: str, checkout: Checkout) -> None:
    """Write the files of a page, which are new, but for additions to a YAML file."""
    for block in blocks(page):
        if block.path:
            file = checkout.path / block.path
            added = block.text
            if file.exists():
                values = yaml.safe_load(file.read_text())
                _add(yaml.safe_load(block.text), values)
                added = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
            file.write_text(added)


def _add(more: dict[str, Any], values: dict[str, Any]) -> None:
    for name, own in more.items():
        match values.get(name):
            case dict(inner):
                _add(own, inner)
            case list(items):
                items += own
            case _:
                values[name] = own


def commands(page: str) -> list[str]:
    """What a page has its reader type."""
    consoles = [block.text for block in blocks(page) if block.language == "console"]
    return [line[2:] for text in consoles for line in text.splitlines() if line.startswith("$ ")]

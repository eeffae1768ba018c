"""What photos, paintings and weights have in common: they come from somewhere, and a card says where."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from singleshot.io.addresses import is_remote, local_path
from singleshot.job import Job


def local_input(name: str, location: str | None) -> dict[str, Path]:
    """The input file or folder at a configured location, if it is a local one."""
    return {name: local_path(location)} if location and not is_remote(location) else {}


def write_card(job: Job, card: Mapping[str, Any]) -> None:
    """Write `card.json` to a job's output."""
    text = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
    (job.output / "card.json").write_text(text, encoding="utf-8")

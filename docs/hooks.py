"""What MkDocs reads otherwise than a code host: links out of docs/, fences of files, roles, doctests."""

import re
from pathlib import Path
from typing import Any

import griffe


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Leave a link out of docs/ its text alone, and make the path after a fence's language its title."""

    def kept(link: re.Match[str]) -> str:
        target = Path(page.file.abs_src_path).parent / link[2].partition("#")[0]
        return link[0] if ":" in link[2] or target.resolve().is_relative_to(config.docs_dir) else link[1]

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", kept, text) for text in parts[::2]]
    return re.sub(r"^```(\w+) (\S+)$", r'```\1 title="\2"', "".join(parts), flags=re.MULTILINE)


class Docstrings(griffe.Extension):
    """Doctests become blocks of code, and :func:`~module.name` a link, where the reference has it."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: D102
        if obj.docstring:
            link = r'<autoref optional identifier="\1"><code>\2</code></autoref>'
            text = re.sub(r":\w+:`~?((?:\w+\.)*(\w+))`", link, obj.docstring.value)
            obj.docstring.value = re.sub(r"(?m)^>>> .*(?:\n\S.*)*", r"```pycon\n\g<0>\n```", text)

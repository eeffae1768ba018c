"""What MkDocs reads otherwise than a code host: links out of docs/, fences of files, roles, doctests."""

import re
from pathlib import Path
from typing import Any

import griffe


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Lead links out of docs/ to `repo_url`, if it is set; the path after a fence's language is its title."""

    def kept(link: re.Match[str]) -> str:
        path, _, anchor = link[2].partition("#")
        target = (Path(page.file.abs_src_path).parent / path).resolve()
        if ":" in link[2] or target.is_relative_to(config.docs_dir):
            return link[0]
        if not config.repo_url:
            return link[1]
        inside = target.relative_to(Path(config.docs_dir).parent).as_posix()
        return f"[{link[1]}]({config.repo_url.rstrip('/')}/blob/HEAD/{inside}{f'#{anchor}' * bool(anchor)})"

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

"""Documents that come with latflow: the files of `docs`, and those at the top."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from latflow.errors import UserError
from latflow.workflow.settings import workflow_folder

# By the name of their topic; a wheel has them beside the Snakefile.
_TOP = {"readme": "README.md", "configuration": "config/README.md",
        "changelog": "CHANGELOG.md"}  # fmt: skip
_HEADING = re.compile(r"(#+) +(.+)")


def list_pages() -> dict[str, str]:
    """Return the title of each document, by its topic."""
    return {topic: _title(path) for topic, path in _paths().items()}


def read_page(topic: str, section: str = "") -> str:
    """Return a document, or a part of it.

    Args:
        topic: see `list_pages`.
        section: words of a heading, in any case; the part goes up to the next heading
            that isn't below it.

    Raises:
        UserError: there is no such document or part; names those that there are.
    """
    paths = _paths()
    path = paths.get(topic.lower().removesuffix(".md").removeprefix("docs/"))
    if path is None:
        near = difflib.get_close_matches(topic, paths, 3, 0.5) or list(paths)
        raise UserError(
            f"there is no document on {topic}",
            remedy=f"choose from: {', '.join(near)}",
        )
    text = path.read_text(encoding="utf-8")
    return _section(text, section, topic) if section else text


def _paths() -> dict[str, Path]:
    """Return the documents by topic."""
    folder = workflow_folder()
    top = {topic: folder / name for topic, name in _TOP.items()}
    docs = sorted(folder.glob("docs/*.md")) + sorted(folder.glob("docs/decisions/*.md"))
    found = {**top, **{path.stem: path for path in docs}}
    return {topic: path for topic, path in found.items() if path.is_file()}


def _title(path: Path) -> str:
    """Return the first heading of a document."""
    with path.open(encoding="utf-8") as lines:
        headings = filter(None, map(_HEADING.match, lines))
        return next((heading[2].strip() for heading in headings), path.stem)


def _section(text: str, words: str, topic: str) -> str:
    """Return the part of a document under a heading with some words.

    Raises:
        UserError: none was found; names the headings.
    """
    lines = text.splitlines(keepends=True)
    is_code, headings = False, []
    for number, line in enumerate(lines):
        is_code ^= line.startswith("```")
        if (found := _HEADING.match(line)) and not is_code:
            headings.append((number, len(found[1]), found[2].strip()))
    for place, (number, level, title) in enumerate(headings):
        if words.lower() in title.lower():
            after = (n for n, other, _ in headings[place + 1 :] if other <= level)
            return "".join(lines[number : next(after, len(lines))])
    raise UserError(
        f"{topic} has no section on {words}",
        remedy=f"choose from: {'; '.join(title for _, _, title in headings)}",
    )

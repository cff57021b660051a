"""Hooks of MkDocs: pages from outside `docs`, and links to files that texts name."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

TOP = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "config/README.md": "configuration.md",
    "CHANGELOG.md": "changelog.md",
}
_CODE = re.compile(r"```.*?```|`((?:docs/)?[\w./-]+\.md)`", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie at the top of the repository, and a list of decisions."""
    for source, page in PAGES.items():
        text = (TOP / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    decisions = [path.name for path in sorted((TOP / "docs/decisions").glob("*.md"))]
    text = "".join(f"* [{_title(name)}]({name})\n" for name in decisions)
    page = File.generated(
        config, "decisions/index.md", content=f"# Decisions\n\n{text}"
    )
    files.append(page)
    return files


def _title(decision: str) -> str:
    """Return the heading of a decision."""
    text = (TOP / "docs/decisions" / decision).read_text(encoding="utf-8")
    return text.partition("\n")[0].removeprefix("# ")


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Make links of documents that a text names in code: `docs/serving.md`."""
    here = PurePosixPath(page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return found[0]  # a block of code
        target = PAGES.get(name, name.removeprefix("docs/"))
        if files.get_file_from_path(target) is None:
            return found[0]
        up = "../" * len(here.parts)
        return f"[{PurePosixPath(target).stem}]({up}{target})"

    return _CODE.sub(link, markdown)

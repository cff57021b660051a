"""The outcome of an experiment as Markdown, for a repository or a message.

Public: `markdown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from latflow.report.page import Block, Heading, Note, Section, Table


def markdown(title: str, summary: str, sections: Sequence[Section]) -> str:
    """Return sections with their tables and notes; figures stay in the report.

    Args:
        title: heading of the document.
        summary: the outcome in a sentence.
        sections: in their order.
    """
    parts = [f"# {title}", summary]
    for section in sections:
        parts += [f"## {section.title}", section.lead]
        parts += [text for block in section.blocks for text in _texts(block)]
    return "\n\n".join(parts) + "\n"


def _texts(block: Block) -> Iterator[str]:
    """Yield the paragraphs of a block."""
    if isinstance(block, Heading):
        yield f"### {block.text}"
    elif isinstance(block, Note):
        yield block.text
    elif isinstance(block, Table):
        yield "\n".join(_lines(block))
        if block.caption:
            yield block.caption


def _lines(table: Table) -> Iterator[str]:
    """Yield a table's lines: numbers to the right."""
    titles = table.titles
    yield _line(titles)
    yield _line([":--" if title in table.text else "--:" for title in titles])
    for row in table.rows:
        yield _line([str(row.get(title, "")) for title in titles])


def _line(cells: Sequence[str]) -> str:
    """Return a line of a table."""
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"

"""Tables: drawn by rich on a terminal, aligned plain text elsewhere (layer 9).

On a terminal that is too narrow for its columns a table becomes a list of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollmesh.cli.output import Output

_LEAST_TEXT, _GAP = 6, 3
"""Characters that a column of text wants at least, and those between two columns."""


def print_table(
    output: Output,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    numbers: Sequence[str] = (),
) -> None:
    """Write a table as a result.

    Args:
        output: Where to.
        headers: Names of the columns.
        rows: Their cells.
        title: A line above.
        numbers: Names of the columns that are aligned to the right.
    """
    if output.results.isatty():
        _print_drawn(output, headers, rows, (title, frozenset(numbers)))
        return
    if title:
        output.result(title)
    for line in table_lines(headers, rows, numbers):
        output.result(line)


def table_lines(
    headers: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()
) -> list[str]:
    """Return a table as lines of plain text."""
    table = [headers, *rows]
    wide = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    is_right = [header in numbers for header in headers]
    lines: list[str] = []
    for row in table:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, wide, is_right, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return lines


def _print_drawn(
    output: Output,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    looks: tuple[str, frozenset[str]],
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title, numbers = looks
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, justify="right" if header in numbers else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=output.results)
    if _least_width(headers, rows, numbers) <= console.width:
        console.print(table)
        return
    if title:
        console.print(Text(title))
    for row in rows:  # on a narrow terminal one below the other: cut to pieces nobody reads them
        card = Table.grid(padding=(0, 2))
        card.add_column(no_wrap=True)
        card.add_column(overflow="fold")
        for header, cell in zip(headers, row, strict=True):
            card.add_row(Text(header), Text(cell))
        console.print(card)
        console.print()


def _least_width(
    headers: Sequence[str], rows: Sequence[Sequence[str]], numbers: frozenset[str]
) -> int:
    """Return the width below which a table is cut to pieces: whole numbers, and a bit of text."""
    width = 0
    for header, *cells in zip(headers, *rows, strict=True):
        longest = max(map(len, (header, *cells)))
        width += _GAP + (longest if header in numbers else min(longest, _LEAST_TEXT))
    return width

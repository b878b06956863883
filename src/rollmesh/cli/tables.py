"""Tables: drawn by rich on a terminal, aligned plain text elsewhere (layer 9).

On a terminal that is too narrow for its columns a table leaves out those that can be spared; where
that does not do it becomes a list of its rows. Words are not cut, so that they can be typed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from rollmesh.cli.output import Output

_GAP, _EDGES = 3, 2
"""Characters between two columns of a drawn table, and those at its sides."""
_LEAST_NAME = 18
"""Characters that the first column has at least where it has so many: it names the row."""


def print_table(
    output: Output,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    numbers: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """Write a table as a result.

    Args:
        output: Where to.
        headers: Names of the columns.
        rows: Their cells.
        title: A line above.
        numbers: Names of the columns that are aligned to the right.
        spare: Names of the columns that a narrow terminal does without, the first one first.
    """
    if output.results.isatty():
        _print_drawn(output, _Drawn(headers, rows, title, frozenset(numbers)), spare)
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


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A table for a terminal."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str
    numbers: frozenset[str]

    def without(self, name: str) -> _Drawn:
        """Return the table without a column."""
        place = self.headers.index(name)
        headers, *rows = ([*row[:place], *row[place + 1 :]] for row in (self.headers, *self.rows))
        return replace(self, headers=headers, rows=rows)

    def widths(self, room: int) -> list[int] | None:
        """Return how wide the columns are in so many characters; None where words would be cut."""
        columns = list(zip(self.headers, *self.rows, strict=True))
        wanted = [max(map(len, cells)) for cells in columns]
        wide = [max(map(len, " ".join(cells).split()), default=0) for cells in columns]
        wide[0] = max(wide[0], min(wanted[0], _LEAST_NAME))
        left = room - sum(wide) - _GAP * (len(wide) - 1) - _EDGES
        if left < 0:
            return None
        for _ in range(min(left, sum(wanted) - sum(wide))):
            tallest = max(range(len(wide)), key=lambda n: wanted[n] / max(1, wide[n]))
            wide[tallest] += 1
        return wide


def _print_drawn(output: Output, table: _Drawn, spare: Sequence[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=output.results)
    narrow, left_out = table, list[str]()
    widths = narrow.widths(console.width)
    for name in spare:
        if widths is not None:
            break
        narrow = narrow.without(name)
        widths = narrow.widths(console.width)
        left_out.insert(0, name)
    if widths is None:
        _print_cards(console, table)
        return
    console.print(_as_rich(narrow, widths))
    if left_out:
        console.print(Text(f"too narrow for: {', '.join(left_out)}", style="dim"))


def _as_rich(table: _Drawn, widths: Sequence[int]) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=table.title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for header, width in zip(table.headers, widths, strict=True):
        justify = "right" if header in table.numbers else "left"
        drawn.add_column(header, justify=justify, width=width)
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def _print_cards(console: Console, table: _Drawn) -> None:
    """Print the rows one below the other: cut to pieces nobody reads them."""
    from rich.table import Table
    from rich.text import Text

    if table.title:
        console.print(Text(table.title))
    for row in table.rows:
        card = Table.grid(padding=(0, 2))
        card.add_column(no_wrap=True)
        card.add_column(overflow="fold")
        for header, cell in zip(table.headers, row, strict=True):
            card.add_row(Text(header), Text(cell))
        console.print(card)
        console.print()

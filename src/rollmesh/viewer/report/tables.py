"""Tables and lists of a report, as HTML: every value that goes in is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rollmesh.viewer.report.svg import esc, number


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell.

    Attributes:
        text: What it says, as plain text.
        more: What it says besides, smaller.
        sort: What it is sorted by, where that is not its text.
        is_number: Whether it is set to the right.
        swatch: Class of a coloured mark before the text; `""` for none.
    """

    text: str
    more: str = ""
    sort: float | str | None = None
    is_number: bool = False
    swatch: str = ""


def numeric(value: float | None, more: str = "", *, digits: int = 3) -> Cell:
    """Return a cell with a number."""
    return Cell(number(value, digits), more, sort="" if value is None else value, is_number=True)


def count(value: int) -> Cell:
    """Return a cell with a whole number."""
    return Cell(f"{value:,}", sort=value, is_number=True)


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    caption: str,
    numbers_from: int = 1,
    is_sortable: bool = True,
) -> str:
    """Return a table whose first column names the row.

    Args:
        heads: Column heads.
        rows: Cells, as many as heads.
        caption: What the table is, in a sentence.
        numbers_from: The column from which on heads are set to the right.
        is_sortable: Whether a click on a head sorts it.
    """
    head = "".join(
        f'<th scope="col"{_class("n" if place >= numbers_from else "")}>{esc(text)}</th>'
        for place, text in enumerate(heads)
    )
    body = "".join(
        f"<tr>{''.join(_cell(c, is_head=i == 0) for i, c in enumerate(row))}</tr>" for row in rows
    )
    kind = ' class="sortable"' if is_sortable else ""
    return (
        f'<div class="scroll"><table{kind}><caption>{esc(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell, *, is_head: bool) -> str:
    mark = f'<span class="swatch {esc(cell.swatch)}"></span>' if cell.swatch else ""
    more = f' <span class="reach">{esc(cell.more)}</span>' if cell.more else ""
    sort = "" if cell.sort is None else f' data-sort="{esc(cell.sort)}"'
    tag, scope = ("th", ' scope="row"') if is_head else ("td", "")
    return (
        f"<{tag}{scope}{_class('n' if cell.is_number else '')}{sort}>"
        f"{mark}{esc(cell.text)}{more}</{tag}>"
    )


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def tile(name: str, big: str, small: str = "") -> str:
    """Return a number with its name, large."""
    below = f'<dd class="small">{esc(small)}</dd>' if small else ""
    return f'<div><dt>{esc(name)}</dt><dd class="big">{esc(big)}</dd>{below}</div>'


def facts_list(facts: Mapping[str, Any]) -> str:
    """Return names and values; nested values as one line each."""
    rows = "".join(
        f"<dt>{esc(name.replace('_', ' '))}</dt><dd>{esc(fact_text(value))}</dd>"
        for name, value in facts.items()
        if value not in (None, "", {}, [])
    )
    return f'<dl class="facts">{rows}</dl>' if rows else ""


def fact_text(value: Any) -> str:
    """Return a plain value as one line of text."""
    if isinstance(value, Mapping):
        table = cast("Mapping[Any, Any]", value)
        return ", ".join(f"{name} {fact_text(item)}" for name, item in table.items())
    if isinstance(value, (list, tuple)):
        return " ".join(fact_text(item) for item in cast("Sequence[Any]", value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Return a legend of (class of the mark, words)."""
    items = "".join(
        f'<li><span class="swatch {esc(mark)}"></span>{esc(words)}</li>' for mark, words in entries
    )
    return f'<ul class="legend">{items}</ul>'

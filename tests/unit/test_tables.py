"""Tables of the command line: drawn on a terminal, aligned text elsewhere."""

from __future__ import annotations

import io
import re

from rollmesh.cli.output import Output
from rollmesh.cli.tables import print_table, table_lines

HEADERS = ("task", "episodes")
ROWS = [("lift [bold]", "5"), ("place", "1,000")]


class Terminal(io.StringIO):
    """A stream that people look at."""

    def isatty(self):
        return True


def test_plain_tables_are_aligned_and_have_no_trailing_blanks():
    assert table_lines(HEADERS, ROWS, ["episodes"]) == [
        "task         episodes",
        "lift [bold]         5",
        "place           1,000",
    ]
    assert table_lines(("a", "b"), [("1", "")]) == ["a  b", "1"]


def test_a_pipe_gets_plain_text():
    stream = io.StringIO()
    print_table(Output(stream, stream), HEADERS, ROWS, title="Tasks")
    assert stream.getvalue().splitlines()[:2] == ["Tasks", "task         episodes"]


def test_a_terminal_gets_a_drawn_table_that_takes_cells_as_they_are():
    stream = Terminal()
    print_table(Output(stream, stream), HEADERS, ROWS, title="Tasks", numbers=["episodes"])
    assert "Tasks" in stream.getvalue()
    assert "─" in stream.getvalue()
    assert "lift [bold]" in stream.getvalue()


def test_a_table_that_a_terminal_is_too_narrow_for_is_a_list_of_its_rows(monkeypatch):
    monkeypatch.setenv("COLUMNS", "24")
    stream = Terminal()
    headers = ("run", "status", "last written", "mean return")
    rows = [("cartpole-random-7", "finished", "2026-11-30", "21.021"), ("other", "killed", "", "-")]
    print_table(Output(stream, stream), headers, rows, title="Runs", numbers=["mean return"])
    text = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 24
    assert "".join(lines).count("finished") == 1
    assert "mean return   21.021" in lines
    assert "last written" in "".join(lines)

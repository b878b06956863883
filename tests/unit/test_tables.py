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


def drawn(headers, rows, **options):
    stream = Terminal()
    print_table(Output(stream, stream), headers, rows, **options)
    text = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    return [line.rstrip() for line in text.splitlines()]


RUNS = ("run", "status", "episodes", "success", "last written", "env", "model")
NAME = "halfcheetah-v5-half-cheetah-halfch-0a1b2c3d"
RUN = (NAME, "finished", "300/300", "-", "2026-11-30 14:48:43", "HalfCheetah-v5", "nets:Policy")


def test_a_name_that_is_typed_again_is_never_cut(monkeypatch):
    for columns in (80, 100, 120, 160):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = drawn(RUNS, [RUN], numbers=["episodes"], spare=["model", "env", "last written"])
        assert sum(NAME in line for line in lines) == 1
        assert any("300/300" in line for line in lines)
        assert "…" not in "".join(lines)
        assert max(map(len, lines)) <= columns


def test_columns_that_can_be_spared_are_left_out_and_named(monkeypatch):
    monkeypatch.setenv("COLUMNS", "96")
    lines = drawn(RUNS, [RUN], numbers=["episodes"], spare=["model", "env", "last written"])
    assert not any("HalfCheetah-v5" in line or "nets:Policy" in line for line in lines)
    assert "─" in "".join(lines)
    assert lines[-1] == "too narrow for: env, model"
    monkeypatch.setenv("COLUMNS", "160")
    lines = drawn(RUNS, [RUN], numbers=["episodes"], spare=["model", "env", "last written"])
    assert any("HalfCheetah-v5" in line and "nets:Policy" in line for line in lines)
    assert not any("too narrow" in line for line in lines)


def test_what_is_left_out_of_no_table_is_in_the_list_of_a_narrow_one(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    lines = drawn(RUNS, [RUN], numbers=["episodes"], spare=["model", "env", "last written"])
    assert "model         nets:Policy" in lines


def test_a_long_name_of_a_row_has_room_before_columns_that_can_be_spared(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    headers = ("task", "episodes", "errored", "success", "95 %", "mean return", "95 % ", "length")
    name = "pick up the black bowl between the plate and put it there"
    row = (name, "30", "", "0.567", "[0.392, 0.726]", "0.000", "(all equal)", "3.000")
    numbers = ["episodes", "errored", "success", "mean return", "length"]
    lines = drawn(headers, [row], numbers=numbers, spare=["length"])
    assert lines[-1] == "too narrow for: length"
    assert len(lines) < 12
    monkeypatch.setenv("COLUMNS", "120")
    assert "length" in "".join(drawn(headers, [row], numbers=numbers, spare=["length"]))

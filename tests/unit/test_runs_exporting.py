"""A run for other tools."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from dataclasses import asdict

import pyarrow.parquet
import pytest

from rollmesh.errors import InvalidSpec
from rollmesh.runs.exporting import COLUMNS, export_run, write_whole
from rollmesh.runs.journal import Journal
from rollmesh.runs.reading import read_run
from rollmesh.spaces.conformance import OddObservations
from tests.unit.runs_toys import episode, identity

EPISODES = (
    episode(0, total_reward=0.1 + 0.2),
    episode(1, total_reward=math.nan, success=None, seed=None),
    episode(2, total_reward=-math.inf, error='boom, "loud"\nand long', success=None),
    episode(
        3,
        attempts=3,
        causes=("SIGKILL", "exit code 1"),
        odd_observations=(OddObservations(kind="nan", path="observation", count=2),),
    ),
)


@pytest.fixture
def run(tmp_path):
    with Journal.open(tmp_path / "run", identity=identity(), facts={}) as journal:
        for one in EPISODES:
            journal.record(one)
    return read_run(tmp_path / "run")


def test_csv_has_a_row_an_episode_and_exact_numbers(run):
    rows = list(csv.DictReader(io.StringIO(export_run(run, "csv").decode())))
    assert tuple(rows[0]) == COLUMNS
    assert [int(row["index"]) for row in rows] == [0, 1, 2, 3]
    assert float(rows[0]["total_reward"]) == 0.1 + 0.2
    assert math.isnan(float(rows[1]["total_reward"]))
    assert float(rows[2]["total_reward"]) == -math.inf
    assert (rows[1]["success"], rows[1]["seed"], rows[3]["success"]) == ("", "", "True")
    assert rows[2]["error"] == 'boom, "loud"\nand long'
    assert json.loads(rows[3]["causes"]) == ["SIGKILL", "exit code 1"]
    assert rows[0]["causes"] == rows[0]["odd_observations"] == ""
    assert json.loads(rows[3]["odd_observations"]) == [
        {"kind": "nan", "path": "observation", "count": 2}
    ]


@pytest.mark.parametrize("broken", ["10 %\r20 %\r", "10 %\r\n20 %", "10 %\n20 %"])
def test_csv_keeps_a_row_together_whatever_breaks_its_lines(tmp_path, broken):
    with Journal.open(tmp_path / "run", identity=identity(), facts={}) as journal:
        journal.record(episode(0, error=broken, success=None))
        journal.record(episode(1))
    text = export_run(read_run(tmp_path / "run"), "csv").decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["index"] for row in rows] == ["0", "1"]
    assert rows[0]["error"] == broken
    assert text.startswith(",".join(COLUMNS) + "\n0,")


def test_parquet_has_types(run, tmp_path):
    path = tmp_path / "episodes.parquet"
    path.write_bytes(export_run(run, "parquet"))
    table = pyarrow.parquet.read_table(path)
    assert sorted(table.column_names) == sorted(COLUMNS)
    rows = table.to_pylist()
    for row, one in zip(rows, EPISODES, strict=True):
        for name in COLUMNS:
            value = getattr(one, name)
            expected = list(value) if name == "causes" else value
            if name == "odd_observations":
                expected = [asdict(odd) for odd in value]
            assert repr(row[name]) == repr(expected), name
    assert table.schema.metadata[b"rollmesh.plan_hash"] == identity().plan_hash.encode()


def test_parquet_writes_seeds_beyond_64_bits_as_text(tmp_path):
    with Journal.open(tmp_path / "run", identity=identity(), facts={}) as journal:
        journal.record(episode(0, seed=2**64))
        journal.record(episode(1, seed=None))
    data = export_run(read_run(tmp_path / "run"), "parquet")
    table = pyarrow.parquet.read_table(io.BytesIO(data))
    assert table.column("seed").to_pylist() == [str(2**64), None]


def test_json_holds_everything(run):
    table = json.loads(export_run(run, "json"))
    assert [e["index"] for e in table["result"]["episodes"]] == [0, 1, 2, 3]
    assert table["result"]["episodes"][1]["total_reward"] is None
    assert "episodes[1].total_reward" in table["result"]["non_finite"]


def test_without_pyarrow_the_extra_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidSpec, match=r"rollmesh\[parquet\]"):
        export_run(run, "parquet")


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, b"first")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rollmesh.runs.exporting.os.fsync", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        write_whole(path, b"second")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]

"""What experiment trackers share, with a tracker of our own, and TensorBoard's files."""

from __future__ import annotations

import json
import struct
import threading

import pytest

import rollmesh
from rollmesh import observers
from rollmesh.observers.tracker import Tracker
from tests.unit.viewer_toys import completed, errored, metric, session_started, telemetry


class Notes(Tracker):
    """Keeps what it is told."""

    def __init__(self, *, fails=False, gate=None):
        self.start, self.episodes, self.summary, self.finished = None, [], None, 0
        self.fails, self.gate = fails, gate
        super().__init__()

    def log_start(self, facts):
        self.start = dict(facts)

    def log_episode(self, place, values):
        if self.gate is not None:
            self.gate.wait(30)
        if self.fails:
            raise OSError("no route to host")
        self.episodes.append((place, dict(values)))

    def log_summary(self, values):
        self.summary = dict(values)

    def finish(self):
        self.finished += 1


def test_every_finished_episode_and_a_summary_are_logged():
    with Notes() as notes:
        notes.session_started(session_started())
        notes.episode_completed(completed(4, 2.0, success=True))
        notes.episode_completed(completed(1, 4.0))
        notes.episode_errored(errored(2))
        notes.on_telemetry(telemetry(metric("env.step"), horizon="session"))
    assert notes.start == {"session_id": "s", "env": "env", "model": "model"}
    places = [place for place, _ in notes.episodes]
    assert places == [1, 2, 3]
    first, second, third = (values for _, values in notes.episodes)
    assert (first["index"], first["return"], first["length"], first["success"]) == (4, 2.0, 3, 1.0)
    assert "success" not in second
    assert third["errored"] == 1.0
    assert "return" not in third
    assert notes.summary["mean_return"] == 3.0
    assert notes.summary["success_rate_high"] == 1.0
    assert notes.summary["step_p99_ms"] == 8.0
    assert notes.finished == 1


def test_closing_twice_finishes_once():
    notes = Notes()
    notes.close()
    notes.close()
    assert notes.finished == 1


def test_a_tracker_that_fails_is_one_warning_and_the_summary_is_still_tried(caplog):
    with Notes(fails=True) as notes:
        for index in range(5):
            notes.episode_completed(completed(index, 1.0))
    assert notes.summary["episodes"] == 5
    assert notes.finished == 1
    assert [record.getMessage() for record in caplog.records] == [
        "tracker.failed tracker=Notes (the run goes on; further failures are not logged)"
    ]


def test_a_tracker_that_hangs_holds_neither_the_run_nor_its_end(monkeypatch, caplog):
    monkeypatch.setattr("rollmesh.observers.tracker.PATIENCE_S", 0.05)
    gate = threading.Event()
    notes = Notes(gate=gate)
    result = rollmesh.evaluate("random", "CartPole-v1", episodes=5, base_seed=0, hooks=notes)
    assert len(result.episodes) == 5
    notes.close()
    assert "tracker.close_timed_out" in caplog.text
    gate.set()
    notes._thread.join(10)
    assert len(notes.episodes) == 5


def test_what_a_full_queue_refuses_is_counted_and_told(monkeypatch, caplog):
    monkeypatch.setattr("rollmesh.observers.tracker._MOST_WAITING", 2)
    gate = threading.Event()
    notes = Notes(gate=gate)
    for index in range(20):
        notes.episode_completed(completed(index, 1.0))
    gate.set()
    notes.close()
    assert 2 <= len(notes.episodes) < 20
    assert notes.summary["episodes"] == 20
    assert "tracker.lost tracker=Notes" in caplog.text


# ---------------------------------------------------------------------------- TensorBoard


def scalars(folder):
    """Read the scalars of the event files in a folder (TFRecord: length, check, data, check)."""
    events = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = {}
    for file in folder.iterdir():
        data, place = file.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = events.Event.FromString(data[place + 12 : place + 12 + length])
            place += length + 16
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(value.tag, {})[event.step] = value.simple_value
                else:
                    found[value.tag] = value.tensor.string_val[0].decode()
    return found


def test_tensorboard_files_hold_episodes_and_the_summary(tmp_path):
    pytest.importorskip("tensorboardX")
    folder = tmp_path / "logs"
    with observers.open("tensorboard", folder=folder) as watching:
        result = rollmesh.evaluate(
            "random", "CartPole-v1", episodes=12, base_seed=0, hooks=watching
        )
    found = scalars(folder)
    logged = found["rollmesh/episode/return"]
    assert [logged[n] for n in range(1, 13)] == [e.total_reward for e in result.episodes]
    assert found["rollmesh/result/mean_return"][0] == pytest.approx(result.mean_return)
    low, high = result.return_interval
    assert found["rollmesh/result/mean_return_low"][0] == pytest.approx(low)
    assert found["rollmesh/result/mean_return_high"][0] == pytest.approx(high)
    text = next(value for tag, value in found.items() if tag.startswith("rollmesh/run"))
    assert json.loads(text)["env"] == result.env

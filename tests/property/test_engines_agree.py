"""R46: the same inputs give the same events under every engine and grouping.

With one group the whole stream is equal; projected on an episode it is equal however lanes are
grouped. Ids, times, lanes, record ids and window telemetry are left out.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.ports import AutoresetMode
from rollmesh.runtime.driver import MakesEngine, RouteDriver
from rollmesh.runtime.engine.blocking import BlockingEngine
from rollmesh.runtime.engine.concurrent import ConcurrentEngine
from rollmesh.runtime.engine.hosted import HostedEngine
from rollmesh.runtime.engine.simulated import SimulatedEngine, VirtualClock, Weather
from rollmesh.runtime.trace import TraceHash
from tests.toys import LANES, VECTOR, Notes, ToyEnv, ToyModel, spec_for

ONE_GROUP = ("blocking", "concurrent", "threads", "hosted", "simulated")


class OnThread:
    """A port whose calls run on a thread, one for each lane where lanes are independent."""

    def __init__(self, port: Any, threads: list[OwnThread]) -> None:
        self._port = port
        self._threads = threads
        self.thread = threads[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def submit(
        self, method: str, request: Any, callback: Any, env_indices: tuple[int, ...]
    ) -> None:
        place = env_indices[0] if len(self._threads) > 1 and env_indices else 0
        self._threads[place].submit(getattr(self._port, method), callback, request)

    def abandon(self, env_indices: tuple[int, ...]) -> None:
        raise AssertionError(f"nothing is late here: {env_indices}")


def _run(way: str, env: ToyEnv, frames: int, fields: dict[str, Any]) -> tuple[Notes, str]:
    notes, trace, model = Notes(), TraceHash(), ToyModel(frames)
    clock = VirtualClock()
    threads: list[OwnThread] = []
    env_port, model_port = _ports(way, env, model, threads)
    engines: dict[str, MakesEngine] = {
        "blocking": BlockingEngine,
        "hosted": lambda parts: HostedEngine(parts, threads[0]),
        "simulated": lambda parts: SimulatedEngine(parts, clock, Weather(), 7),
    }
    driver = RouteDriver(
        spec_for(env, **fields),
        env_port,
        model_port,
        hooks=[notes, trace],
        make_engine=engines.get(way, ConcurrentEngine),
    )
    driver.run()
    for thread in threads:
        thread.stop()
    return notes, trace.hexdigest()


def _ports(way: str, env: ToyEnv, model: ToyModel, threads: list[OwnThread]) -> tuple[Any, Any]:
    if way not in ("threads", "hosted"):
        return env, model
    lanes = env.contract.num_envs if "subset_step" in env.capabilities else 1
    threads.extend([OwnThread(f"lane-{i}") for i in range(lanes)])
    model_threads = [threads[0]] if way == "hosted" else [OwnThread("model")]
    threads.extend([t for t in model_threads if t not in threads])
    if way == "hosted":
        return env, model
    return OnThread(env, threads[:lanes]), OnThread(model, model_threads)


_LEFT_OUT = {"episode_id", "episode_ids", "record_id", "record_ids", "duration_s", "session_id"}
_LEFT_OUT_OF_EPISODES = _LEFT_OUT | {"env_index", "env_indices", "started_from_auto_reset"}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return repr(value)


def _stream(notes: Notes) -> list[Any]:
    """Every event of a run, without ids and times."""
    rows: list[Any] = []
    for name, event in notes.events:
        if name in ("on_telemetry", "log"):
            continue
        fields = [f for f in event.__struct_fields__ if f not in _LEFT_OUT]
        rows.append((name, [(f, _plain(getattr(event, f))) for f in fields]))
    return rows


def _episodes(notes: Notes) -> dict[int, list[Any]]:
    """The rows of each planned episode, in order."""
    index_of: dict[str, int] = {}
    rows: dict[int, list[Any]] = defaultdict(list)
    for name, event in notes.events:
        if name == "episode_started":
            index_of[event.episode_id] = event.episode_index
        ids = getattr(event, "episode_ids", None) or [getattr(event, "episode_id", None)]
        for row, episode_id in enumerate(ids):
            if episode_id in index_of:
                rows[index_of[episode_id]].append((name, _row_of(event, row, len(ids))))
    return rows


def _row_of(event: Any, row: int, rows: int) -> list[Any]:
    found: list[Any] = []
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if name in _LEFT_OUT_OF_EPISODES or name in ("infos", "final_info"):
            continue
        if name in ("observation", "action"):
            value = [leaf[row] for leaf in value]
        elif isinstance(value, tuple) and len(value) == rows:
            value = value[row]
        found.append((name, _plain(value) if name != "num_envs" else None))
    return found


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a run: mode, width, plan and chunks."""
    mode = draw(st.sampled_from([m for m in AutoresetMode if m is not AutoresetMode.UNSPECIFIED]))
    width = draw(st.integers(1, 4))
    episodes = draw(st.integers(1, 7))
    fields: dict[str, Any] = {
        "max_episodes": episodes,
        "execution_horizon": draw(st.sampled_from([None, 1, 2])),
        "replan": draw(st.sampled_from(["lane", "batch"])),
    }
    if mode is AutoresetMode.DISABLED:
        seeds = st.lists(st.integers(0, 99), min_size=episodes, max_size=episodes)
        fields["episode_seeds"] = draw(seeds)
        fields["max_episode_steps"] = draw(st.sampled_from([None, 2, 3]))
    return {"mode": mode, "width": width, "frames": draw(st.integers(1, 3)), "fields": fields}


@given(runs())
@settings(max_examples=60)
def test_r46_one_group_has_one_stream_under_every_engine(run: dict[str, Any]) -> None:
    streams: dict[str, list[Any]] = {}
    hashes: set[str] = set()
    for way in ONE_GROUP:
        caps = VECTOR if run["mode"] is AutoresetMode.DISABLED else ()
        env = ToyEnv(run["width"], run["mode"], capabilities=caps)
        notes, digest = _run(way, env, run["frames"], run["fields"])
        streams[way] = _stream(notes)
        hashes.add(digest)
    for way in ONE_GROUP[1:]:
        assert streams[way] == streams["blocking"], way
    assert len(hashes) == 1


@given(runs())
@settings(max_examples=60)
def test_r46_an_episode_is_the_same_in_any_grouping(run: dict[str, Any]) -> None:
    fields = {**run["fields"], "replan": "lane"}
    fields.setdefault("episode_seeds", list(range(fields["max_episodes"])))
    arrangements = [("blocking", 1, VECTOR), ("blocking", run["width"], VECTOR)]
    arrangements += [(way, run["width"], LANES) for way in ("concurrent", "threads", "simulated")]
    episodes: list[dict[int, list[Any]]] = []
    hashes: set[str] = set()
    for way, width, capabilities in arrangements:
        env = ToyEnv(width, AutoresetMode.DISABLED, capabilities=capabilities)
        notes, digest = _run(way, env, run["frames"], fields)
        episodes.append(_episodes(notes))
        hashes.add(digest)
    for found in episodes[1:]:
        assert found == episodes[0]
    assert len(hashes) == 1

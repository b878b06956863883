"""P3: a short outage is invisible. The run completes with the same results.

A run goes through a proxy that loses its links, for up to five seconds, at a moment drawn from a
seed. The trace hash must be that of an undisturbed run, and no episode may have been started twice:
the session is resumed.
"""

from __future__ import annotations

import random
import threading

import pytest

from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.runtime.driver import RouteDriver
from rollmesh.runtime.hooks import Hooks
from rollmesh.runtime.spec import SessionSpec
from rollmesh.runtime.trace import TraceHash
from rollmesh.testing.faults import FaultProxy, seeded_plan
from tests.conformance.links import SUBJECTS, evaluate, local
from tests.fault.parties import ADDRESSES, JournalEnv, SumModel, child_of, env_port

EPISODES = 6
LENGTH = 40
MOST_BYTES = {"small": 4_000, "in_shared_memory": 9_000, "camera": 300_000}
"""A link breaks before so many bytes have passed in a direction, by what passes there."""

KINDS = ("outage", "reset", "half_close", "stall_then_reset")
everywhere = pytest.mark.parametrize("transport", ADDRESSES)


class AtStep(Hooks):
    """Starts an outage at a step, and lets the run go on at once."""

    def __init__(self, step, act):
        self.left = step
        self.act = act

    def step_completed(self, event):
        self.left -= 1
        if self.left == 0:
            self.act()


def run(port, hooks=()):
    """Drive a route of several episodes; return its hash and report."""
    trace = TraceHash()
    spec = SessionSpec(
        env_contract=port.contract,
        env_component="env",
        model_component="model",
        close_env_on_end=True,
        episode_seeds=tuple(range(100, 100 + EPISODES)),
        max_episodes=EPISODES,
    )
    report = RouteDriver(spec, port, SumModel(), hooks=[trace, *hooks]).run()
    return trace.hexdigest(), report


def break_links(proxy, kind, seconds):
    if kind == "outage":
        proxy.outage(seconds)
    elif kind == "reset":
        proxy.reset()
    elif kind == "half_close":
        proxy.half_close("down")
    else:  # nothing passes for a while, then the links are gone
        proxy.stall("down")

        def end():
            proxy.resume("down")
            proxy.reset()

        threading.Timer(seconds, end).start()


def check(address, transport, cases, longest_s):
    """Run through outages; return how many episodes there were and how many began anew."""
    del transport
    with FaultProxy(address) as proxy:
        expected, _ = run(env_port(proxy.address))
        episodes = anew = 0
        for case in range(cases):
            chance = random.Random(case)
            kind = KINDS[case % len(KINDS)]
            seconds = longest_s * chance.random()
            at_step = chance.randrange(1, EPISODES * LENGTH)
            act = AtStep(at_step, lambda: break_links(proxy, kind, seconds))  # noqa: B023
            found, report = run(env_port(proxy.address), [act])
            assert act.left <= 0
            assert found == expected, (case, kind, seconds, at_step)
            episodes += len(report.episodes)
            anew += sum(episode.attempts > 1 for episode in report.episodes)
    assert anew <= episodes * 0.01, (anew, episodes)


@pytest.mark.fault
@everywhere
def test_p3_a_short_outage_changes_no_result(transport):
    with EnvServer(lambda: JournalEnv(length=LENGTH), ADDRESSES[transport]) as server:
        check(server.address, transport, 8, 0.4)


@pytest.mark.fault
@everywhere
def test_p3_an_outage_of_two_seconds_is_invisible_across_processes(transport):
    with child_of("env", transport, length=LENGTH) as child:
        check(child.ready, transport, 1, 2.0)


@pytest.mark.fault_full
@everywhere
def test_p3_a_short_outage_changes_no_result_full(transport):
    with child_of("env", transport, length=LENGTH) as child:
        check(child.ready, transport, 50 // len(ADDRESSES), 5.0)


@pytest.mark.fault
@everywhere
def test_p3_a_server_that_was_killed_means_new_attempts_and_the_same_results(transport):
    with child_of("env", transport, length=LENGTH) as first:
        expected, _ = run(env_port(first.ready))
        second = []
        with FaultProxy(first.ready) as proxy:

            def replace():
                first.kill()
                second.append(child_of("env", transport, length=LENGTH))
                proxy.retarget(second[0].ready)

            try:
                found, report = run(env_port(proxy.address), [AtStep(LENGTH + 7, replace)])
            finally:
                for child in second:
                    child.close()
        assert found == expected
        assert [episode.attempts for episode in report.episodes] == [1, 2, 1, 1, 1, 1]


def cut_links(proxy):
    return sum(" at byte " in link.ended for link in proxy.links)


def breaking(address, seed, most_bytes, direction):
    """Return a proxy whose links break in the direction that carries observations, or in both."""
    directions = ("up", "down") if most_bytes == MOST_BYTES["small"] else (direction,)
    return FaultProxy(address, seeded_plan(seed, most_bytes=most_bytes, directions=directions))


@pytest.mark.fault
@pytest.mark.parametrize("transport", ADDRESSES)
@pytest.mark.parametrize("name", ["scalar", "lanes", "chunked"])
def test_p3_links_of_both_sides_that_break_all_the_time_change_no_result(transport, name):
    subject, address = SUBJECTS[name], ADDRESSES[transport]
    large = "in_shared_memory" if transport == "unix" else "camera"
    most_bytes = MOST_BYTES[large if name == "scalar" else "small"]
    plan = {key: value for key, value in subject.plan if key != "num_envs"}
    with (
        EnvServer(subject.env, address, ServerOptions(**dict(subject.served), native=False)) as env,
        ModelServer(subject.model(), address, ServerOptions(native=False)) as model,
        breaking(env.address, 5, most_bytes, "down") as env_proxy,
        breaking(model.address, 6, most_bytes, "up") as model_proxy,
    ):
        found = evaluate(subject, str(model_proxy.address), str(env_proxy.address), plan)
        cuts = [cut_links(env_proxy), cut_links(model_proxy)]
    assert found == local(subject)
    assert sum(cuts) > 1, cuts

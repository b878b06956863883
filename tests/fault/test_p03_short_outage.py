"""P3: a short outage is invisible. The run completes with the same results.

A run goes through a proxy that loses its links, for up to five seconds, at a moment drawn from a
seed. The trace hash must be that of an undisturbed run, and no episode may have been started twice:
the session is resumed.
"""

from __future__ import annotations

import random
import threading

import pytest

from rollmesh.endpoint.env_server import EnvServer
from rollmesh.runtime.driver import RouteDriver
from rollmesh.runtime.hooks import Hooks
from rollmesh.runtime.spec import SessionSpec
from rollmesh.runtime.trace import TraceHash
from rollmesh.testing.faults import FaultProxy
from tests.fault.served import ADDRESSES, JournalEnv, SumModel, child_of, env_port

EPISODES = 6
LENGTH = 40
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

"""P2: a step is applied at most once, wherever the connection is cut.

The env keeps a journal of its own. Links are cut at bytes drawn from a seed, in the hello, in a
request or in a reply, and the client resumes; then the journal must hold every action exactly once
and in order.
"""

from __future__ import annotations

import time

import pytest

from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.testing.faults import Child, FaultProxy, seeded_plan
from tests.fault.parties import (
    ADDRESSES,
    LIMIT_S,
    JournalEnv,
    child_of,
    closing,
    env_port,
    journal_of,
    reset,
    step,
)
from tests.fault.starts import wait_until

MOST_BYTES = 3000
"""A link ends before so many bytes: a hello takes about a third of that, the rest are steps."""
MOST_STEPS = 200_000
everywhere = pytest.mark.parametrize("transport", ADDRESSES)


def cut_links(proxy):
    return sum(" at byte " in link.ended for link in proxy.links)


def drive(address, cuts, seed, journal):
    """Step through cuts until there were so many of them, then compare the journal."""
    # the first link is for connecting: only a session that there is can be resumed
    plan = seeded_plan(seed, most_bytes=MOST_BYTES)
    with FaultProxy(address, plan) as proxy, closing(env_port(proxy.address)) as port:
        done = 0
        reset(port, 7, timeout_s=20.0)
        while cut_links(proxy) < cuts:
            done += 1
            assert done < MOST_STEPS, "the plan does not cut"
            observation = step(port, done, timeout_s=20.0)
            # the reply is that of this very step
            assert observation[0].tolist() == [7, done, done, done * (done + 1) / 2]
        resumed = len(proxy.links)
    assert journal_of(journal) == ["reset 7", *[f"step {n:g}" for n in range(1, done + 1)]]
    assert resumed > cuts / 2


def in_process(tmp_path, transport, cuts, seed):
    journal = tmp_path / "journal"
    with EnvServer(lambda: JournalEnv(journal), ADDRESSES[transport]) as server:
        drive(server.address, cuts, seed, journal)


def across_processes(tmp_path, transport, cuts, seed):
    journal = tmp_path / "journal"
    with child_of("env", transport, journal=str(journal)) as child:
        drive(child.ready, cuts, seed, journal)
        child.terminate()
        assert child.wait(10.0) == 0, child.output()


@pytest.mark.fault
@everywhere
def test_p2_no_step_twice_in_process(tmp_path, transport):
    in_process(tmp_path, transport, 100, 1)


@pytest.mark.fault
@everywhere
def test_p2_no_step_twice_across_processes(tmp_path, transport):
    across_processes(tmp_path, transport, 10, 2)


@pytest.mark.fault_full
@pytest.mark.parametrize("seed", range(5))
@everywhere
def test_p2_no_step_twice_in_process_full(tmp_path, transport, seed):
    in_process(tmp_path, transport, 100, 100 + seed)


@pytest.mark.fault_full
@pytest.mark.parametrize("seed", range(5))
@everywhere
def test_p2_no_step_twice_across_processes_full(tmp_path, transport, seed):
    across_processes(tmp_path, transport, 10, 200 + seed)


@pytest.mark.fault
@everywhere
def test_p2_a_reset_that_comes_with_the_last_bytes_is_noticed(tmp_path, transport):
    """Bytes and the reset after them are one event for a client that is stopped meanwhile.

    The first bytes of the reply come before: grpc answers those with a ping, which must not come
    back, as it sends no second one meanwhile, and would notice at that.
    """
    journal = tmp_path / "journal"
    with (
        EnvServer(lambda: JournalEnv(journal), ADDRESSES[transport]) as server,
        FaultProxy(server.address) as proxy,
        Child("tests.fault.parties:step_once", address=str(proxy.address), nap_s=1.0) as client,
    ):
        assert client.ready == "stepping"
        wait_until(lambda: journal_of(journal)[-1:] == ["step 1"], "the step")
        proxy.stall("up")
        first = proxy.links[-1].down_bytes + 5
        proxy.change("down", at_byte=first, then="stall", stall_s=0.5)
        assert proxy.wait_for(lambda links: links[-1].down_bytes >= first, LIMIT_S)
        time.sleep(0.2)
        client.stop()
        proxy.cut_after(5, "down", then="reset")
        assert proxy.wait_for(lambda _: cut_links(proxy) > 0, LIMIT_S)
        proxy.change(at_byte=None)
        client.resume()
        # well before the deadline of the step
        assert client.read_line(LIMIT_S) == str([7.0, 1.0, 1.0, 1.0])
        assert client.wait(10.0) == 0, client.output()
    assert journal_of(journal) == ["reset 7", "step 1"]


@pytest.mark.fault
@everywhere
def test_p2_no_step_twice_where_lanes_go_their_own_ways(tmp_path, transport):
    journals = [tmp_path / f"journal-{lane}" for lane in range(3)]
    envs = [lambda path=path: JournalEnv(path) for path in journals]
    with EnvServer(envs, ADDRESSES[transport]) as server:
        plan = seeded_plan(3, most_bytes=MOST_BYTES)
        with (
            FaultProxy(server.address, plan) as proxy,
            closing(env_port(proxy.address)) as port,
        ):
            done = 0
            for lane in range(3):
                reset(port, lane, timeout_s=20.0, lanes=(lane,))
            while cut_links(proxy) < 30:
                done += 1
                for lane in range(3):
                    observation = step(port, done, timeout_s=20.0, lanes=(lane,))
                    assert observation[0].tolist() == [lane, done, done, done * (done + 1) / 2]
    for lane, path in enumerate(journals):
        expected = [f"reset {lane}", *[f"step {n:g}" for n in range(1, done + 1)]]
        assert journal_of(path) == expected

"""P13: load is held. Sixty-four sessions step at once; none fails and none is starved."""

from __future__ import annotations

import itertools
import statistics
import threading
import time

import pytest

from tests.fault.parties import (
    ADDRESSES,
    child_of,
    closing,
    env_port,
    model_port,
    predict,
    reset,
    step,
)

SESSIONS = 64
FAIR_SHARE = 0.2
"""The slowest session gets at least so much of what the median one gets."""

LONGEST_GAP_S = 5.0
"""No single call of a session takes longer, on a machine that other work shares."""

SIDES = ("env", "model")
everywhere = pytest.mark.parametrize("transport", ADDRESSES)
sides = pytest.mark.parametrize("side", SIDES)


class Client:
    """One session: opens, works until it is told to stop, closes."""

    def __init__(self, side, address, ready, stop):
        self.side, self.address, self.ready, self.stop = side, address, ready, stop
        self.calls = 0
        self.longest_s = 0.0
        self.error = None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            open_port = env_port if self.side == "env" else model_port
            with closing(open_port(self.address, connect_s=60.0)) as port:
                if self.side == "env":
                    reset(port, 1, timeout_s=30.0)
                self.ready.wait(60.0)
                self.work(port)
        except Exception as error:  # noqa: BLE001 - judged by the test
            self.error = error

    def work(self, port):
        total = 0.0
        while not self.stop.is_set():
            begun = time.monotonic()
            self.calls += 1
            if self.side == "env":
                total += self.calls
                observation = step(port, self.calls, timeout_s=30.0)
                assert observation[0].tolist() == [1, self.calls, self.calls, total]
            else:
                assert predict(port, [self.calls, 1, 1, 0], timeout_s=30.0) == self.calls + 2
            self.longest_s = max(self.longest_s, time.monotonic() - begun)


def load(side, transport, seconds):
    with child_of(side, transport, max_sessions=SESSIONS) as child:
        ready, stop = threading.Barrier(SESSIONS + 1), threading.Event()
        clients = [Client(side, child.ready, ready, stop) for _ in range(SESSIONS)]
        ready.wait(60.0)
        time.sleep(seconds)
        stop.set()
        for client in clients:
            client.thread.join(30.0)
        errors = [client.error for client in clients if client.error is not None]
        assert not errors, errors[:3]
        calls = [client.calls for client in clients]
        print(f"{side} {transport}: {sum(calls) / seconds:,.0f} calls/s, least {min(calls)}")
        assert min(calls) >= FAIR_SHARE * statistics.median(calls), sorted(calls)
        assert max(client.longest_s for client in clients) < LONGEST_GAP_S
        child.terminate()
        assert child.wait(20.0) == 0, child.output()


@pytest.mark.fault
@pytest.mark.parametrize(("side", "transport"), list(zip(itertools.cycle(SIDES), ADDRESSES)))
def test_p13_sixty_four_sessions(side, transport):
    load(side, transport, 5.0)


@pytest.mark.fault_full
@sides
@everywhere
def test_p13_sixty_four_sessions_for_a_minute(side, transport):
    load(side, transport, 60.0)

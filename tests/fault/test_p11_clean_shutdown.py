"""P11: clean shutdown. SIGTERM drains and exits with 0; a second signal ends at once.

No process, socket file or shared memory is left behind, after a drain, a forced exit, or a kill of
either side.
"""

from __future__ import annotations

import gc
import signal
import tempfile
import threading
import time

import pytest

from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault
from rollmesh.testing.faults import take_stock
from rollmesh.testing.faults.processes import ChildFailed
from rollmesh.testing.faults.stock import left_behind, session_members
from rollmesh.transport.unix_paths import own_folder
from tests.fault.parties import (
    ADDRESSES,
    JournalEnv,
    child_of,
    closing,
    env_port,
    model_port,
    predict,
    reset,
    step,
)

HOWS = ("idle client", "closed first", "killed")
EXIT_S = 5.0
FORCED_S = 1.0
everywhere = pytest.mark.parametrize("transport", ADDRESSES)
sides = pytest.mark.parametrize("side", ["env", "model"])


@pytest.fixture(autouse=True)
def sockets(monkeypatch):
    """Give a folder for socket files that no other process uses; its path is short."""
    with tempfile.TemporaryDirectory(prefix="p11-", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield own_folder()


@pytest.fixture(scope="module", autouse=True)
def grpc_stays_awake():
    """Keep the gRPC library in use: it opens and closes a poller of its own, in its own time."""
    with (
        EnvServer(JournalEnv, ADDRESSES["grpc"], ServerOptions(native=False)) as server,
        closing(env_port(server.address)) as port,
    ):
        reset(port)
        yield


@pytest.fixture
def nothing_left(sockets):
    """Check that the test leaves no process, socket file, descriptor or shared memory."""
    before = take_stock(folders=[sockets])
    yield
    gc.collect()
    assert not left_behind(before, folders=[sockets])


def socket_files():
    """Return the files that servers listen at, or have left: beside gRPC addresses too."""
    return list(own_folder().iterdir())


def told_end(child):
    """Return whether the child came to its own end."""
    try:
        return child.read_line(EXIT_S) == "ended"
    except ChildFailed:
        return False


def cycle(side, transport, how):
    """Serve, use, and end a server in one of several ways."""
    with child_of(side, transport) as child:
        port = env_port(child.ready) if side == "env" else model_port(child.ready)
        with closing(port):
            if side == "env":
                reset(port)
                step(port, 1)
            else:
                predict(port, [1, 2, 3, 0])
            if how == "closed first":
                port.close(1.0)
            if how == "killed":
                child.kill()
            else:
                child.terminate()
                assert told_end(child), child.output()
                assert child.wait(EXIT_S) == 0, child.output()
        for path in socket_files() if how == "killed" else ():
            path.unlink()  # as the next server would
        assert not socket_files()
        assert not session_members(child.pid)


@pytest.mark.fault
@sides
@everywhere
@pytest.mark.parametrize("how", HOWS)
def test_p11_nothing_is_left_however_a_server_ends(nothing_left, side, transport, how):
    cycle(side, transport, how)


@pytest.mark.fault_full
@sides
@everywhere
def test_p11_nothing_is_left_after_twenty_cycles(nothing_left, side, transport):
    for number in range(20):
        cycle(side, transport, HOWS[number % len(HOWS)])


@pytest.mark.fault
@everywhere
def test_p11_a_session_under_way_finishes_before_the_end(nothing_left, transport):
    with child_of("env", transport) as child, closing(env_port(child.ready)) as port:
        reset(port, 3, naps={"step": 0.05})
        step(port, 1)
        child.terminate()
        for n in range(2, 12):
            assert step(port, n, timeout_s=5.0)[0].tolist()[1] == n
        with pytest.raises(EndpointFault, match=r"draining|gave up"):
            env_port(child.ready, connect_s=0.3)
        port.close(1.0)
        assert child.wait(EXIT_S) == 0, child.output()


@pytest.mark.fault
@everywhere
def test_p11_a_second_signal_ends_a_hanging_server_at_once(nothing_left, transport):
    with child_of("env", transport) as child, closing(env_port(child.ready)) as port:
        reset(port, naps={"step": 600.0})
        with pytest.raises(EndpointFault):
            step(port, 1, timeout_s=0.2)
        child.terminate()
        time.sleep(0.4)  # two within 0.3 s count as one
        begun = time.monotonic()
        child.terminate()
        code = child.wait(FORCED_S)
        assert time.monotonic() - begun <= FORCED_S
        assert code == 128 + signal.SIGTERM
        assert not socket_files()


@pytest.mark.fault
@everywhere
def test_p11_one_signal_ends_a_server_whose_env_hangs_within_its_limits(nothing_left, transport):
    limits = {"drain_timeout_s": 0.3, "close_timeout_s": 0.3}
    with child_of("env", transport, **limits) as child:
        with closing(env_port(child.ready)) as port:
            reset(port, naps={"step": 600.0})
            with pytest.raises(EndpointFault):
                step(port, 1, timeout_s=0.2)
        child.terminate()
        child.wait(0.3 + 0.3 + 2.0)
        assert not socket_files()


@pytest.mark.fault
@pytest.mark.parametrize("transport", ["unix", "grpc"])
def test_p11_the_socket_file_of_a_killed_server_goes_with_the_next_server(sockets, transport):
    with child_of("env", transport) as child:
        env_port(child.ready).close(1.0)
        child.kill()
        (path,) = socket_files()  # nobody was there to remove it
    with EnvServer(JournalEnv, ADDRESSES[transport]):
        assert not path.exists()
    assert not list(sockets.iterdir())


@pytest.mark.fault
@everywhere
def test_p11_four_cycles_in_one_process_leave_nothing(nothing_left, transport):
    for _ in range(4):
        with (
            EnvServer(JournalEnv, ADDRESSES[transport]) as server,
            closing(env_port(server.address)) as port,
        ):
            reset(port)
            step(port, 1)


@pytest.mark.fault
@everywhere
def test_p11_a_killed_client_frees_its_place(nothing_left, transport):
    options = {"max_sessions": 1, "contested_grace_s": 0.2, "instance": True}
    with child_of("env", transport, **options) as child:
        first = env_port(child.ready)
        reset(first, 1)
        first.session.interrupt()  # its connection is gone without a word
        begun = time.monotonic()
        with closing(env_port(child.ready, connect_s=5.0)) as second:
            assert time.monotonic() - begun < 2.0
            assert reset(second, 2)[0].tolist() == [2, 0, 0, 0]
        first.close(0.2)
        child.terminate()
        assert child.wait(EXIT_S) == 0, child.output()


@pytest.mark.fault
@everywhere
def test_p11_closing_a_server_ends_its_threads(transport):
    before = {thread.ident for thread in threading.enumerate()}
    with EnvServer(JournalEnv, ADDRESSES[transport]) as server:
        ports = [env_port(server.address) for _ in range(3)]
        for port in ports:
            reset(port)
            port.close(1.0)
    expiry = time.monotonic() + 3.0
    while time.monotonic() < expiry:
        left = [t.name for t in threading.enumerate() if t.ident not in before]
        if not left:
            break
        time.sleep(0.01)
    assert not left

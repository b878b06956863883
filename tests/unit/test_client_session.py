"""Client sessions: connecting, resuming, deadlines, interrupts, errors."""

from __future__ import annotations

import socket
import threading
import time

import pytest

import rollmesh
from rollmesh.endpoint.clients import client_dialing
from rollmesh.endpoint.clients.client_dialing import ConnectRefused, Dialer
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.client_session import ClientSession
from rollmesh.endpoint.clients.env_client import connect_env
from rollmesh.endpoint.envs.gym_env import GymEnvPort
from rollmesh.errors import EndpointFault, InvalidSpec, PortTimeout, SessionLost
from rollmesh.limits import Limits
from rollmesh.testing.faults.plans import LinkFaults, PipeFaults
from rollmesh.testing.faults.proxy import FaultProxy
from rollmesh.transport.address import parse_address
from rollmesh.wire.messages import GENERATION, ErrorBody, Kind, Message, Welcome
from tests.unit.env_toys import Count, observations, reset_request, step_request
from tests.unit.session_toys import ToyServer, error_body, mem_address, until

OPTIONS = client_options(resume_grace_s=2.0, environ={})
SLACK_S = 1.0
"""Far below any limit that would be taken in its place, far above a busy machine's delays."""
QUICK = Limits(env_connect_s=3.0)
ADDRESSES = pytest.mark.parametrize(
    "address", [None, "rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0"], ids=["mem", "unix", "tcp"]
)


def connect(server, options=OPTIONS, limits=QUICK):
    return connect_env(server.address, options, limits=limits)


@pytest.fixture
def server():
    with ToyServer(GymEnvPort(Count(length=100))) as running:
        yield running


@pytest.fixture
def port(server):
    port = connect(server)
    port.reset(reset_request(seeds=(5,)))
    yield port
    port.close(1.0)


def steps_of(server):
    return server.executed.count(Kind.STEP)


# ------------------------------------------------------------------------------ resuming


@ADDRESSES
@pytest.mark.parametrize("cut", ["drop", "drop_after"])
def test_p2_a_step_cut_by_a_drop_is_applied_once(address, cut):
    with ToyServer(GymEnvPort(Count(length=100)), address) as server:
        port = connect(server)
        port.reset(reset_request(seeds=(5,)))
        server.plan(Kind.STEP, cut, cut)
        reply = port.step(step_request(port, 1, timeout_ms=5000))
        assert observations(port, reply) == [[1.0, 5.0]]
        assert steps_of(server) == 1
        assert [hello.session_id for hello in server.hellos] == ["", "s1", "s1"]
        assert observations(port, port.step(step_request(port, 1))) == [[2.0, 5.0]]
        port.close(1.0)


def test_p3_a_drop_between_calls_is_not_noticed(server, port):
    for count in range(1, 6):
        server.drop_connections()
        assert observations(port, port.step(step_request(port, 1))) == [[count, 5.0]]
    assert steps_of(server) == 5


def test_p3_a_server_that_is_away_for_a_moment_is_waited_for(server, port):
    server.close()

    def come_back():
        back.append(ToyServer(server.port, server.address, after=server))

    back = []
    timer = threading.Timer(0.3, come_back)
    timer.start()
    assert observations(port, port.step(step_request(port, 1, timeout_ms=5000))) == [[1.0, 5.0]]
    timer.join()
    back[0].close()


def test_a_session_that_the_server_forgot_is_lost_until_rebuilt(server, port):
    generation = port.session.generation
    server.session_id = None
    server.drop_connections()
    with pytest.raises(SessionLost, match=r"mem://toy-\d+ is lost: the server has no such session"):
        port.step(step_request(port, 1, timeout_ms=5000))
    with pytest.raises(SessionLost):
        port.step(step_request(port, 1))
    assert steps_of(server) == 0
    port.rebuild(())
    assert port.session.generation == generation + 1
    assert len(server.hellos) == 2  # the session that came with the refusal is used
    port.reset(reset_request(seeds=(7,)))
    assert observations(port, port.step(step_request(port, 1))) == [[1.0, 7.0]]


def test_a_reset_needs_no_old_session(server, port):
    server.session_id = None
    server.drop_connections()
    assert observations(port, port.reset(reset_request(seeds=(9,)))) == [[0.0, 9.0]]
    assert not port.session.is_lost


def test_a_server_that_does_not_come_back_within_the_grace_is_lost(server):
    port = connect(server, client_options(resume_grace_s=0.2, environ={}))
    port.reset(reset_request())
    server.close()
    begun = time.monotonic()
    with pytest.raises(SessionLost, match=r"gave up after 0\.[12]"):
        port.step(step_request(port, 1, timeout_ms=60_000))
    assert time.monotonic() - begun < 1.0
    port.close(1.0)


def test_p1_resuming_ends_at_the_deadline_of_the_request(server, port):
    server.close()
    begun = time.monotonic()
    with pytest.raises(PortTimeout, match="was not back at the deadline"):
        port.step(step_request(port, 1, timeout_ms=200))
    assert time.monotonic() - begun < 0.2 + SLACK_S


# ----------------------------------------------------------------------------- deadlines


@ADDRESSES
def test_p1_a_silent_server_is_given_up_at_the_deadline(address):
    with ToyServer(GymEnvPort(Count(length=100)), address) as server:
        port = connect(server)
        port.reset(reset_request())
        server.plan(Kind.STEP, "silent")
        begun = time.monotonic()
        with pytest.raises(PortTimeout, match="STEP got no answer"):
            port.step(step_request(port, 1, timeout_ms=100))
        assert time.monotonic() - begun < 0.1 + SLACK_S
        until(lambda: server.requests[-2:] == [Kind.CANCEL, Kind.CLOSE])
        assert port.session.is_lost
        port.rebuild(())
        assert observations(port, port.reset(reset_request(seeds=(3,)))) == [[0.0, 3.0]]
        port.close(1.0)


def test_a_timeout_told_by_the_server_leaves_the_session(server, port):
    def late(connection, message):
        body = ErrorBody(code="timeout", message="it did not come back")
        connection.send(Message(Kind.ERROR, message.request_id, body))

    server.plan(Kind.STEP, late)
    with pytest.raises(PortTimeout, match="it did not come back"):
        port.step(step_request(port, 1, timeout_ms=5000))
    assert port.session.is_lost
    until(lambda: server.closed == ["left"])


def test_a_late_reply_is_not_taken_for_the_next(server, port):
    def stale(connection, message):
        connection.send(Message(Kind.STEP, message.request_id - 1, server.replies[last].body))
        connection.send(Message(Kind.PING, 77))
        connection.send(server._execute(message))

    reply = port.step(step_request(port, 1))
    last = max(server.replies)
    server.plan(Kind.STEP, stale)
    assert observations(port, reply) == [[1.0, 5.0]]
    assert observations(port, port.step(step_request(port, 1))) == [[2.0, 5.0]]
    until(lambda: Kind.PONG in server.requests)


# ---------------------------------------------------------------------------- interrupts


@ADDRESSES
def test_an_interrupt_ends_the_call_under_way_at_once(address):
    with ToyServer(GymEnvPort(Count(length=100)), address) as server:
        port = connect(server)
        port.reset(reset_request())
        reached = threading.Event()
        server.plan(Kind.STEP, lambda *_: reached.set())
        stamps = []

        def interrupt():
            reached.wait(5)
            stamps.append(time.monotonic())
            port.interrupt()

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(EndpointFault, match="was interrupted"):
            port.step(step_request(port, 1, timeout_ms=20_000))
        assert time.monotonic() - stamps[0] < SLACK_S
        thread.join()
        # the session is still there, and can be ended
        port.close(5.0)
        assert server.closed == ["closed by caller"]


def test_an_interrupt_ends_resuming(server, port):
    server.close()
    threading.Timer(0.1, port.interrupt).start()
    begun = time.monotonic()
    with pytest.raises(EndpointFault, match="was interrupted"):
        port.step(step_request(port, 1, timeout_ms=20_000))
    assert time.monotonic() - begun < 0.6


def test_an_interrupt_before_a_call_ends_it_and_can_be_forgotten(server, port):
    port.interrupt()
    with pytest.raises(EndpointFault, match="was interrupted"):
        port.step(step_request(port, 1))
    port.interrupt()
    port.forget_interrupt()
    assert observations(port, port.step(step_request(port, 1))) == [[1.0, 5.0]]


# -------------------------------------------------------------------------------- errors


def test_a_fault_of_the_other_side_is_the_same_here(server, port):
    told = EndpointFault(
        "boom",
        error_class="ValueError",
        traceback_text="Traceback …",
        env_index=0,
        is_recoverable=True,
        outcome="done",
    )
    server.plan(Kind.STEP, lambda c, m: c.send(Message(Kind.ERROR, m.request_id, error_body(told))))
    with pytest.raises(EndpointFault, match="boom") as caught:
        port.step(step_request(port, 1))
    fault = caught.value
    for name in ("error_class", "traceback_text", "env_index", "is_recoverable", "outcome"):
        assert getattr(fault, name) == getattr(told, name)
    assert server.address in fault.detail
    assert observations(port, port.step(step_request(port, 1))) == [[1.0, 5.0]]


def test_an_error_id_is_told(server, port):
    body = ErrorBody(code="internal", error_class="OSError", message="disk", error_id="ab12")
    server.plan(Kind.STEP, lambda c, m: c.send(Message(Kind.ERROR, m.request_id, body)))
    with pytest.raises(EndpointFault, match="error id ab12"):
        port.step(step_request(port, 1))


def test_a_request_that_has_no_form_on_the_wire_leaves_the_session_alone(server, port):
    from rollmesh.ports import StepRequest

    odd = StepRequest(action=[], episode_ids=("e0",))
    with pytest.raises(EndpointFault, match="STEP cannot be sent") as caught:
        port.step(odd)
    assert caught.value.outcome == "not_done"
    assert observations(port, port.step(step_request(port, 1))) == [[1.0, 5.0]]


def test_a_reply_of_another_kind_is_refused(server, port):
    server.plan(Kind.STEP, lambda c, m: c.send(Message(Kind.RENDER, m.request_id, _render_reply())))
    with pytest.raises(EndpointFault, match=r"answered env.step with a RENDER message"):
        port.step(step_request(port, 1))


def _render_reply():
    from rollmesh.wire.messages import RenderReply

    return RenderReply(frame="x")


def test_closing_again_does_nothing_and_calls_after_it_are_refused(server):
    port = connect(server)
    port.reset(reset_request())
    port.close(1.0)
    port.close(1.0)
    assert server.closed == ["closed by caller"]
    with pytest.raises(EndpointFault, match="is closed"):
        port.step(step_request(port, 1))


# ---------------------------------------------------------------------------- connecting


def refusal(code, message="no"):
    return ErrorBody(code=code, message=message)


def test_a_server_that_still_starts_is_waited_for():
    address = mem_address()
    servers = []
    timer = threading.Timer(0.2, lambda: servers.append(ToyServer(GymEnvPort(Count()), address)))
    timer.start()
    port = connect_env(address, OPTIONS, limits=QUICK)
    assert port.contract.id == "Count"
    timer.join()
    port.close(1.0)
    servers[0].close()


@pytest.mark.parametrize("code", ["busy", "draining"])
def test_a_full_or_ending_server_is_asked_again(server, code):
    server.welcomes = [refusal(code), refusal(code)]
    port = connect(server)
    assert len(server.hellos) == 3
    port.close(1.0)


def test_c64_connecting_gives_up_at_its_own_limit_and_says_why(server):
    server.welcomes = [refusal("busy", "one client has it") for _ in range(1000)]
    begun = time.monotonic()
    with pytest.raises(EndpointFault, match=r"gave up after .* it is busy: one client has it"):
        connect(server, limits=Limits(env_connect_s=0.3))
    assert time.monotonic() - begun < 0.8


def test_a_place_in_the_queue_is_waited_for(server):
    def queue(connection, hello):
        for position in (2, 1):
            welcome = Welcome(generation=GENERATION, position=position)
            connection.send(Message(Kind.WELCOME, hello.request_id, welcome))
        return server._welcome(connection, hello)

    server.welcomes = [queue]
    port = connect(server)
    assert len(server.hellos) == 2  # the toy notes it twice; it came once
    port.close(1.0)


def test_a_place_that_does_not_come_names_the_position(server):
    def queue(connection, hello):
        welcome = Welcome(generation=GENERATION, position=3)
        connection.send(Message(Kind.WELCOME, hello.request_id, welcome))
        return True

    server.welcomes = [queue]
    with pytest.raises(EndpointFault, match="all its places are taken; we are number 3"):
        connect(server, limits=Limits(env_connect_s=0.3))


@pytest.mark.parametrize(
    ("code", "wanted"), [("unauthenticated", "ROLLMESH_TOKEN_FILE"), ("incompatible", "no")]
)
def test_a_refusal_is_told_at_once(server, code, wanted):
    server.welcomes = [refusal(code)]
    with pytest.raises(ConnectRefused, match=wanted) as caught:
        connect(server)
    assert caught.value.code == code
    assert len(server.hellos) == 1


@pytest.mark.parametrize(
    ("token", "said", "not_said"),
    [
        (None, "no token was given", "the token given"),
        ("0123456789abcdef", "the token given was refused", "no token"),
    ],
)
def test_a_refused_client_is_told_whether_it_had_a_token_and_how_to_give_one(
    server, token, said, not_said
):
    server.welcomes = [refusal("unauthenticated")]
    with pytest.raises(ConnectRefused, match=said) as caught:
        connect(server, client_options(token=token, environ={}))
    for way in ("--token-file", "token=", "token_file=", "ROLLMESH_TOKEN ", "ROLLMESH_TOKEN_FILE"):
        assert way in str(caught.value)
    assert not_said not in str(caught.value)
    assert "0123456789abcdef" not in str(caught.value)


@pytest.mark.parametrize(
    ("token", "said"),
    [(None, "No token was given; if it wants one"), ("0123456789abcdef", "A token was given")],
)
def test_a_server_that_hangs_up_may_have_missed_a_token(server, token, said):
    server.welcomes = [lambda connection, hello: connection.close()] * 1000
    with pytest.raises(EndpointFault, match=said) as caught:
        connect(server, client_options(token=token, environ={}), limits=Limits(env_connect_s=0.2))
    assert "does it want TLS" in str(caught.value)
    assert "0123456789abcdef" not in str(caught.value)


def test_another_generation_is_refused(server):
    def other(connection, hello):
        connection.send(Message(Kind.WELCOME, hello.request_id, Welcome(generation="future-9")))
        return True

    server.welcomes = [other]
    with pytest.raises(ConnectRefused, match="'future-9'"):
        connect(server)


def test_the_token_is_sent_and_shows_nowhere(server, caplog):
    secret = "0123456789abcdef0123456789abcdef"
    options = client_options(token=secret, environ={})
    assert secret not in repr(options)
    connect(server, options).close(1.0)
    assert server.hellos[0].token == secret
    assert secret not in caplog.text


@pytest.mark.parametrize(
    ("scheme", "said", "other"),
    [
        ("rollmesh+tcp", "does not speak rollmesh's native protocol", "address is tcp://"),
        ("tcp", "does not speak gRPC", "its address is rollmesh\\+tcp://"),
    ],
)
def test_a_stranger_that_says_little_and_waits_is_not_waited_for(scheme, said, other):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = []

        def answer():
            sock.append(listener.accept()[0])
            sock[0].sendall(b"SSH-2.0-Other\r\n")  # less than a header, and no more

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConnectRefused, match=f"{said}.*{other}"):
            connect_env(address, OPTIONS, limits=Limits(env_connect_s=60.0))
        thread.join()
        sock[0].close()


@pytest.mark.parametrize("token", [None, "0123456789abcdef0123456789abcdef"])
def test_a_servers_own_frames_dialled_as_grpc_are_told_at_once(token):
    options = client_options(token="ab" * 20, environ={})
    served = rollmesh.ServerOptions(token=token, max_sessions=1)
    with rollmesh.EnvServer("CartPole-v1", "rollmesh+tcp://127.0.0.1:0", served) as running:
        address = running.address.removeprefix("rollmesh+")
        with pytest.raises(ConnectRefused, match=f"own frames; write rollmesh\\+{address}"):
            connect_env(address, options, limits=Limits(env_connect_s=60.0))


def test_something_else_that_listens_is_told_from_no_server():
    with socket.create_server(("127.0.0.1", 0)) as other:
        thread = threading.Thread(target=_answer_http, args=(other,))
        thread.start()
        port = other.getsockname()[1]
        with pytest.raises(ConnectRefused, match="does not speak rollmesh's native protocol"):
            connect_env(f"rollmesh+tcp://127.0.0.1:{port}", OPTIONS, limits=QUICK)
        thread.join()


def _answer_http(listener):
    sock = listener.accept()[0]
    with sock:
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 64)
        sock.recv(1)


def test_nobody_there_says_so():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(EndpointFault, match="is the server running") as caught:
        connect_env(f"rollmesh+tcp://127.0.0.1:{port}", OPTIONS, limits=Limits(env_connect_s=0.1))
    assert caught.value.error_class == "ConnectFailed"
    assert caught.value.outcome == "not_done"


def test_another_env_at_the_same_address_is_refused_when_it_comes_back(server, port):
    address = server.address
    server.close()
    other = Count()
    other.observation_space = type(other.observation_space)(-1, 1, (7,))
    with ToyServer(GymEnvPort(other), address):
        with pytest.raises(SessionLost):
            port.step(step_request(port, 1, timeout_ms=2000))
        with pytest.raises(EndpointFault, match="another env is served"):
            port.rebuild(())


def test_a_token_is_not_sent_over_the_network_in_plain_text():
    options = client_options(token="0123456789abcdef0123456789abcdef", environ={})
    with pytest.raises(InvalidSpec, match="plain text"):
        Dialer(parse_address("rollmesh+tcp://192.0.2.1:5000"), "env", options)


def test_c62_proxy_variables_are_not_followed(server, monkeypatch):
    for name in ("HTTP_PROXY", "https_proxy", "ALL_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ToyServer(GymEnvPort(Count()), "rollmesh+tcp://127.0.0.1:0") as tcp:
        connect(tcp).close(1.0)


def test_open_after_interrupt_is_interrupted():
    session = ClientSession(Dialer(parse_address(mem_address()), "env", OPTIONS), lambda *_: None)
    session.interrupt()
    with pytest.raises(EndpointFault, match="was interrupted"):
        session.open(5.0)


def test_a_server_that_gives_no_welcome_is_asked_anew_before_the_time_is_over(monkeypatch):
    monkeypatch.setattr(client_dialing, "_FIRST_HELLO_S", 0.05)
    silent = LinkFaults(up=PipeFaults(at_byte=0, then="stall"))
    with (
        ToyServer(GymEnvPort(Count()), "rollmesh+tcp://127.0.0.1:0") as tcp,
        FaultProxy(tcp.address, lambda number: LinkFaults() if number else silent) as proxy,
    ):
        door = Dialer(proxy.address, "env", OPTIONS)
        opened = door.open("", 4.0)
        assert opened.welcome.is_compatible
        assert len(proxy.links) == 2
        opened.connection.close()

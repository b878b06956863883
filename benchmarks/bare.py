"""Bare transports: one message there and one back, with nothing of a runtime around them.

The request is a step's action, the reply a step's observation, reward and flags, as the native
connection and, for comparison, a bidirectional gRPC stream of raw bytes carry them (the least that
gRPC in Python can do: no protobuf message, no session).
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.children import Drive, driven
from benchmarks.subjects import Entry
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from rollmesh.spaces.codec import Codec
    from rollmesh.transport.connection import Connection

_CALLS = 50
_MOST_BYTES = 1 << 28
_METHOD = "/bare/Join"
_GRPC_OPTIONS = [
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.max_send_message_length", _MOST_BYTES),
]


@dataclass(frozen=True, kw_only=True)
class _Goods:
    """What is sent to and fro."""

    observation_codec: Codec
    action_codec: Codec
    observation: list[Any]
    action: list[Any]


def _goods(workload: Workload) -> _Goods:
    from rollmesh.spaces.gymnasium import from_gymnasium

    env = workload.make()
    observations = from_gymnasium(env.observation_space).codec
    actions = from_gymnasium(env.action_space).codec
    observation = env.reset()[0]
    return _Goods(
        observation_codec=observations,
        action_codec=actions,
        observation=observations.encode(observation),
        action=actions.encode(workload.policy(observation)),
    )


# --------------------------------------------------------------------------------- native


def serve(workload: Workload, address: str, spin: Any, ready: Callable[[str], None]) -> None:
    """Answer each step of one connection after another with the same observation."""
    from rollmesh.errors import ConnectionLost
    from rollmesh.transport.connection import ConnectionOptions
    from rollmesh.transport.dialing import listen

    goods = _goods(workload)
    with listen(address, ConnectionOptions(spin=spin)) as listener:
        ready(str(listener.address))
        while True:
            connection = listener.accept()
            if connection is None:
                continue
            connection.admit()
            connection.framing.bind(goods.observation_codec, goods.action_codec, 1)
            try:
                _answer(connection, goods.observation)
            except ConnectionLost:
                connection.close()


def _answer(connection: Connection, observation: list[Any]) -> None:
    from rollmesh.ports import StepReply
    from rollmesh.wire.messages import Message

    infos: tuple[dict[str, Any], ...] = ({},)
    while True:
        request = connection.receive()
        reply = StepReply(observation=observation, rewards=(1.0,), infos=infos)
        connection.send(Message(request.kind, request.request_id, reply))


def native(
    name: str,
    workload: Workload,
    *,
    address: str = "rollmesh+unix://",
    spin: str = "never",
    shared_memory: bool = True,
    views: bool = False,
) -> Entry:
    """Return our native connection, ping-pong.

    Args:
        name: Name of the subject.
        workload: What is sent.
        address: Where to listen.
        spin: Of both ends.
        shared_memory: Whether large payloads may go through it.
        views: Whether they are looked at where they lie, or copied.
    """

    def connect(where: str) -> Drive:
        from rollmesh.ports import StepRequest
        from rollmesh.transport.connection import ConnectionOptions
        from rollmesh.transport.dialing import dial
        from rollmesh.wire.messages import Kind, Message

        goods = _goods(workload)
        options = ConnectionOptions(spin=spin, shared_memory=shared_memory, views=views)  # type: ignore[arg-type]
        connection = dial(where, options)
        connection.framing.bind(goods.observation_codec, goods.action_codec, 1)
        ids = ("0" * 36,)

        def run(bouts: int) -> int:
            for _ in range(bouts * _CALLS):
                request = StepRequest(action=goods.action, episode_ids=ids, timeout_ms=30_000)
                reply = connection.call(Message(Kind.STEP, connection.next_id(), request), 30.0)
                if reply.lease is not None:
                    reply.lease.release()
            return bouts * _CALLS

        return Drive(run=run, close=connection.close)

    arguments = ["bare", "--workload", workload.key, "--address", address, "--spin", spin]
    return Entry(name=name, build=lambda: driven(name, [arguments], connect))


# ----------------------------------------------------------------------------------- gRPC


def _joined(codec: Codec, leaves: list[Any]) -> bytes:
    return b"".join(codec.to_buffers(leaves))


def serve_grpc(workload: Workload, address: str, ready: Callable[[str], None]) -> None:
    """Answer each message of a stream with the bytes of an observation."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    goods = _goods(workload)

    def join(requests: Iterable[bytes], context: Any) -> Iterator[bytes]:
        del context
        for _ in requests:
            yield _joined(goods.observation_codec, goods.observation)

    _, service, method = _METHOD.split("/")
    handler = grpc.stream_stream_rpc_method_handler(join)
    server = grpc.server(ThreadPoolExecutor(2), options=_GRPC_OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    host = address.removeprefix("tcp://").rpartition(":")[0]
    port = server.add_insecure_port(f"{host}:0")
    server.start()
    ready(f"{host}:{port}")
    server.wait_for_termination()


def grpc_stream(name: str, workload: Workload) -> Entry:
    """Return a gRPC stream of raw bytes over TCP, ping-pong."""

    def connect(where: str) -> Drive:
        import grpc

        goods = _goods(workload)
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        channel = grpc.insecure_channel(where, options=_GRPC_OPTIONS)
        replies = channel.stream_stream(_METHOD)(iter(requests.get, None))

        def run(bouts: int) -> int:
            for _ in range(bouts * _CALLS):
                requests.put(_joined(goods.action_codec, goods.action))
                goods.observation_codec.from_buffers(_split(goods, next(replies)), 1)
            return bouts * _CALLS

        def close() -> None:
            requests.put(None)
            channel.close()

        return Drive(run=run, close=close)

    arguments = ["bare-grpc", "--workload", workload.key]
    return Entry(name=name, build=lambda: driven(name, [arguments], connect))


def _split(goods: _Goods, data: bytes) -> list[memoryview]:
    """Return the leaves of an observation that was joined; their sizes are those of our own."""
    view, place = memoryview(data), 0
    parts: list[memoryview] = []
    for leaf in goods.observation:
        size = len(leaf) if isinstance(leaf, bytes) else leaf.nbytes
        parts.append(view[place : place + size])
        place += size
    return parts

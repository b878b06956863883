"""The standard health service as bytes (layer 4): `grpc.health.v1`, Check and Watch."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rollmesh.wire._gen import grpc_health_v1_pb2 as pb
from rollmesh.wire.proto_values import parse

Health: TypeAlias = Literal["unknown", "serving", "not_serving", "service_unknown"]

_NUMBERS: dict[Health, int] = {
    "unknown": 0,
    "serving": 1,
    "not_serving": 2,
    "service_unknown": 3,
}
_NAMES: dict[int, Health] = {number: name for name, number in _NUMBERS.items()}
_MOST_CHARS = 256


def write_health_request(service: str = "") -> bytes:
    """Return a request for the health of a service; `""` is the server as a whole."""
    return pb.HealthCheckRequest(service=service).SerializeToString()


def read_health_request(data: bytes) -> str:
    """Return which service is asked for.

    Raises:
        WireError: The bytes are no request.
    """
    return parse(pb.HealthCheckRequest, data, "health request").service[:_MOST_CHARS]


def write_health(status: Health) -> bytes:
    """Return an answer."""
    return pb.HealthCheckResponse(status=_NUMBERS[status]).SerializeToString()  # pyright: ignore[reportArgumentType]


def read_health(data: bytes) -> Health:
    """Return what a server says of its health; an unknown number reads as `unknown`.

    Raises:
        WireError: The bytes are no answer.
    """
    answer = parse(pb.HealthCheckResponse, data, "health answer")
    return _NAMES.get(answer.status, "unknown")

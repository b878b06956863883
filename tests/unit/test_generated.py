"""Tests of the compiled .proto files: `rollmesh.wire._gen` and `tools/generate_proto.py`."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "src" / "rollmesh" / "wire" / "_gen"


@pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed"
)
def test_what_is_committed_is_what_the_proto_files_say():
    run = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "generate_proto.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_messages_are_in_a_pool_of_their_own():
    from google.protobuf import descriptor_pool

    from rollmesh.wire._gen import rlmesh_env_v1_pb2

    name = "rlmesh.env.v1.JoinRequest"
    assert rlmesh_env_v1_pb2.JoinRequest.DESCRIPTOR.full_name == name
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName(name)


def test_services_and_methods_have_the_names_of_the_wire():
    from rollmesh.wire import protobuf
    from rollmesh.wire._gen import rlmesh_env_v1_pb2, rlmesh_model_v1_pb2

    for module, service in (
        (rlmesh_env_v1_pb2, protobuf.ENV_SERVICE),
        (rlmesh_model_v1_pb2, protobuf.MODEL_SERVICE),
    ):
        [described] = module.DESCRIPTOR.services_by_name.values()
        assert described.full_name == service
        assert list(described.methods_by_name) == ["Handshake", "Join", "Shutdown"]


def test_fields_of_ours_have_numbers_from_1000_on_and_say_so():
    """A message that has such a field has a comment that names rollmesh."""
    for path in (ROOT / "proto").glob("rlmesh_*.proto"):
        text = path.read_text()
        for message in re.findall(r"message \w+ \{.*?^\}", text, re.MULTILINE | re.DOTALL):
            if re.search(r"= 1\d{3};", message):
                assert "rollmesh" in message or "without these" in message, message


def test_only_the_wire_imports_generated_code():
    package = ROOT / "src" / "rollmesh"
    imported = re.compile(
        r"^\s*(from|import) (google\.protobuf|rollmesh\.wire\._gen)", re.MULTILINE
    )
    users = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if imported.search(path.read_text())
    ]
    assert users
    assert [user for user in users if not user.startswith("wire/")] == []

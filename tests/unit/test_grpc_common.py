"""What is said where gRPC found no way to a server."""

from __future__ import annotations

import pytest

from rollmesh.errors import ConnectFailed
from rollmesh.transport.connect_errors import TlsFailed, Unheard, WrongPeer
from rollmesh.transport.grpc_common import unreached

ADDRESS = "tcp://somewhere.test:5000"


@pytest.mark.parametrize(
    ("details", "with_tls", "kind", "said"),
    [
        ("Secure read failed", True, Unheard, "tls_client_cert"),
        ("Socket closed", True, Unheard, "tls_client_cert"),
        ("recvmsg:Connection reset by peer", True, Unheard, "tls_client_cert"),
        ("Socket closed", False, Unheard, "does it want TLS?"),
        ("Socket closed", False, Unheard, "its address is rollmesh+tcp://somewhere.test"),
        ("timed out before receiving SETTINGS frame", False, Unheard, "rollmesh+tcp://"),
        (
            "Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, got frame type 79)",
            False,
            WrongPeer,
            "rollmesh+tcp://",
        ),
        ("Connection refused", True, ConnectFailed, "does it use TLS?"),
        ("SSL_ERROR_SSL: WRONG_VERSION_NUMBER", True, TlsFailed, "does the server use TLS?"),
        ("CERTIFICATE_VERIFY_FAILED: self-signed; more", True, TlsFailed, "self-signed"),
        ("Hostname Verification Check failed.", True, TlsFailed, "Hostname mismatch"),
    ],
)
def test_what_a_library_says_leads_to_what_to_look_at(details, with_tls, kind, said):
    error = unreached(ADDRESS, details, with_tls=with_tls)
    assert type(error) is kind
    assert said in str(error)
    assert ADDRESS in str(error)

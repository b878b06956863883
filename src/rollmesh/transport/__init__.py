"""Transports (layer 5): what moves messages between two ends. They give them no meaning.

address.py        how addresses are written
dialing.py        `dial` and `listen`: the door of the native and memory transports
connection.py     `Connection`: send, receive, call, shutdown; what to rely on
native.py         our frames over a unix or TCP socket; greeting.py: what comes first on a unix one
receiving.py      the bytes of a stream become messages; patience.py: how one waits for them
listening.py      `Listener`: accept and close
unix_paths.py     socket files: where they lie, who may use them, leftovers
stream.py         the bytes of one socket, with deadlines; where TLS goes
security.py       tokens, where one may listen, who is at the other end; tls.py: certificates
shared_memory.py  slots for large payloads, and leases of them
private_pages.py  a payload that its reader may write into, without a copy of what it does not
spin.py           when looking again beats sleeping
memory.py         the same within one process
grpc_client.py    connections of gRPC clients; grpc_listener.py and grpc_server.py: those of servers
grpc_stream.py    the bytes of one call, at a client; grpc_calls.py and grpc_engine.py: at a server
grpc_*_speech.py  what is said in a call; grpc_steps.py: the short way of saying it
upgrade.py        from a gRPC address to the fastest path that reaches the same server
"""

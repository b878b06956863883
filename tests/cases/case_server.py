"""A server of a case's env, on the main thread of a process of its own.

`python -m tests.cases.case_server CASE_FILE ADDRESS READY_FILE`
"""

from __future__ import annotations

import sys
from pathlib import Path

from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from tests.cases.case_files import loaded
from tests.cases.case_run import CaseRun


def main() -> None:
    """Serve until a signal comes."""
    path, address, ready_file = sys.argv[1:]
    options = ServerOptions(
        ready_file=ready_file, max_sessions=1, drain_timeout_s=1.0, close_timeout_s=1.0
    )
    with loaded(Path(path)) as case:
        EnvServer(CaseRun(case=case, run={}).factory, address, options).serve()


if __name__ == "__main__":
    main()

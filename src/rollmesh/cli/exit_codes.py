"""What the exit code of a `rollmesh` command means.

| code | meaning |
|---|---|
| 0 | everything asked for was done |
| 1 | the run or the check failed: an env or model error, a timeout, a failed rule, a closed gate |
| 2 | bad arguments, or a spec that was refused before anything ran |
| 3 | the run finished, but some episodes were spoiled by a fault (`--on-error continue`) |
| 130 | interrupted by Ctrl-C (SIGINT); what had finished was printed |
| 143 | stopped by SIGTERM; what had finished was printed |
"""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1
BAD_ARGUMENTS: Final = 2
SPOILED_EPISODES: Final = 3
INTERRUPTED: Final = 130
TERMINATED: Final = 143

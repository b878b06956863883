"""A client that stands still in the middle of an episode, to be killed or stopped there.

`python -m tests.cases.lost_client ENV MODEL`: plays until the second step is done, says so on its
standard output, and waits for its end.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from rollmesh import evaluate


class StandStill:
    """Stops at the second step."""

    def __init__(self) -> None:
        self._steps = 0

    def step_completed(self, event: Any) -> None:
        del event
        self._steps += 1
        if self._steps == 2:
            print("here", flush=True)
            signal.pause()


if __name__ == "__main__":
    evaluate(sys.argv[2], sys.argv[1], episodes=1, hooks=StandStill())

"""Looks at the observations of a foreign server, which tells nothing of them (layer 6).

A rollmesh server looks at what its env sees and sends along what the space does not hold. What a
foreign server sends is looked at here, under the caller's policy, as if the env were in this
process.
"""

from __future__ import annotations

from rollmesh.endpoint.faults import fault_from
from rollmesh.errors import InvalidValue
from rollmesh.ports import OddValue, ResetReply, StepReply
from rollmesh.spaces.codec import Codec
from rollmesh.spaces.conformance import Checker, Found


class ForeignValues:
    """Fills in `odd` of the replies of one session; for one thread at a time.

    Args:
        codec: Codec of the observation space.
        checker: Decides what happens to odd observations.
    """

    def __init__(self, codec: Codec, checker: Checker) -> None:
        self._codec = codec
        self._lending = codec.lending  # the leaves stay as they are meanwhile
        self._checker = checker.keeping()
        found = self._checker.found
        self._found: list[Found] = [] if found is None else found

    def look(self, reply: ResetReply | StepReply, lanes: tuple[int, ...]) -> None:
        """Note what the space does not hold of a reply's observation.

        Args:
            reply: The reply; its `odd` is set where there is anything.
            lanes: The lanes that were named in the request; none where it was about all.

        Raises:
            EndpointFault: The policy refuses the observation.
        """
        rows = len(reply.infos)
        try:
            if rows == 1:
                self._lending.encode(self._codec.decode(reply.observation), self._checker)
            else:
                values = self._codec.decode_stacked(reply.observation, rows)
                self._lending.encode_stacked(values, rows, self._checker)
        except InvalidValue as error:
            self._found.clear()
            lane = (lanes[0] if lanes else 0) if rows == 1 else None
            fault = fault_from(error, outcome="done", env_index=lane)
            fault.is_recoverable = True
            raise fault from error
        if self._found:
            places = [(row, kind, path) for kind, path, of in self._found for row in of]
            self._found.clear()
            reply.odd = tuple([OddValue(*one) for one in dict.fromkeys(places)])

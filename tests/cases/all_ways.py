"""All ways of running a case, in this process and served; a new one is an entry here."""

from __future__ import annotations

from tests.cases import fleet_ways as fleet
from tests.cases import served_ways as served
from tests.cases.case_run import MODES
from tests.cases.ways import (
    Blocking,
    ByHand,
    Concurrent,
    Hosted,
    Lanes,
    Vector,
    VectorPort,
    Way,
)

WAYS: tuple[Way, ...] = (
    Blocking(),
    Hosted(),
    Concurrent(),
    ByHand(),
    Lanes(),
    *(Vector(mode) for mode in MODES),
    VectorPort(),
    served.ServedEnv("env over unix", served.UNIX),
    served.ServedEnv("env over tcp", served.TCP, served.OVER_TCP),
    served.ServedEnv("env over grpc", served.GRPC),
    served.ServedByHand(),
    served.IsolatedEnv(),
    served.ServedModel("model over unix", served.UNIX),
    served.ServedModel("model over grpc", served.GRPC),
    served.ServedBoth(),
    served.ServedLanes("lanes over unix", served.UNIX, serves_model=False),
    served.ServedLanes("lanes over grpc, model too", served.GRPC, serves_model=True),
    *(served.ServedVector(mode) for mode in MODES),
    fleet.Workers(),
    fleet.WorkerALane(),
    fleet.ThreeWorkers(),
)

WAY_OF = {way.name: way for way in WAYS}

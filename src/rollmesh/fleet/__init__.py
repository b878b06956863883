"""Many environments in worker processes, driven as one env port (layer 7).

    from rollmesh.fleet.lanes import FleetEnvs
    from rollmesh.fleet.worker_spec import EnvTarget

    fleet = FleetEnvs.open(
        {"lift": EnvTarget.of("bench:make", {"task": "lift"}), "push": EnvTarget.of("Push-v1")},
        workers=8,                  # worker processes
        lanes_per_worker=1,         # lane i lives in worker i // lanes_per_worker
        addresses=("host:5000",),   # served envs, a lane each, after those of the workers
        options=WorkerOptions(load_s=120.0, pin=True),
        tell=lambda worker, state, detail, pid: …,
    )
    fleet.contract                  # of the first env; num_envs is the number of lanes
    …                               # RouteDriver(SessionSpec(env_contract=fleet.contract, …), …)
    fleet.starts, fleet.deaths
    fleet.close(5.0)                # by whoever opened it, whatever became of the route

- The names of `setups` are what a `PrepareRequest` names. `open` builds the first one's env on
  worker 0, to learn the contract, and raises what building raised. Everything else starts when it
  is first prepared.
- `prepare` has deadlines of its own that begin when the work does (`WorkerOptions.start_s`,
  `load_s`): a worker that waits for its turn to start is not late. So it needs none from outside.
- `rebuild` only takes note; the next `prepare` does the work, whose loss can be made up for.
- A worker that is gone raises `WorkerLost`, a `SessionLost`: the episode starts again. One that
  failed to start several times in a row with the same cause, or twice as often with any, is given
  up: its lanes then raise `LaneLost` at once, which says that nothing was done and that other lanes
  may do it.
- `tell` is called on the thread that waits, with the states of `events.WorkerChanged`.

`plan.py` says which episodes there are; `machine.py` how many workers this machine holds. `pool.py`
is where workers come from, and the seam for pools on other machines; `guard.py` ends what is left
of them. `worker_life.py` starts, watches and replaces a worker; `supervisor.py` holds what they
share; `worker.py` is what runs in their process.
"""

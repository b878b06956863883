"""MLflow as a hooks object (extra `mlflow`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollmesh.errors import InvalidSpec
from rollmesh.observers.observer import library
from rollmesh.observers.tracker import Tracker, finite, named

if TYPE_CHECKING:
    from collections.abc import Mapping


class MlflowHooks(Tracker):
    """Logs episodes and a summary to an MLflow run.

    Numbers that are not finite are left out: MLflow's stores do not agree on them.

    Raises:
        InvalidSpec: MLflow is not installed, or has not got the store that it is to use.
    """

    def __init__(
        self,
        *,
        experiment: str = "rollmesh",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        run_id: str | None = None,
    ) -> None:
        """Begin a run, or go on with one.

        Args:
            experiment: Its experiment, made if there is none of this name.
            run_name: Its name; None lets MLflow find one.
            tracking_uri: Where MLflow keeps it; None is MLflow's own setting.
            run_id: A run of yours, which is used and left open; None begins one.
        """
        mlflow = library("mlflow", "mlflow")
        self._entities: Any = library("mlflow.entities", "mlflow")
        try:
            self._client: Any = mlflow.MlflowClient(tracking_uri)
            self.run_id = str(run_id or self._begin(experiment, run_name))
        except Exception as error:
            if not type(error).__name__.startswith("Unsupported"):
                raise
            raise InvalidSpec(
                "mlflow",
                "cannot watch this run: the package mlflow-skinny has no store of its own "
                f"({type(error).__name__}); name a tracking server (tracking_uri=, or "
                "MLFLOW_TRACKING_URI=http://…), or pip install mlflow",
            ) from error
        self._owns_run = run_id is None
        super().__init__()

    def _begin(self, experiment: str, run_name: str | None) -> str:
        """Return the id of a new run."""
        found = self._client.get_experiment_by_name(experiment)
        place = self._client.create_experiment(experiment) if found is None else found.experiment_id
        return self._client.create_run(place, run_name=run_name).info.run_id

    def log_start(self, facts: Mapping[str, str]) -> None:
        """Put what runs into the tags."""
        for name, value in facts.items():
            self._client.set_tag(self.run_id, f"rollmesh.{name}", value)

    def log_episode(self, place: int, values: Mapping[str, float]) -> None:
        """Log an episode with its place as the step."""
        self._log(named(finite(values), "episode"), place)

    def log_summary(self, values: Mapping[str, float]) -> None:
        """Log the final numbers."""
        self._log(named(finite(values), "result"), 0)

    def finish(self) -> None:
        """End the run if it was begun here."""
        if self._owns_run:
            self._client.set_terminated(self.run_id)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        from rollmesh.clock import SYSTEM_CLOCK

        now_ms = SYSTEM_CLOCK.wall_ns() // 1_000_000
        metrics = [
            self._entities.Metric(name, value, now_ms, step) for name, value in values.items()
        ]
        self._client.log_batch(self.run_id, metrics=metrics)

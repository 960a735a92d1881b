"""Callbacks that log a training run to TensorBoard, Weights & Biases or MLflow, as listeners for `on_event`.

at.train("reviews.csv", name="reviews", on_event=at.callbacks.mlflow("runs"))
"""

from __future__ import annotations

import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaptree.data.events import Event, Listener
from adaptree.errors import TrainingError, UsageError

__all__ = ["mlflow", "tensorboard", "wandb"]

COUNTS = ("epoch", "epochs", "best", "rows", "stage")
"""Numbers of an epoch that are no curves."""
MOST = 500
"""Metrics that are sent to MLflow at once."""


def tensorboard(folder: str | Path) -> Listener:
    """Return a listener that writes a run's curves to a folder for TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("TensorBoard is not installed.", hint="pip install 'adaptree[tensorboard]'") from error
    return _TensorBoard(SummaryWriter, str(folder))


def wandb(project: str) -> Listener:
    """Return a listener that logs runs to a project of Weights & Biases: settings, curves and final scores.

    It prints nothing, unless the environment says otherwise. With WANDB_MODE=offline it keeps them in ./wandb (or
    WANDB_DIR) and needs no network.
    """
    os.environ.setdefault("WANDB_SILENT", "true")  # a run's own setting does not silence what wandb suggests
    try:
        import wandb as library
    except ImportError as error:
        raise UsageError("Weights & Biases is not installed.", hint="pip install 'adaptree[wandb]'") from error
    return _Wandb(library, project)


def mlflow(where: str | Path, *, experiment: str = "adaptree") -> Listener:
    """Return a listener that logs runs to MLflow: settings, curves and final scores, sent after each epoch.

    `where` is a tracking URI, such as http://host:5000 or sqlite:///runs.db, or a folder. MLflow's own telemetry and
    its messages are turned off, unless the environment says otherwise.
    """
    uri = str(where)
    if "://" not in uri and not uri.startswith(("databricks", "file:", "sqlite:")):
        uri = Path(uri).absolute().as_uri()
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    if uri.startswith("file:"):  # newer versions want to be told that a folder is meant
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    try:
        import mlflow as library
    except ImportError as error:
        raise UsageError("MLflow is not installed.", hint="pip install 'adaptree[mlflow]'") from error
    return _Mlflow(library, uri, experiment)


class _Tracker(ABC):
    """A listener that hands on runs. One that cannot start is an error; one that fails later does not stop training."""

    title: str
    hint = ""
    open = False

    def __call__(self, event: Event) -> None:
        what = event["event"]
        if what == "start":
            try:
                self.begin(event["name"], _facts(event))
            except Exception as error:
                raise TrainingError(f"{self.title} cannot log this run: {_line(error)}.", hint=self.hint) from error
            self.open = True
        elif self.open:
            try:
                if what in ("step", "epoch"):
                    self.log(what, event[what], _curves(event))
                elif what in ("end", "failed"):
                    self.open = False
                    status = "failed" if what == "failed" else "finished" if event["finished"] else "stopped"
                    self.finish(status, _scores(event))
            except Exception as error:
                self.open = False
                warnings.warn(f"{self.title} logs no more, training goes on: {_line(error)}.", stacklevel=2)

    @abstractmethod
    def begin(self, name: str, facts: Mapping[str, Any]) -> None:
        """Begin a run."""

    @abstractmethod
    def log(self, axis: str, at: int, values: Mapping[str, float]) -> None:
        """Add a point to some curves, which are over steps or over epochs."""

    @abstractmethod
    def finish(self, status: str, scores: Mapping[str, float]) -> None:
        """End the run: finished, stopped or failed."""


class _TensorBoard(_Tracker):
    title = "TensorBoard"

    def __init__(self, writer: Any, folder: str) -> None:
        self.open_writer, self.folder = writer, folder

    def begin(self, name: str, facts: Mapping[str, Any]) -> None:
        self.writer = self.open_writer(self.folder)

    def log(self, axis: str, at: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, at)
        if axis == "epoch":
            self.writer.flush()

    def finish(self, status: str, scores: Mapping[str, float]) -> None:
        self.writer.close()


class _Wandb(_Tracker):
    title = "Weights & Biases"
    hint = "wandb login, or set WANDB_MODE=offline"

    def __init__(self, library: Any, project: str) -> None:
        self.library, self.project = library, project

    def begin(self, name: str, facts: Mapping[str, Any]) -> None:
        quiet = self.library.Settings(silent=True, console="off")
        self.run = self.library.init(
            project=self.project, name=name, config=dict(facts), settings=quiet, reinit="create_new"
        )
        self.run.define_metric("train/*", step_metric="step")
        self.run.define_metric("epoch/*", step_metric="epoch")

    def log(self, axis: str, at: int, values: Mapping[str, float]) -> None:
        self.run.log({**values, axis: at})

    def finish(self, status: str, scores: Mapping[str, float]) -> None:
        self.run.summary.update(dict(scores))
        self.run.finish(exit_code=0 if status == "finished" else 1)


class _Mlflow(_Tracker):
    title = "MLflow"
    hint = "Check the address that --mlflow gives."

    def __init__(self, library: Any, uri: str, experiment: str) -> None:
        self.library, self.uri, self.experiment = library, uri, experiment

    def begin(self, name: str, facts: Mapping[str, Any]) -> None:
        self.waiting: list[Any] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as that folders are out of fashion
            self.client = self.library.MlflowClient(tracking_uri=self.uri)
            found = self.client.get_experiment_by_name(self.experiment)
        where = self.client.create_experiment(self.experiment) if found is None else found.experiment_id
        self.run = self.client.create_run(where, run_name=name).info.run_id
        param = self.library.entities.Param
        self.client.log_batch(self.run, params=[param(key, str(value)) for key, value in facts.items()])

    def log(self, axis: str, at: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self.waiting += [self.library.entities.Metric(key, value, now, at) for key, value in values.items()]
        if axis == "epoch" or len(self.waiting) >= MOST:
            self._send()

    def _send(self) -> None:
        self.client.log_batch(self.run, metrics=self.waiting)
        self.waiting = []

    def finish(self, status: str, scores: Mapping[str, float]) -> None:
        self.log("epoch", 0, scores)
        states = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
        self.client.set_terminated(self.run, states[status])


def _facts(event: Event) -> dict[str, Any]:
    """Return what a run is: its task, base, method, rows and settings."""
    about = {key: event[key] for key in ("name", "kind", "base", "method", "train", "validation")}
    return about | {key: value for key, value in event["settings"].items() if value is not None}


def _curves(event: Event) -> dict[str, float]:
    """Return the numbers of a step, or those of an epoch."""
    if event["event"] == "step":
        return {"train/loss": event["loss"], "train/lr": event["lr"]}
    numbers = {key: value for key, value in event.items() if isinstance(value, int | float) and key not in COUNTS}
    return {f"epoch/{key}": float(value) for key, value in numbers.items()}


def _scores(event: Event) -> dict[str, float]:
    """Return the final scores of a run's tasks and their price; those of several tasks begin with the task's name."""
    results = event.get("results", ())
    found: dict[str, float] = {}
    for result in results:
        prefix = f"{result['task']}/" if len(results) > 1 else ""
        for part, scores in result["metrics"].items():
            found |= {f"{prefix}{part}/{metric}": float(value) for metric, value in scores.items()}
        found[f"{prefix}trained_parameters"] = float(result["parameters"]["trained"])
    return found


def _line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")

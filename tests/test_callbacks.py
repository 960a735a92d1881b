"""Callbacks: what trackers get of a run; without a network, without a word, and never in the way of training."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

import adaptree as at
from adaptree.cli import main
from adaptree.errors import Diverged, TrainingError, UsageError
from tests.bases import tiny_base, words_csv

NO_MLFLOW = "logging to MLflow is tested with it: pip install 'adaptree[mlflow]'"
NO_WANDB = "logging to Weights & Biases is tested with it: pip install 'adaptree[wandb]'"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("callbacks")
    return {"base": tiny_base(folder / "base"), "data": words_csv(folder / "words.csv", 60)}


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, address: Any) -> None:
        raise AssertionError(f"a network call to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: refuse(None, args))


def train(world: dict[str, Path], on_event: Any, **options: Any) -> at.Bound:
    wanted = {"method": "houlsby:4", "epochs": 2, "baselines": False, "name": "words"} | options
    return at.train(world["data"], base=world["base"], on_event=on_event, **wanted)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.setenv(name, "true")  # and put back after the test, whoever sets it
    return pytest.importorskip("mlflow", reason=NO_MLFLOW)


def runs_of(mlflow: Any, folder: Path) -> list[Any]:
    client = mlflow.MlflowClient(tracking_uri=folder.absolute().as_uri())
    experiment = client.get_experiment_by_name("adaptree")
    return list(client.search_runs([experiment.experiment_id]))


def test_the_last_event_says_how_a_run_ended(world: dict[str, Path]) -> None:
    events: list[Any] = []
    bound = train(world, events.append, epochs=1)
    assert events[-1]["event"] == "end"
    assert events[-1]["finished"]
    assert [found["metrics"] for found in events[-1]["results"]] == [bound.task.record.metrics]
    with pytest.raises(Diverged):
        train(world, events.append, lr=1e30, clip=1e30, epochs=5)
    assert events[-1]["event"] == "failed"
    assert "not a number" in events[-1]["why"]


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_was_stopped_is_a_killed_one(mlflow: Any, tmp_path: Path) -> None:
    listener = at.callbacks.mlflow(tmp_path / "runs")
    about = {"name": "words", "kind": "classify", "base": "tiny", "method": "head", "train": 8, "validation": 2}
    listener({"event": "start", **about, "settings": {"lr": 0.1, "metric": None}})
    listener({"event": "step", "step": 1, "loss": 0.5, "lr": 0.1})
    listener({"event": "end", "finished": False, "results": []})
    listener({"event": "step", "step": 2, "loss": 0.5, "lr": 0.1})  # of no run
    (run,) = runs_of(mlflow, tmp_path / "runs")
    assert run.info.status == "KILLED"
    assert run.data.metrics == {"train/loss": 0.5, "train/lr": 0.1}


@pytest.mark.usefixtures("no_network")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_settings_curves_and_scores(
    world: dict[str, Path], mlflow: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bound = train(world, at.callbacks.mlflow(tmp_path / "runs"))
    assert capfd.readouterr() == ("", "")
    (run,) = runs_of(mlflow, tmp_path / "runs")
    record = bound.task.record
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "words"
    assert run.data.params["method"] == "houlsby(size=4)"
    assert run.data.params["epochs"] == "2"
    assert run.data.metrics["validation/accuracy"] == record.metrics["validation"]["accuracy"]
    assert run.data.metrics["trained_parameters"] == record.parameters["trained"]
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "runs").as_uri())
    curve = client.get_metric_history(run.info.run_id, "epoch/train_loss")
    assert [(point.step, point.value) for point in curve] == [(h["epoch"], h["train_loss"]) for h in record.history]
    assert len(client.get_metric_history(run.info.run_id, "train/loss")) >= 4


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_fails_is_a_failed_one(world: dict[str, Path], mlflow: Any, tmp_path: Path) -> None:
    with pytest.raises(Diverged):
        train(world, at.callbacks.mlflow(tmp_path / "runs"), lr=1e30, clip=1e30, epochs=5)
    (run,) = runs_of(mlflow, tmp_path / "runs")
    assert run.info.status == "FAILED"


def test_an_address_that_does_not_work_is_one_line_before_training(
    world: dict[str, Path], mlflow: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(TrainingError, match="MLflow cannot log this run: ") as caught:
        train(world, at.callbacks.mlflow(tmp_path / "file" / "runs"))
    assert "\n" not in str(caught.value)


def test_training_goes_on_when_a_tracker_fails(world: dict[str, Path], mlflow: Any, tmp_path: Path) -> None:
    listener: Any = at.callbacks.mlflow(tmp_path / "runs")

    def lose(*args: Any, **more: Any) -> None:
        raise OSError("the server is gone")

    def listen(event: Any) -> None:
        listener(event)
        if event["event"] == "start":
            listener.client.log_batch = lose

    with pytest.warns(UserWarning, match="MLflow logs no more, training goes on: the server is gone"):
        assert train(world, listen).task.record.settings["best_epoch"] > 0


@pytest.mark.filterwarnings("ignore")
def test_the_command_line_logs_to_mlflow_and_prints_its_result_alone(
    world: dict[str, Path], mlflow: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    args = ["train", str(world["data"]), "--name", "words", "--base", str(world["base"]), "--epochs", "1", "-q"]
    assert main([*args, "--store", str(tmp_path / "s"), "--mlflow", str(tmp_path / "runs"), "--format", "json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["task"] == "words"
    assert err == ""
    assert len(runs_of(mlflow, tmp_path / "runs")) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_gets_the_run_offline_and_prints_nothing(
    world: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wandb = pytest.importorskip("wandb", reason=NO_WANDB)
    pytest.importorskip("openai")  # where it is imported, wandb suggests another of its products
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    try:
        train(world, at.callbacks.wandb("trials"), epochs=1)
    finally:
        wandb.teardown()
    assert capfd.readouterr() == ("", "")
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"validation/accuracy" in kept.read_bytes()


@pytest.mark.parametrize(("name", "title"), [("wandb", "Weights & Biases"), ("mlflow", "MLflow")])
def test_a_package_that_is_missing_is_one_line(
    name: str, title: str, world: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=f"{title} is not installed.*adaptree\\[{name}\\]"):
        getattr(at.callbacks, name)("there")
    args = ["train", str(world["data"]), "--name", "words", "--store", str(tmp_path), f"--{name}", "there"]
    assert main(args) == 2
    assert capsys.readouterr().err == f"✘ {title} is not installed.  pip install 'adaptree[{name}]'\n"

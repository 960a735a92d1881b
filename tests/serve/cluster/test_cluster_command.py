"""adaptree serve --cluster as a command: what it refuses in one line, and that it serves, trains and stops."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from adaptree.cli import main
from adaptree.errors import UsageError
from adaptree.serve.cluster import Replicas
from adaptree.serve.cluster.replicas import Application
from adaptree.tasks.store import Store
from tests.bases import words_csv
from tests.serve.jobs.site import QUICK, send
from tests.serve.serving import World
from tests.serve.test_command import serving

PATIENCE = 180


def refused(capsys: pytest.CaptureFixture[str], world: World, *options: str) -> str:
    """What the command says, in one line, when it does not start."""
    store = ["--store", str(world.store.path), "--base", str(world.folder / "tiny"), "--port", "0", "--no-keys"]
    assert main(["serve", *store, *options]) != 0
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    return said[0]


def test_what_cannot_work_is_said_in_one_line(capsys: pytest.CaptureFixture[str], world: World) -> None:
    assert "--cluster ray://HOST:10001" in refused(capsys, world, "--cluster", "slurm")
    assert "--replicas 2, or 1-4" in refused(capsys, world, "--cluster", "ray", "--replicas", "4-1")
    assert "--cluster ray, or --workers" in refused(capsys, world, "--replicas", "3")
    assert "Leave out --workers" in refused(capsys, world, "--cluster", "ray", "--workers", "2")


def test_replicas_are_a_number_or_a_span() -> None:
    assert [Replicas.parse(text) for text in ("1", "3", "1-4")] == [(1, 1), (3, 3), (1, 4)]
    for wrong in ("0", "-1", "2-1", "many", "", "1-"):
        with pytest.raises(UsageError):
            Replicas.parse(wrong)


def test_without_ray_serve_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError) as caught:
        Application("ray", None, Replicas(), print)  # type: ignore[arg-type]
    assert str(caught.value) == "serving on a cluster needs Ray Serve.  pip install 'adaptree[cluster]'"


@pytest.mark.slow
def test_the_command_serves_trains_a_job_on_the_cluster_and_stops(
    ray_cluster: Any, world: World, tmp_path: Path
) -> None:
    from ray import serve

    shutil.copytree(world.store.path, tmp_path / "store")  # its jobs are its own
    own = World(world.folder, world.base, Store(tmp_path / "store"))
    options = ("--cluster", "ray", "--memory", "100MB", "--log", "none")
    with serving(own, *options, RAY_ADDRESS=ray_cluster.address) as (process, ask, lines):
        assert ask.post("/v1/tasks/words/predict", {"inputs": ["lion"]}).status == 200
        assert ask.get("/server/figures").json["replicas"] == 1
        sent = send(ask, words_csv(tmp_path / "words.csv").read_bytes())
        job = ask.post("/v1/jobs", {"file": sent.json["id"], "settings": {**QUICK, "name": "trained"}})
        assert job.status == 202, job.body
        until = time.monotonic() + PATIENCE
        while (found := ask.get(f"/v1/jobs/{job.json['id']}").json)["state"] not in ("done", "failed", "cancelled"):
            assert time.monotonic() < until, (found, lines)
            time.sleep(0.5)
        assert found["state"] == "done", found
        answer = ask.post("/v1/tasks/trained/predict", {"inputs": ["lion"]}, timeout=60)
        assert answer.status == 200
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0
    left = {name: each.status for name, each in serve.status().applications.items()}
    assert set(left.values()) <= {"DELETING"}, "nobody else uses the replicas"

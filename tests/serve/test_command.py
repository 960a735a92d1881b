"""adaptree serve and adaptree keys api, as processes: what they print, refuse, and how they stop."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from adaptree.cli import main
from adaptree.serve.keys import new_key, read_keys
from tests.serve.serving import Asker, World

STOPPED = 0


@contextmanager
def serving(
    world: World, *options: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], Asker, list[str]]]:
    """`adaptree serve` in a process of its own, with a free port; its lines of stderr as they come."""
    command = [sys.executable, "-m", "adaptree", "serve", "--port", "0", "--store", str(world.store.path)]
    command += ["--base", str(world.folder / "tiny"), "--threads", "1", *options]
    env = {**os.environ, "XDG_CONFIG_HOME": str(world.folder / "config"), **environment}
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    lines: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=lambda: lines.extend(process.stderr))  # type: ignore[arg-type]
    reader.start()
    try:
        until = time.monotonic() + 60
        while not any("at http://" in line for line in lines):
            assert process.poll() is None, lines
            assert time.monotonic() < until, lines
            time.sleep(0.02)
        found = re.search(r"at (http://\S+)", "".join(lines))
        assert found
        ask = Asker(found[1])
        while time.monotonic() < until:
            try:
                if ask.get("/ready").status == 200:
                    break
            except OSError:
                time.sleep(0.05)
        yield process, ask, lines
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it, and its workers
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()
        process.stderr.close()


def test_the_command_serves_says_where_and_stops_with_0(world: World) -> None:
    with serving(world) as (process, ask, lines):
        assert ask.post("/v1/tasks/words/predict", {"inputs": ["SECRET lion"]}).status == 200
        example = next(line for line in lines if "curl" in line)
        assert f"http://{ask.host}:{ask.port}/v1/tasks/" in example
        assert ask.get("/health", headers={"Host": "evil.example"}).status == 403
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == STOPPED
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    assert next((line["route"], line["status"]) for line in logged) == ("/v1/tasks/{task}/predict", 200)
    assert "SECRET" not in "".join(lines)
    assert "Traceback" not in "".join(lines)


def test_requests_under_way_are_answered_when_the_process_is_told_to_stop(world: World) -> None:
    with serving(world, "--log", "none") as (process, ask, lines):
        statuses: list[int] = []

        def keep_asking() -> None:
            while True:
                try:
                    statuses.append(ask.post("/v1/tasks/words/predict", {"inputs": ["lion wolf"] * 50}).status)
                except OSError:
                    return

        threads = [threading.Thread(target=keep_asking) for _ in range(8)]
        for thread in threads:
            thread.start()
        while len(statuses) < 30:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == STOPPED
        for thread in threads:
            thread.join()
        assert set(statuses) <= {200, 503}
        assert "Traceback" not in "".join(lines)


def test_keys_are_asked_for_when_there_are_any(world: World, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    _, text = new_key(file, tenant="acme")
    with serving(world, "--keys", str(file), "--log", "text") as (process, ask, lines):
        assert ask.get("/v1/tasks").status == 401
        assert Asker(f"http://{ask.host}:{ask.port}", text).get("/v1/tasks").status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == STOPPED
    assert text not in "".join(lines)
    assert any("route=/v1/tasks status=200" in line for line in lines)


@pytest.mark.slow
def test_workers_share_a_port_and_one_that_is_killed_is_replaced(world: World) -> None:
    with serving(world, "--workers", "2", "--log", "none") as (process, ask, _):
        found = subprocess.run(
            ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process.pid)], capture_output=True, text=True
        )
        children = [int(line.split()[0]) for line in found.stdout.splitlines() if "spawn_main" in line]
        assert len(children) == 2
        statuses: list[Any] = []
        stop = threading.Event()

        def keep_asking() -> None:
            while not stop.is_set():
                try:
                    statuses.append(ask.post("/v1/tasks/words/predict", {"inputs": ["lion wolf"]}).status)
                except OSError as error:
                    statuses.append(type(error).__name__)

        threads = [threading.Thread(target=keep_asking) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(2)
        os.kill(children[0], signal.SIGKILL)
        time.sleep(8)
        stop.set()
        for thread in threads:
            thread.join()
        assert set(statuses) <= {200, "ConnectionResetError", "RemoteDisconnected", "BrokenPipeError"}, set(statuses)
        assert statuses.count(200) > 0.9 * len(statuses)
        assert statuses[-1] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == STOPPED


# Refusals: one line each


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    code = main(["serve", *options])
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return code, said


def test_an_address_that_others_reach_needs_keys(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ADAPTREE_API_KEYS", str(tmp_path / "none.json"))
    code, said = refused(capsys, "--host", "0.0.0.0", "--port", "0", "--store", str(world.store.path))
    assert code == 2
    assert "--no-keys" in said


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--store", "/nowhere/at/all"], "there is no store"),
        (["--keys", "/nowhere/keys.json"], "there are no keys"),
        (["--keys", "a", "--no-keys"], "contradict"),
        (["--memory", "many"], "is no size"),
        (["--max-body", "0"], "is no size"),
        (["--base", "/nowhere/base", "--port", "0"], "/nowhere/base"),
        (["--base", "/nowhere/base", "--port", "0", "--workers", "2"], "/nowhere/base"),
        (["--host", "no.such.host.invalid", "--no-keys"], "cannot listen"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str], what: str
) -> None:
    monkeypatch.setenv("ADAPTREE_STORE", str(world.store.path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(world.folder / "config"))
    code, said = refused(capsys, *options)
    assert code in (1, 2)
    assert what in said


def test_a_port_in_use_is_refused_in_one_line(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = refused(capsys, "--port", port, "--store", str(world.store.path), "--no-keys")
        assert code == 1
        assert f"127.0.0.1:{port}" in said
        assert "--port" in said


def test_a_missing_package_is_named_with_what_to_install(world: World) -> None:
    code = "import sys; sys.modules['fastapi'] = None; from adaptree.cli import main; sys.exit(main(['serve']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert 'pip install "adaptree[serve]"' in done.stderr


# adaptree keys api


def test_api_keys_are_made_listed_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTREE_API_KEYS", str(tmp_path / "keys.json"))
    assert (
        main(["keys", "api", "new", "--tenant", "acme", "--scope", "predict", "--scope", "train", "--rate", "5"]) == 0
    )
    said = capsys.readouterr()
    text = said.out.strip()
    assert re.fullmatch(r"at_[0-9a-f]{12}_[\w-]{43}", text)
    assert text not in said.err
    (key,) = read_keys(tmp_path / "keys.json")
    assert (key.tenant, key.scopes, key.rate) == ("acme", ("predict", "train"), 5.0)
    for form in ("table", "json", "jsonl", "csv"):
        assert main(["keys", "api", "list", "--format", form]) == 0
        shown = capsys.readouterr().out
        assert key.id in shown
        assert key.hash not in shown
    assert main(["keys", "api", "remove", "nothing"]) == 2
    assert main(["keys", "api", "remove", key.id]) == 0
    assert main(["keys", "api", "new", "--scope", "everything"]) == 2
    capsys.readouterr()

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
        until = time.monotonic() + (240 if "--cluster" in options else 60)
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


def test_the_command_serves_says_where_asks_for_keys_and_stops_with_0(world: World, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    _, text = new_key(file)
    with serving(world, "--keys", str(file)) as (process, anyone, lines):
        assert anyone.get("/v1/tasks").status == 401
        ask = Asker(f"http://{anyone.host}:{anyone.port}", text)
        assert ask.post("/v1/tasks/words/predict", {"inputs": ["SECRET lion"]}).status == 200
        example = next(line for line in lines if "curl" in line)
        assert f"http://{ask.host}:{ask.port}/v1/tasks/" in example
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == STOPPED
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    assert [(line["route"], line["status"]) for line in logged] == [
        ("/v1/tasks", 401),
        ("/v1/tasks/{task}/predict", 200),
    ]
    assert "SECRET" not in "".join(lines)
    assert text not in "".join(lines)
    assert "Traceback" not in "".join(lines)


@pytest.mark.slow
def test_requests_under_way_are_answered_when_the_process_is_told_to_stop(world: World) -> None:
    with serving(world, "--log", "text") as (process, ask, lines):
        assert ask.get("/health", headers={"Host": "evil.example"}).status == 403
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
    assert any("route=/v1/tasks/{task}/predict status=200" in line for line in lines)
    assert "Traceback" not in "".join(lines)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that a server with --workers 2 has started."""
    found = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process.pid)], capture_output=True, text=True
    )
    children = [int(line.split()[0]) for line in found.stdout.splitlines() if "spawn_main" in line]
    assert len(children) == 2
    return children


@pytest.mark.slow
def test_workers_share_a_port_and_one_that_is_killed_is_replaced(world: World) -> None:
    with serving(world, "--workers", "2", "--log", "none") as (process, ask, _):
        children = workers_of(process)
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
        assert process.wait(80) == STOPPED  # the parent may still wait for an answer of the worker that was killed


@pytest.mark.slow
def test_workers_keep_a_keys_limits_together_and_answer_for_each_other(world: World, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    texts = {"few": new_key(file, quota=8)[1], "slow": new_key(file, rate=0.001)[1]}
    texts["admin"] = new_key(file, scopes=["admin"])[1]
    with serving(world, "--workers", "2", "--log", "none", "--keys", str(file)) as (process, ask, _):
        few, slow, admin = (Asker(f"http://{ask.host}:{ask.port}", text) for text in texts.values())
        workers = workers_of(process)

        def asked(of: Asker, text: str) -> int:
            return of.post("/v1/tasks/words/predict", {"inputs": [text]}).status

        def only(worker: int) -> None:
            """Let one worker answer, and hold the other."""
            for each in workers:
                os.kill(each, signal.SIGCONT if each == worker else signal.SIGSTOP)

        until = time.monotonic() + 60
        for worker in workers:  # both have started
            only(worker)
            while True:
                with suppress(OSError):
                    if ask.get("/ready", timeout=2).status == 200:
                        break
                assert time.monotonic() < until
        only(workers[0])
        assert [asked(few, "lion") for _ in range(5)] == [200] * 5
        assert asked(slow, "lion") == 200
        only(workers[1])
        assert [asked(few, "wolf") for _ in range(5)] == [200] * 3 + [429] * 2
        assert asked(slow, "wolf") == 429
        assert asked(admin, "saw") == 200

        def counted(*statuses: int) -> list[float]:
            route = 'adaptree_http_requests_total{{method="POST",route="/v1/tasks/{{task}}/predict",status="{}"}}'
            values = dict(line.rsplit(" ", 1) for line in admin.get("/metrics").body.decode().splitlines())
            return [float(values.get(route.format(status), 0)) for status in statuses]

        def wait_until_all_know(*expected: float) -> None:
            """Wait until whoever is asked knows what all have counted, which each says every second."""
            until, agree = time.monotonic() + 60, 0
            while agree < 10:
                agree = agree + 1 if counted(200, 429) == [*expected] else 0
                assert time.monotonic() < until, counted(200, 429)
                time.sleep(0.05)

        os.kill(workers[0], signal.SIGCONT)
        wait_until_all_know(10, 3)
        os.kill(workers[0], signal.SIGKILL)  # what it counted stays
        wait_until_all_know(10, 3)
        assert asked(few, "drill") == 429
        wait_until_all_know(10, 4)
        figures = admin.get("/server/figures").json
        assert (figures["texts"], figures["latency_count"]) == (10, 14)
        page = admin.get("/task/words").body.decode()
        assert "10 times" in page
        process.send_signal(signal.SIGTERM)
        assert process.wait(80) == STOPPED  # the parent may still wait for an answer of the worker that was killed


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

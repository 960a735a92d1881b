"""adaptree app: one command that makes a store, serves the pages on this machine alone, and ends cleanly."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.bases import tiny_base
from tests.serve.serving import Asker

from adaptree.cli import app_command, main


@contextmanager
def running(*options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str, Asker]]:
    """`adaptree app` in a process of its own; its one line, and who asks it."""
    command = [sys.executable, "-m", "adaptree", "app", *options]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}, start_new_session=True
    )
    assert process.stderr is not None
    try:
        assert process.stderr.readline().startswith("Loading the base")
        line = process.stderr.readline()
        found = re.search(r"at (http://\S+)", line)
        assert found, line
        ask = Asker(found[1])
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if ask.get("/ready").status == 200:
                    break
            except OSError:
                time.sleep(0.05)
        yield process, line, ask
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.slow
def test_an_empty_machine_gets_a_store_a_page_and_its_browser(tmp_path: Path) -> None:
    opened = tmp_path / "opened.txt"
    browser = tmp_path / "browser.sh"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {opened}\n')
    browser.chmod(0o755)
    store = tmp_path / "new" / "store"
    options = ["--base", str(tiny_base(tmp_path / "tiny", layers=2)), "--threads", "1", "--port", "0"]
    with running(*options, "--store", str(store), BROWSER=f"{browser} %s") as (process, line, ask):
        assert line.strip().endswith("Ctrl-C ends it")
        assert store.is_dir()
        page = ask.get("/", headers={"Accept": "text/html"})
        assert (page.status, ask.host) == (200, "127.0.0.1")
        assert "No tasks yet" in page.body.decode()
        assert ask.get("/", headers={"Host": "evil.example"}).status == 403
        until = time.monotonic() + 30
        while not opened.exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert opened.read_text().strip() == f"http://{ask.host}:{ask.port}"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_port_that_is_taken_is_an_error_only_if_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(app_command, "PORT", port)
        with app_command._listening("127.0.0.1", None) as found:
            assert found.getsockname()[1] != port
        assert main(["app", "--port", str(port), "--no-browser", "--store", str(tmp_path / "store")]) == 1
        assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_what_cannot_be_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["app", "--no-browser", "--store", str(tmp_path / "file" / "store")]) == 1
    assert "cannot make a store" in capsys.readouterr().err
    assert main(["app", "--no-browser", "--results", str(tmp_path / "none"), "--store", str(tmp_path)]) == 1
    assert "there is no folder" in capsys.readouterr().err

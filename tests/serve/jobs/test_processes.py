"""The workers that a server starts: there when there is work, out of the way, and gone with the server."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.serve.jobs.site import Site
from tests.serve.jobs.test_kills import Town, town

pytestmark = pytest.mark.slow


def children(running: Town) -> list[int]:
    assert running.server is not None
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == running.server.pid:
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def test_a_server_starts_a_worker_that_steps_back_and_takes_it_along(site: Site) -> None:
    with town(site, worker=False, nice="19") as running:
        assert children(running) == [], "there is nothing to train"
        id = running.submit("words", epochs=400)
        assert running.at_work()
        (worker,) = children(running)
        assert os.getpriority(os.PRIO_PROCESS, worker) == 19
        autogroup = Path(f"/proc/{worker}/autogroup")
        if autogroup.exists():
            assert autogroup.read_text().endswith("nice 19\n")
            assert not Path("/proc/self/autogroup").read_text().endswith("nice 19\n")
        assert running.server is not None
        running.server.send_signal(signal.SIGTERM)
        assert running.server.wait(60) == 0
        assert not Path(f"/proc/{worker}").exists()
        job = site.jobs.get(id)
        assert (job.state, job.deaths) == ("queued", 0), "it was given back"


def test_a_worker_ends_when_its_server_is_killed(site: Site) -> None:
    with town(site, worker=False) as running:
        id = running.submit("words", epochs=400)
        running.at_work()
        (worker,) = children(running)
        assert running.server is not None
        running.server.kill()
        running.server.wait()
        until = time.monotonic() + 60
        while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
            time.sleep(0.1)
        assert not Path(f"/proc/{worker}").exists()
        assert site.jobs.get(id).state == "queued"

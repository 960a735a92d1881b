"""An empty store: every page says what to do first, and a dropped file becomes a served task."""

from __future__ import annotations

import csv
import resource
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

import adaptree.analysis.demo
from adaptree.tasks.store import Store
from tests.cli.test_app_command import running
from tests.serve.serving import World
from tests.serve.web.conftest import Open, expect, faults, serving, sideways

MINUTES, CORES = 3, 2
"""In which a task is to be there; counted as processor time, which a busy machine changes little."""


def test_pages_of_an_empty_store_lead_to_the_first_task(world: World, open_page: Open, tmp_path: Path) -> None:
    with serving(World(tmp_path, world.base, Store(tmp_path / "store"))) as site:
        page = open_page(site, viewport={"width": 390, "height": 844})
        for address in ("/", "/all", "/methods", "/compose", "/jobs", "/server"):
            page.goto(site.url + address)
            assert (faults(page), sideways(page)) == ([], 0), address
            if address == "/server":
                expect(page.locator("[data-show=ratio]")).to_have_text("–")  # nothing to compare with
            else:
                page.locator("main").get_by_role("link", name="task").click()
                expect(page.locator("h1")).to_have_text("New task")


@pytest.mark.real
@pytest.mark.slow
def test_three_hundred_rows_become_a_served_task_in_three_minutes(open_page: Open, tmp_path: Path) -> None:
    file = tmp_path / "tickets.csv"
    with adaptree.analysis.demo.data("tickets")[0].open(newline="") as data, file.open("w", newline="") as out:
        rows = list(csv.reader(data))[:301]
        csv.writer(out).writerows(rows)
    assert len(rows) == 301
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    options = ["--store", str(tmp_path / "store"), "--port", "0", "--no-browser", "--threads", str(CORES)]
    with running(*options, OMP_NUM_THREADS=str(CORES), ADAPTREE_JOB_NICE="0") as (process, _, ask):
        page = open_page(SimpleNamespace(url=f"http://{ask.host}:{ask.port}", keys={}))
        page.get_by_role("link", name="Make the first task").click()
        page.set_input_files("#file", file)
        expect(page.locator("#facts")).to_contain_text("300", timeout=60_000)
        page.get_by_role("button", name="Train").click()
        page.wait_for_url("**/jobs/*")
        expect(page.locator("#state")).to_have_text("done", timeout=1_200_000)
        expect(page.locator("#scores")).to_contain_text("held-out rows")
        page.get_by_role("link", name="Open the task").click()
        page.get_by_label("Text").fill("my card was charged twice")
        expect(page.locator("#answer")).to_contain_text("%")
        assert ask.post("/v1/tasks/tickets/predict", {"inputs": ["a"]}).status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 60 * MINUTES * CORES, f"{used:.0f} seconds of processor time"

"""`adaptree doctor` finds what is broken, and says what to do about it."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptree.cli import main
from adaptree.serve import doctor as examined
from adaptree.serve.doctor import Check, doctor
from adaptree.serve.jobs.database import SCHEMA, Database
from adaptree.tasks.store import Store
from tests import postgres, s3
from tests.bases import tiny_base
from tests.serve.serving import Asker, World


def checks(store: Store, **options: Any) -> dict[str, Check]:
    return {check.name: check for check in doctor(store, **options)}


@pytest.fixture
def base(world: World) -> str:
    return str(world.folder / "tiny")


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    if reason := postgres.why_not():
        pytest.skip(reason)
    with postgres.server() as url:
        yield url


def test_what_is_fine_is_said_line_by_line(
    world: World, ask: Asker, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://{ask.host}:{ask.port}"
    assert main(["doctor", "--store", str(world.store.path), "--base", base, "--url", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    for start in ("✔ python: 3.", "✔ packages: ", "✔ processor: ", "✔ server ready: ", "✔ server's base: tiny"):
        assert any(line.startswith(start) for line in lines), start
    assert not any(line.startswith("✘") for line in lines)
    assert f"✔ base: tiny, fingerprint {world.base.fingerprint[:12]}" in lines
    assert not list(world.store.path.glob(".doctor-*"))


def test_broken_things_are_found_as_json_and_by_the_exit_code(
    world: World, ask: Asker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(tiny_base(tmp_path / "other", seed=1))
    url = f"http://{ask.host}:{ask.port}"
    asked = ["doctor", "--store", str(world.store.path), "--base", other, "--url", url, "--format", "json"]
    assert main(asked) == 1
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert {name for name, check in found.items() if check["ok"] is False} == {"tasks", "server's base"}
    assert found["tasks"]["what"].startswith("0 of ")
    assert "--base" in found["server's base"]["hint"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "127.0.0.1:8080", "http://127.0.0.1:9/x y"])
def test_a_wrong_address_is_said_in_one_line(world: World, base: str, url: str) -> None:
    found = checks(world.store, base=base, url=url)["server health"]
    assert found.ok is False
    assert "correct --url" in found.line
    assert "\n" not in found.line


def test_a_base_that_is_not_there(tmp_path: Path) -> None:
    found = checks(Store(tmp_path / "store"), base=str(tmp_path / "nothing"))
    assert found["base"].ok is False
    assert found["tasks"].ok is None


def test_a_folder_that_cannot_be_written(tmp_path: Path, base: str) -> None:
    folder = tmp_path / "store"
    folder.write_text("a file is where the store should be")
    found = checks(Store(folder), base=base)["store"]
    assert found.ok is False
    assert "--store FOLDER" in found.hint
    if os.geteuid():  # root may write everywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        assert checks(Store(tmp_path / "closed"), base=base)["store"].ok is False


def test_a_folder_that_everybody_may_write(tmp_path: Path, base: str) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "chmod o-w" in checks(Store(tmp_path / "open"), base=base)["permissions"].hint


def test_the_schema_of_jobs_is_compared_and_nothing_is_made(tmp_path: Path, base: str) -> None:
    store = Store(tmp_path)
    assert checks(store, base=base)["jobs"].ok is None
    jobs = Database(store)
    assert not jobs.file or not jobs.file.exists()
    jobs.now()
    assert checks(store, base=base)["jobs"].ok is True
    table = jobs.tables["schema"]
    for other, hint in ((SCHEMA - 1, "is upgraded"), (SCHEMA + 1, "newer")):
        jobs.write(lambda db, now, other=other: db.execute(table.update().values(schema=other)))  # type: ignore[misc]
        found = checks(store, base=base)["jobs"]
        assert found.ok is False
        assert hint in found.hint
    jobs.dispose()


def test_postgresql_is_asked_for_its_time_and_its_schema(
    tmp_path: Path, base: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, index=database)
    found = checks(store, base=base)
    assert found["index"].ok
    assert found["database's clock"].ok
    assert found["jobs"].ok is None
    monkeypatch.setattr(examined, "MOST_APART", -1.0)
    assert "NTP" in checks(store, base=base)["database's clock"].hint
    gone = checks(Store(tmp_path, index="postgresql://me:secret@127.0.0.1:9/db"), base=base)
    assert gone["index"].ok is gone["jobs"].ok is False
    assert "secret" not in gone["jobs"].line + gone["index"].line


def test_an_object_store_is_written_and_its_clock_read(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    with s3.running() as endpoint:
        s3.use(endpoint, monkeypatch)
        found = checks(Store("s3://bucket/tasks"), base=base)
        assert found["store"].ok
        assert found["store's clock"].ok
        assert found["jobs"].ok is None
        assert checks(Store("s3://nowhere/tasks"), base=base)["store"].ok is False


def test_versions_that_do_not_suit_are_found(tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    old = {"torch": "2.5.1", "jinja2": "3.1.5"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: old.get(name) or real(name))
    found = checks(Store(tmp_path), base=base)
    assert "torch>=2.6" in found["packages"].what
    assert found["packages"].ok is found["known holes"].ok is False
    assert "CVE-2025-32434" in found["known holes"].what
    assert found["known holes"].hint == "pip install --upgrade torch jinja2"

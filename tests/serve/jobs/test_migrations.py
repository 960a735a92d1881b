"""A database of the first schema, with rows in it, is upgraded once, whoever comes first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect, text

from adaptree.errors import StoreError
from adaptree.serve.jobs.database import SCHEMA, Database
from adaptree.serve.migrations import VERSION_TABLE
from adaptree.tasks.index import server_url
from adaptree.tasks.store import Store
from tests import postgres

FIRST = {
    "sqlite": Path(__file__).with_name("schema_2.sqlite.sql"),
    "postgresql": Path(__file__).with_name("schema_2.postgresql.sql"),
}
"""What adaptree made before it had migrations, with two jobs, an event and a file."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    if reason := postgres.why_not():
        pytest.skip(reason)
    with postgres.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Database]]:
    """A function that opens the jobs of an empty database, as a process that starts does."""
    url = None
    if request.param == "postgresql":
        url = request.getfixturevalue("server")
        engine = create_engine(server_url(url))
        with engine.begin() as db:
            db.execute(text("DROP SCHEMA public CASCADE"))
            db.execute(text("CREATE SCHEMA public"))
        engine.dispose()
    made: list[Database] = []

    def open_() -> Database:
        made.append(Database(Store(tmp_path, index=url)))
        return made[-1]

    yield open_
    for database in made:
        database.dispose()


def fill(database: Database) -> None:
    """Make the first schema, with its rows."""
    if database.file is not None:
        database.file.parent.mkdir(parents=True)
    script = FIRST["sqlite" if database.file else "postgresql"].read_text()
    with database._engine.begin() as db:
        for statement in filter(str.strip, script.split(";\n")):
            db.exec_driver_sql(statement)


def test_the_first_schema_is_upgraded_and_keeps_its_rows(opened: Callable[[], Database]) -> None:
    old = opened()
    fill(old)
    assert old.schema() == 2
    new = opened()
    jobs = new.tables["jobs"]
    found = new.rows(jobs.select().order_by(jobs.c.number))
    assert [(row.id, row.name, row.state, row.seconds) for row in found] == [
        ("job-1", "reviews", "done", 12.5),
        ("job-2", "tickets", "queued", 0.0),
    ]
    assert [row.data for row in new.rows(new.tables["events"].select())] == ['{"epoch": 1}']
    assert new.schema() == SCHEMA
    new.write(lambda db, now: db.execute(jobs.insert().values(id="job-3")))
    assert new.rows(jobs.select().where(jobs.c.id == "job-3"))[0].number == 3


def test_upgraded_and_new_databases_have_the_tables_of_the_code(opened: Callable[[], Database]) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    first = opened()
    if first.file is None:  # in SQLite the next test begins with a new file
        fill(first)
    database = opened()
    database.now()
    with database._engine.connect() as db:
        options = {"compare_type": True, "version_table": VERSION_TABLE}
        found = compare_metadata(MigrationContext.configure(db, opts=options), database.tables["jobs"].metadata)
    assert found == []


def test_schemas_that_are_not_known_are_refused_and_left_as_they_are(opened: Callable[[], Database]) -> None:
    fill(old := opened())
    for number, hint in ((SCHEMA + 1, "newer adaptree"), (1, "that wrote them")):
        with old._engine.begin() as db:
            db.execute(old.tables["schema"].update().values(schema=number))
        with pytest.raises(StoreError, match=f"schema {number}.*{hint}"):
            opened().now()
        assert old.schema() == number
        with old._engine.connect() as db:
            assert not inspect(db).has_table("adaptree_keys")


def test_servers_that_start_at_once_upgrade_once(opened: Callable[[], Database]) -> None:
    fill(old := opened())
    script = """
import sys
from adaptree.serve.jobs.database import Database
from adaptree.tasks.store import Store
database = Database(Store(sys.argv[1], index=sys.argv[2] or None))
sys.stdin.readline()
print(len(database.rows(database.tables["jobs"].select())), database.schema())
"""
    arguments = [str(old.folder.parent), old._asked]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [subprocess.Popen([sys.executable, "-c", script, *arguments], text=True, **pipes) for _ in range(2)]
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=60) for process in both]
    assert [out for out, _ in ended] == [f"2 {SCHEMA}\n"] * 2, ended
    with old._engine.connect() as db:
        assert list(db.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars()) == [str(SCHEMA)]


def test_an_upgrade_that_fails_changes_nothing(opened: Callable[[], Database]) -> None:
    fill(old := opened())
    with old._engine.begin() as db:
        db.execute(text("CREATE TABLE adaptree_keys (id INTEGER)"))  # somebody else's, in the way
    with pytest.raises(StoreError, match="adaptree_keys"):
        opened().now()
    assert old.schema() == 2
    with old._engine.connect() as db:
        assert not inspect(db).has_table(VERSION_TABLE)

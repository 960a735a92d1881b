"""API keys in PostgreSQL: several machines use the same ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from adaptree.cli import main
from adaptree.errors import StoreError, UsageError
from adaptree.serve.keys import Keys, new_key, place, read_keys, remove_key, shown
from adaptree.serve.problems import Problem
from tests import postgres
from tests.serve.serving import World, served


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    if reason := postgres.why_not():
        pytest.skip(reason)
    with postgres.server() as url:
        yield url


def soon(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until a function returns something true."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_key_is_what_it_is_in_a_file(database: str) -> None:
    key, text = new_key(database, tenant="acme", scopes=["train", "predict"], rate=5, quota=10, note="Ann")
    assert read_keys(database) == [key]
    assert text.split("_", 2)[2] not in str(read_keys(database))
    other, _ = new_key(database)
    assert read_keys(database) == [key, other] or read_keys(database) == [other, key]
    with pytest.raises(UsageError, match="no key 'ffff'") as caught:
        remove_key(database, "ffff")
    assert "secret" not in str(caught.value)
    for each in (key, other):
        remove_key(database, each.id)
    assert read_keys(database) == []


def test_two_servers_know_a_new_key_and_forget_a_removed_one(world: World, database: str) -> None:
    first, text = new_key(database, scopes=("predict",))
    with served(world, keys=Keys(database)) as (one, _), served(world, keys=Keys(database)) as (two, _):
        one.key = two.key = text
        assert one.get("/v1/tasks").status == two.get("/v1/tasks").status == 200
        _, one.key = new_key(database)
        soon(lambda: one.get("/v1/tasks").status == 200)
        remove_key(database, first.id)
        soon(lambda: two.get("/v1/tasks").status == 401)


def test_a_database_that_is_away_leaves_the_keys_that_were_read() -> None:
    if reason := postgres.why_not():
        pytest.skip(reason)
    with postgres.server() as url:
        _, text = new_key(url)
        keys = Keys(url)
    began = time.monotonic()
    assert keys.caller(f"Bearer {text}").key is not None
    with pytest.raises(Problem):
        keys.caller(f"Bearer {text[:-2]}xx")
    assert time.monotonic() - began < 5, "no request waits for the database"


def test_an_address_that_nobody_answers_is_an_error_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptree.serve.jobs.database.PATIENCE", 0.1)
    url = "postgresql://me:secret@127.0.0.1:9/db"
    assert place(url) == url
    assert shown(url) == "postgresql://me:***@127.0.0.1:9/db"
    with pytest.raises(StoreError, match=r"postgresql://me:\*\*\*@127.0.0.1:9/db cannot be used"):
        Keys(url)


def test_commands_take_the_address(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "api", "new", "--file", database, "--note", "Bob"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("at_")
    assert "secret" not in said.err
    assert main(["keys", "api", "list", "--file", database, "--format", "json"]) == 0
    assert '"Bob"' in capsys.readouterr().out
    (bob,) = (key.id for key in read_keys(database) if key.note == "Bob")
    assert main(["keys", "api", "remove", bob, "--file", database]) == 0
    assert bob not in {key.id for key in read_keys(database)}

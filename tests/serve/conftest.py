from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.serving import Asker, World, make_world, served
from tests.serve.writing import make_writing_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def ask(world: World) -> Iterator[Asker]:
    """A server without keys that tests share: they do not change its tasks."""
    with served(world) as (found, _):
        yield found


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Tasks that write texts, on a tiny language model."""
    return make_writing_world(tmp_path_factory.mktemp("writer"))

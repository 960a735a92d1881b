from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.serving import Asker, World, make_world, served


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def ask(world: World) -> Iterator[Asker]:
    """A server without keys that tests share: they do not change its tasks."""
    with served(world) as (found, _):
        yield found

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptree.models.base import Base
from adaptree.models.loading import load_base
from tests import postgres
from tests.bases import tiny_base
from tests.serve.jobs.site import Site


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("bases") / "tiny"))


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    if reason := postgres.why_not():
        pytest.skip(reason)
    with postgres.server() as url:
        yield url


@pytest.fixture
def site(tiny: Base, tmp_path: Path) -> Iterator[Site]:
    """An empty store with jobs in SQLite, over a tiny base."""
    found = Site(tmp_path, tiny)
    yield found
    found.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request: pytest.FixtureRequest, tiny: Base, tmp_path: Path) -> Iterator[Site]:
    """The same, in SQLite and in PostgreSQL."""
    url = request.getfixturevalue("server_url") if request.param == "postgresql" else None
    found = Site(tmp_path, tiny, url)
    yield found
    found.close()

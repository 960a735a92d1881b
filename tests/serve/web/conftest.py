"""A real browser at a real server over a tiny base.

    def test_something(open_page, site):
        page = open_page(site, "/")

Whatever a page logs, refuses by its policy, or asks of another host fails the test at its end.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adaptree.models.loading import load_base
from adaptree.serve.engine import Engine
from adaptree.serve.keys import COOKIE, Keys, new_key
from adaptree.serve.server import BackgroundServer
from adaptree.tasks.store import Store
from tests import browser
from tests.serve.serving import World

OLD_STORE = Path(__file__).parents[2] / "compat" / "store-0.1"


@dataclass
class Site:
    """A running server with pages."""

    url: str
    world: World
    engine: Engine
    server: BackgroundServer
    keys: dict[str, str]
    """API keys by name; none where the server has none."""


@contextmanager
def serving(
    world: World, keys: Path | None = None, texts: dict[str, str] | None = None, **options: Any
) -> Iterator[Site]:
    with world.engine() as engine, BackgroundServer(engine, keys=Keys(keys) if keys else None, **options) as server:
        yield Site(server.url, world, engine, server, texts or {})


@pytest.fixture(scope="session")
def site(world: World) -> Iterator[Site]:
    """A server without keys that tests share: they do not change its tasks."""
    with serving(world) as found:
        yield found


@pytest.fixture(scope="session")
def every(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A store with tasks of every kind and method, compositions, and two versions of one."""
    folder = tmp_path_factory.mktemp("every")
    shutil.copytree(OLD_STORE / "store", folder / "store")
    return World(folder, load_base(OLD_STORE / "base"), Store(folder / "store"))


@pytest.fixture(scope="session")
def every_site(every: World) -> Iterator[Site]:
    """A server over every kind of task that tests share."""
    with serving(every) as found:
        yield found


@pytest.fixture
def own_site(world: World, tmp_path: Path) -> Iterator[Site]:
    """A server with a store of its own, which a test may change."""
    shutil.copytree(world.store.path, tmp_path / "store")
    with serving(World(tmp_path, world.base, Store(tmp_path / "store"))) as found:
        yield found


@contextmanager
def with_keys(world: World, folder: Path) -> Iterator[Site]:
    """A server with keys: admin of all, two tenants' own, and an admin of one tenant."""
    file = folder / "keys.json"
    made = {
        name: new_key(file, tenant=tenant, scopes=scopes)[1]
        for name, tenant, scopes in (
            ("admin", "", ("admin",)),
            ("acme", "acme", ("predict",)),
            ("trainer", "acme", ("predict", "train")),
            ("acme-admin", "acme", ("admin",)),
            ("other", "other", ("predict",)),
        )
    }
    shutil.copytree(world.store.path, folder / "store")
    own = World(folder, world.base, Store(folder / "store"))
    with serving(own, file, made) as found:
        yield found


@pytest.fixture(scope="session")
def keyed_site(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with keys that tests share: they change neither its tasks nor its keys."""
    with with_keys(world, tmp_path_factory.mktemp("keyed")) as found:
        yield found


@pytest.fixture
def own_keyed_site(world: World, tmp_path: Path) -> Iterator[Site]:
    """A server with keys that a test may change."""
    with with_keys(world, tmp_path) as found:
        yield found


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """A browser, which ends with these tests: while it runs, others in this process have no event loop of their own."""
    if browser.CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'adaptree[dev]'")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=browser.CHROMIUM, args=browser.FLAGS)
        yield opened
        opened.close()


Open = Callable[..., Any]


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Open]:
    """Opens an address of a site; `key` signs in by the cookie, other options are the browser context's.

    `expected` are words of console messages that the test provokes, such as a refused request.
    """
    problems: list[str] = []
    contexts = []

    def open_address(
        site: Site, address: str = "/", *, key: str = "", expected: tuple[str, ...] = (), **options: Any
    ) -> Any:
        context = chromium.new_context(reduced_motion="reduce", **options)  # colours change at once
        contexts.append(context)
        if key:
            context.add_cookies([{"name": COOKIE, "value": site.keys[key], "url": site.url, "httpOnly": True}])
        context.set_default_timeout(15_000)
        page = context.new_page()

        def note(text: str) -> None:
            if not any(word in text for word in expected):
                problems.append(text)

        page.on("console", lambda message: note(message.text))
        page.on("pageerror", lambda error: note(str(error)))
        page.on("dialog", lambda dialog: dialog.accept())
        page.on("request", lambda r: None if r.url.startswith((site.url, "data:", "blob:")) else note(r.url))
        page.goto(site.url + address)
        return page

    yield open_address
    for context in contexts:
        context.close()
    assert problems == []


def expect(target: Any) -> Any:
    """Playwright's assertions, which wait for what a page shows a moment later."""
    from playwright.sync_api import expect as waiting

    return waiting(target)


def faults(page: Any) -> list[str]:
    """What axe finds on a page that is serious or critical."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'adaptree[dev]'")
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def photograph(page: Any) -> None:
    """Keep a picture of a page as it is now, if ADAPTREE_PICTURES names a folder: for people to look at."""
    if folder := os.environ.get("ADAPTREE_PICTURES"):
        width = page.viewport_size["width"]
        scheme = "dark" if page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") else "light"
        where = re.sub(r"[^a-z0-9]+", "-", page.url.split("/", 3)[3].lower()).strip("-") or "tasks"
        page.screenshot(path=Path(folder) / f"{where[:60]}-{width}-{scheme}.png", full_page=True)


def sideways(page: Any) -> int:
    """How many pixels a page is wider than its window."""
    found: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return found

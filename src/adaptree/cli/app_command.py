"""adaptree app"""

from __future__ import annotations

import sys
import threading
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.error import URLError
from urllib.request import urlopen

import typer

from adaptree.cli import app as shared
from adaptree.cli.app import app
from adaptree.cli.serve import needs_serve
from adaptree.cli.show import say
from adaptree.errors import AdaptreeError, StoreError

if TYPE_CHECKING:
    import socket

PORT = 8080
PATIENCE = 120
"""Seconds after which the browser is not opened any more."""


@app.command("app")
def app_(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help=f"The port. Default: {PORT}, else any that is free.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The base, a name or a folder. Default: that of most of the store's tasks.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="A folder of comparisons, for the page that compares methods.")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the browser.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that compute. Default: the cores.")] = None,
    store: shared.StoreOption = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Open all of it on pages in the browser, on this machine alone: try tasks, compare them, combine them."""
    with needs_serve():
        from adaptree.serve import server
        from adaptree.tasks.store import Store

    if results is not None and not results.is_dir():
        raise StoreError(f"there is no folder '{results}'.", hint="adaptree compare DATA --out results")
    opened = Store(store)
    if "://" not in opened.location:
        _make(opened.path)
    settings = server.ServeSettings(
        store=store, base=base, threads=threads, port=port or PORT, log="",
        results=None if results is None else str(results),
    )  # fmt: skip
    with _listening(settings.host, port) as listening:
        url = server.url_of(settings.host, listening)

        def announce() -> None:
            say(f"adaptree is at {url}   Ctrl-C ends it", quiet)
            sys.stderr.flush()
            if not no_browser:
                threading.Thread(target=_open, args=(url,), daemon=True).start()

        checked = settings.check()
        say("Loading the base, which takes some seconds …", quiet)
        server.run(settings, checked, listening, announce)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or error
        raise StoreError(f"cannot make a store at {folder}: {why}.", hint="Choose another folder: --store") from error


def _listening(host: str, port: int | None) -> socket.socket:
    """Return a socket on the port that was asked for; without one, on the usual port or any that is free."""
    from adaptree.serve.server import bind

    if port is not None:
        return bind(host, port)
    try:
        return bind(host, PORT)
    except AdaptreeError:
        return bind(host, 0)


def _open(url: str) -> None:
    """Open the browser once the server answers."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            with urlopen(f"{url}/health", timeout=5):
                webbrowser.open(url)
                return
        except (URLError, OSError):
            time.sleep(0.1)

"""A store's folder that other machines must see: they know it by a file that is put there for them."""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from adaptree.errors import StoreError
from adaptree.tasks.files import cannot_write
from adaptree.tasks.runs import STREAMS
from adaptree.training.work.executor import Executor

if TYPE_CHECKING:
    from adaptree.tasks.store import Store


def streams_folder(store: Store) -> Path:
    """Return the folder, in a store's, of what streams keep there: locks, and which files were set aside."""
    return store.path / STREAMS


def place_of(store: Store) -> str:
    """Return where other machines find a store: its URL, or the whole path of its folder."""
    return str(store.path.resolve()) if store.location == str(store.path) else store.location


@contextlib.contextmanager
def known(store: Store, executor: Executor) -> Iterator[str]:
    """Yield the name of a file in a store's folder by which other machines know it; '' if they need not know it."""
    if not executor.sends_files or store.location != str(store.path):
        yield ""
        return
    mark = streams_folder(store) / f"known-{uuid.uuid4().hex}"
    is_new = not mark.parent.is_dir()
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise cannot_write(store.path, error) from error
    try:
        yield mark.name
    finally:
        mark.unlink(missing_ok=True)
        if is_new:
            with contextlib.suppress(OSError):  # others have put something there
                mark.parent.rmdir()


def check_known(store: Store, mark: str) -> None:
    """Raise StoreError if this machine sees another folder than the one in which `known` has put its file."""
    if mark and not (streams_folder(store) / mark).is_file():
        raise StoreError(
            f"the machine {socket.gethostname()} does not see the folder of the store, {store.path}.",
            hint="Use a folder that all machines share, or a store behind a URL: --store s3://…",
        )

"""Calls as bytes: a `Path` in a call's arguments becomes the digest of its content, and a copy of it on the other side.

<cache>/sent/DIGEST/NAME      a file, or a folder of files, that came with a call
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shutil
import tarfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adaptree.tasks.cache_folder import folder
from adaptree.training.work.executor import Call

SENT = "sent"
Sent = tuple[str, str]
"""The digest of a file's or a folder's packed content, and its name."""


class _Packer(pickle.Pickler):
    """A pickler that takes note of the paths of files and folders, and writes their digests in their place."""

    def __init__(self, into: io.BytesIO) -> None:
        super().__init__(into, protocol=pickle.HIGHEST_PROTOCOL)
        self.found: dict[Sent, bytes] = {}

    def persistent_id(self, value: Any) -> Sent | None:
        if not isinstance(value, Path) or not value.exists():
            return None
        content = _packed(value)
        sent = hashlib.sha256(content).hexdigest(), value.name
        self.found[sent] = content
        return sent


class _Opener(pickle.Unpickler):
    def __init__(self, data: bytes, fetch: Callable[[Sent], bytes]) -> None:
        super().__init__(io.BytesIO(data))
        self.fetch = fetch

    def persistent_load(self, sent: Sent) -> Path:
        return _copy(sent, self.fetch)


def pack(call: Call) -> tuple[bytes, dict[Sent, bytes]]:
    """Return a call as bytes, and the packed content of the files and folders that it reads."""
    into = io.BytesIO()
    packer = _Packer(into)
    packer.dump(call)
    return into.getvalue(), packer.found


def unpack(data: bytes, fetch: Callable[[Sent], bytes]) -> Call:
    """Return the call; its paths lead to copies. `fetch` returns the content of one that this machine does not have."""
    call: Call = _Opener(data, fetch).load()
    return call


def _packed(path: Path) -> bytes:
    """Return the content of a file or folder as a tar archive, in which nothing but names and contents counts."""
    into = io.BytesIO()
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    with tarfile.open(fileobj=into, mode="w") as archive:
        for file in files:
            info = tarfile.TarInfo(path.name if file == path else f"{path.name}/{file.relative_to(path).as_posix()}")
            info.size = file.stat().st_size
            with file.open("rb") as content:
                archive.addfile(info, content)
    return into.getvalue()


def _copy(sent: Sent, fetch: Callable[[Sent], bytes]) -> Path:
    """Return the copy of a file or folder on this machine; it is fetched once, and there whole or not at all."""
    digest, name = sent
    place = folder() / SENT / digest
    if not place.is_dir():
        partial = place.with_name(f"{digest}.{uuid.uuid4().hex}")
        partial.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(fetch(sent))) as archive:
            archive.extractall(partial, filter="data")
        try:
            os.rename(partial, place)
        except OSError:  # another process of this machine was quicker
            shutil.rmtree(partial)
    return place / name

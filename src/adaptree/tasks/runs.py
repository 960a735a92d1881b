"""What a store's folder holds besides its tasks: checkpoints of runs, files that a stream set aside, places of bases.

Each of these files has a digest of itself in it, so that a flipped bit is found (`problem`): bases.json under the key
`checksum`, the trials of a search in the first line, a checkpoint in the metadata of its safetensors, the list of files
that were set aside on every line. Files of an earlier adaptree have none.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from adaptree.data.foreign_json import has_type, loads
from adaptree.errors import StoreError
from adaptree.tasks import beside
from adaptree.tasks.files import cannot_write, replace_file
from adaptree.tasks.record import checksum

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.tasks.store import Store

BASES, CHECKPOINT, SEARCH = "bases.json", "checkpoint.safetensors", "search.jsonl"
STREAMS, SET_ASIDE, LOCK = "streams", "set-aside.jsonl", ".lock"
"""The folder of what streams keep in a store: which files were set aside, and an empty lock for each task."""
CHECKSUM = "checksum"
SHA256, UNSEALED = "sha256", "0" * 64
"""The key of a checkpoint's digest in its metadata, and what stands there while it is computed."""
NOT_COVERED = "it was written without a digest"
_SEAL = re.compile(rf'"{SHA256}":"([0-9a-f]{{64}})"'.encode())
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def run_folder(store: Store, name: str) -> Path:
    """Return where the run that trains a task keeps its checkpoint; the slash of a namespace becomes a dot."""
    return store.path / "runs" / name.replace("/", ".")


def bases_of(store: Store) -> dict[str, str]:
    """Return {fingerprint: folder or name} of the bases that this machine has trained a store's tasks on."""
    try:
        found = dict(json.loads((store.path / BASES).read_text()))
    except (OSError, ValueError, TypeError):
        return {}
    return {key: place for key, place in found.items() if key != CHECKSUM and isinstance(place, str)}


def remember(store: Store, base: Base) -> None:
    """Note where this machine has a base, unless the store knows a folder that still exists."""
    known = bases_of(store)
    kept = known.get(base.fingerprint)
    if kept is None or (Path(kept).is_absolute() and not Path(kept).is_dir()):
        try:
            replace_file(store.path / BASES, _bases_text(known | {base.fingerprint: base.location}).encode())
        except OSError as error:
            raise cannot_write(store.path, error) from error


def search_header(key: str, trials: str) -> str:
    """Return the first line of a search's file: which search it is, and the digest of that and of its `trials`."""
    return json.dumps({"key": key, SHA256: hashlib.sha256(f"{key}\n{trials}".encode()).hexdigest()}) + "\n"


def seal(path: Path) -> None:
    """Put the digest of a checkpoint into it, in the place of UNSEALED."""
    with path.open("r+b") as file:
        found = _SEAL.search(_header(file))
        if found is None or found[1].decode() != UNSEALED:
            raise StoreError(f"{path.name} has no room for its digest.")
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(8 + found.start(1))
        file.write(digest.encode())


def is_known(file: str) -> bool:
    """Return whether a file that belongs to no task, by its path in the store, is one of ours."""
    folder, _, name = file.rpartition("/")
    if folder == STREAMS:
        return name == SET_ASIDE or name.endswith(LOCK)
    return file == BASES or (file.startswith("runs/") and name in (CHECKPOINT, SEARCH))


def problem(path: Path) -> str:
    """Return what is wrong with one of these files; '' if nothing is.

    Raise StoreError if it has no digest, so that nobody can say.
    """
    if path.name.endswith(LOCK):
        return "it should be empty" if path.stat().st_size else ""
    check = {
        BASES: _bases_problem, SEARCH: _search_problem, CHECKPOINT: _checkpoint_problem, SET_ASIDE: _lines_problem,
    }[path.name]  # fmt: skip
    try:
        return check(path)
    except (ValueError, KeyError, TypeError, AttributeError):  # whatever a flipped bit makes of it
        return "it cannot be read"


def _bases_text(places: Mapping[str, str]) -> str:
    known = {key: place for key, place in places.items() if key != CHECKSUM}
    return json.dumps({**known, CHECKSUM: checksum(known)}, indent=1)


def _bases_problem(path: Path) -> str:
    text = path.read_bytes().decode()
    places = loads(text)
    if not has_type(places, dict[str, str]):
        return "it is no list of places"
    if CHECKSUM not in places:
        if not all(map(_FINGERPRINT.fullmatch, places)):
            return "it has a key that is no base's"
        raise StoreError(f"{BASES}: {NOT_COVERED}.")
    return "" if text == _bases_text(places) else "its checksum does not match"


def _lines_problem(path: Path) -> str:
    text = path.read_bytes().decode()
    return "a line does not match its checksum" if beside.damaged(text) or not text.endswith("\n") else ""


def _search_problem(path: Path) -> str:
    first, _, trials = path.read_bytes().decode().partition("\n")
    header = loads(first)
    if header.keys() == {"key"}:
        raise StoreError(f"{SEARCH}: {NOT_COVERED}.")
    return "" if f"{first}\n" == search_header(header["key"], trials) else "wrong digest"


def _checkpoint_problem(path: Path) -> str:
    with path.open("rb") as file:
        header = _header(file)
        metadata: dict[str, Any] = loads(header)["__metadata__"]
        if metadata.keys() == {"state"}:
            raise StoreError(f"{CHECKPOINT}: {NOT_COVERED}.")
        found = _SEAL.search(header)
        if found is None:
            return "it has lost its digest"
        whole = hashlib.sha256(len(header).to_bytes(8, "little"))
        whole.update(header[: found.start(1)] + UNSEALED.encode() + header[found.end(1) :])
        while piece := file.read(1 << 20):
            whole.update(piece)
    return "" if whole.hexdigest() == found[1].decode() else "wrong digest"


def _header(file: BinaryIO) -> bytes:
    """Return the header of a safetensors file, which says after 8 bytes with its length what tensors there are."""
    length = int.from_bytes(file.read(8), "little")
    if length > 100_000_000:
        raise ValueError("the header is too long")
    return file.read(length)

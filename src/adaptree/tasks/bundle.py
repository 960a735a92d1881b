"""Versions of tasks as one file: a zip that holds their files as they are, and says the digest of each.

    adaptree.json                       the manifest: which tasks, and the sha256 of every file
    tasks/NAME/VERSION/<file>           the files of a version, as in a store
    tasks/NAME/{VERSION.notes, …}       what a whole store has beside its versions

The same content gives the same bytes (`adaptree.tasks.archive`). There is never a pickle in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from adaptree.data.foreign_json import has_type, loads
from adaptree.errors import BundleError
from adaptree.reports.json_text import json_text
from adaptree.tasks import archive
from adaptree.tasks.archive import Entry, Placed
from adaptree.tasks.beside import MARKS, NOTES, TAG, damaged, lines
from adaptree.tasks.digests import SUMS
from adaptree.tasks.files import cannot_write, sync
from adaptree.tasks.names import NAME, VERSION, parse_reference
from adaptree.tasks.record import RECORD, TENSORS, corrupt, read_record, read_values
from adaptree.tasks.signing import SIGNATURES, read_signatures
from adaptree.tasks.task import CARD
from adaptree.tasks.tensor_header import check_header, most_json

FORMAT = 1
MANIFEST = "adaptree.json"
SUFFIX = ".adaptree"
MOST_BESIDE = 1_000_000
"""Bytes of a small file beside a version, of a card or of a figure."""
LONGEST_REASON = 300
"""Characters."""
FILE = re.compile(rf"{RECORD}|{TENSORS}|{SIGNATURES}|{CARD}|{SUMS}|[a-z0-9][a-z0-9_-]{{0,63}}\.svg")
"""The files of a version that travel; others, such as what a file browser leaves, stay behind."""
BESIDE = re.compile(rf"(?P<version>{VERSION.pattern})({NOTES}|{MARKS})|[a-z][a-z0-9_-]{{0,31}}{TAG}")
_IN_VERSION = re.compile(rf"tasks/(?P<name>{NAME.pattern})/(?P<version>{VERSION.pattern})/(?P<file>{FILE.pattern})")
_IN_TASK = re.compile(rf"tasks/(?P<name>{NAME.pattern})/(?P<file>{BESIDE.pattern})")
_ACTIVE = re.compile(
    rb"<\s*(script|foreignobject|iframe|!entity)|\son\w+\s*=|@import|url\(\s*(?![\"']?#)"
    rb"|href\s*=\s*[\"']?\s*(?!#|data:image/png;base64,)[^\s\"']",
    re.IGNORECASE,
)
"""What a figure must not have: script, or links to elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a bundle holds."""

    tasks: list[str]
    """references of the versions that were asked for"""
    versions: list[str]
    """references of all versions, the parts that those need included"""
    beside: dict[str, list[str]]
    """by task: the names of the small files beside its versions"""


def pack(
    folders: Mapping[str, Path],
    file: Path,
    *,
    tasks: Iterable[str] | None = None,
    beside: Mapping[str, str] | None = None,
    signatures: Mapping[str, str] | None = None,
    force: bool = False,
) -> None:
    """Write the versions in some folders, by their references ('reviews@3'), as one file, whole or not at all.

    `tasks` are those that were asked for (default: all); the others are their parts. `beside` are the texts of small
    files by path ('reviews/3.notes'), `signatures` those that take the place of a version's own. A version whose record
    or tensors are damaged is not packed; a file that is there is replaced only with `force`.
    """
    sources: dict[str, Path | bytes] = {f"tasks/{path}": text.encode() for path, text in (beside or {}).items()}
    promised: dict[str, tuple[str, str]] = {}
    for reference, folder in folders.items():
        name, version = parse_reference(reference)
        inside = f"tasks/{name}/{version}"
        sources |= {f"{inside}/{path.name}": path for path in _files(folder)}
        if text := (signatures or {}).get(reference):
            sources[f"{inside}/{SIGNATURES}"] = text.encode()
        promised[f"{inside}/{TENSORS}"] = reference, read_record(folder, called=reference).digest
    partial = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
    try:
        if file.exists() and not force:
            raise BundleError(f"'{file}' is there already.", hint="Choose another name, or --force to replace it.")
        measured = {path: _measure(source) for path, source in sources.items()}
        for path, (reference, digest) in promised.items():
            if path not in measured or measured[path][1] != digest:
                raise corrupt(reference, TENSORS, "wrong digest" if path in measured else "the file is missing")
        files = {path: digest for path, (_, digest) in measured.items()}
        said = {"format": FORMAT, "tasks": sorted(folders if tasks is None else tasks), "files": files}
        manifest = (json_text(said, indent=1, sort_keys=True) + "\n").encode()
        with partial.open("xb") as out:
            archive.write(out, _entries({**sources, MANIFEST: manifest}, measured))
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, file)
        sync(file.parent)
    except ValueError as error:
        raise BundleError(f"cannot export: {error}.", hint="Try again.") from error
    except OSError as error:
        raise cannot_write(file, error, to_store=False) from error
    finally:
        partial.unlink(missing_ok=True)


def unpack(file: Path, into: Path) -> Manifest:
    """Check a bundle and extract it to an empty folder, `into/NAME/VERSION/<file>`; return what it holds.

    Checked are the zip, the manifest, names, sizes and digests of all files, the records, the headers of the tensors
    and the form of signatures. The numbers are not: `adaptree.tasks.task.read_task` does that. On an error the folder
    may hold some of the files, and the caller removes it. Nothing is synced: `Store.add_folder` does that.
    """
    try:
        with _open(file) as zipped:
            placed = {each.entry.name: each for each in archive.read(zipped)}
            digests, tasks = _read_manifest(zipped, placed)
            manifest = _check_names(digests, tasks)
            _check_sizes(placed, zipped.seek(0, os.SEEK_END))
            for path, digest in digests.items():
                _copy(zipped, placed[path], digest, None)
            for path, digest in digests.items():
                to = into / path.removeprefix("tasks/")
                to.parent.mkdir(parents=True, exist_ok=True)
                with to.open("xb") as out:
                    _copy(zipped, placed[path], digest, out)
        for reference in manifest.versions:
            inside = reference.replace("@", "/")
            _check_version(into / inside, reference, digests[f"tasks/{inside}/{TENSORS}"])
        for name, files in manifest.beside.items():
            for each in files:
                _check_beside(into / name / each)
    except ValueError as error:
        raise refused(file, str(error)) from error
    except OSError as error:
        raise cannot_write(into, error) from error
    return manifest


def refused(file: Path, why: str) -> BundleError:
    """Return the error for a bundle that cannot be read or trusted; the reason may quote what is in it."""
    why = " ".join(why.split())
    if len(why) > LONGEST_REASON:
        why = f"{why[:LONGEST_REASON]}…"
    return BundleError(f"'{file.name}' cannot be imported: {why}.", hint="Nothing was added. Ask for the file again.")


# writing


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a version that travel."""
    for path in folder.iterdir():
        if FILE.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            yield path


def _pieces(source: Path | bytes) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as file:
        while piece := file.read(archive.PIECE):
            yield piece


def _measure(source: Path | bytes) -> tuple[tuple[int, int], str]:
    """Return the size and CRC of some contents, and their sha256."""
    size, crc, whole = 0, 0, hashlib.sha256()
    for piece in _pieces(source):
        size, crc = size + len(piece), zlib.crc32(piece, crc)
        whole.update(piece)
    return (size, crc), whole.hexdigest()


def _entries(
    sources: Mapping[str, Path | bytes], measured: Mapping[str, tuple[tuple[int, int], str]]
) -> Iterator[tuple[Entry, Iterable[bytes]]]:
    for path, source in sorted(sources.items()):
        size, crc = measured[path][0] if path in measured else _measure(source)[0]
        yield Entry(path, size, crc), _pieces(source)


# reading


def _open(file: Path) -> BinaryIO:
    if not file.is_file():
        what = "is not a file" if file.exists() else "is not there"
        raise BundleError(f"'{file}' {what}.", hint="Name a file that adaptree export wrote.")
    try:
        return file.open("rb")
    except OSError as error:
        raise BundleError(f"cannot read '{file}': {error.strerror or error}.", hint="Make it readable.") from error


def _read_manifest(zipped: BinaryIO, placed: Mapping[str, Placed]) -> tuple[dict[str, str], list[str]]:
    """Return the digest of every file, and the tasks that were asked for."""
    if MANIFEST not in placed:
        raise ValueError(f"it has no {MANIFEST}, so it is no bundle of tasks")
    # As large as its files' names and digests take, and with no more values: then it cannot fill the memory.
    most = 2000 + sum(2 * len(path) + 100 for path in placed)
    if placed[MANIFEST].entry.size > most:
        raise ValueError(f"{MANIFEST} is larger than it can be")
    data = b"".join(archive.contents(zipped, placed[MANIFEST]))
    if not data.isascii() or sum(map(data.count, (b",", b"[", b"{"))) > 2 * len(placed) + 16:
        raise ValueError(f"{MANIFEST} is not what adaptree writes")
    try:
        said = loads(data)
    except ValueError as error:
        raise ValueError(f"{MANIFEST} is broken JSON ({error})") from error
    form = said.get("format") if isinstance(said, dict) else None
    if isinstance(form, int) and form > FORMAT:
        raise BundleError(f"the bundle is written in format {form}; this adaptree reads up to {FORMAT}.",
                          hint="pip install --upgrade adaptree")  # fmt: skip
    types: dict[str, Any] = {"format": int, "tasks": list[str], "files": dict[str, str]}
    if form != FORMAT or said.keys() != types.keys() or not all(has_type(said[key], types[key]) for key in types):
        raise ValueError(f"{MANIFEST} has fields that are not known, lacks some, or has values of the wrong type")
    if said["files"].keys() != placed.keys() - {MANIFEST}:
        odd = min(said["files"].keys() ^ (placed.keys() - {MANIFEST}))
        raise ValueError(f"{odd!r:.100} is only in the zip or only in {MANIFEST}")
    return said["files"], said["tasks"]


def _check_names(digests: Mapping[str, str], tasks: list[str]) -> Manifest:
    """Return what a bundle holds; raise ValueError for any path that is not one of a version's or a task's files."""
    versions: dict[str, set[str]] = {}
    small: dict[str, list[str]] = {}
    for path in digests:
        if found := _IN_VERSION.fullmatch(path):
            versions.setdefault(f"{found['name']}@{found['version']}", set()).add(found["file"])
        elif found := _IN_TASK.fullmatch(path):
            small.setdefault(found["name"], []).append(found["file"])
        else:
            raise ValueError(f"a task has no file {path!r:.100}")
    for reference, files in versions.items():
        if missing := {RECORD, TENSORS} - files:
            raise ValueError(f"'{reference}' has no {min(missing)}")
        name, _, version = reference.partition("@")
        if any(other.startswith(f"{name}/{version}@") for other in versions):
            raise ValueError(f"'{name}/{version}' is a task and a version of '{name}' at once")
    names = {reference.partition("@")[0] for reference in versions}
    for name, about in small.items():
        for file in about:
            found = BESIDE.fullmatch(file)
            of = f"{name}@{found['version']}" if found and found["version"] else None
            if name not in names or (of and of not in versions):
                raise ValueError(f"'{name}/{file}' is about a task that is not there")
    if not tasks or len(set(tasks)) < len(tasks) or not versions.keys() >= set(tasks):
        raise ValueError(f"{MANIFEST} names tasks that are not there, or none")
    return Manifest(tasks=tasks, versions=list(versions), beside=small)


def _check_sizes(placed: Mapping[str, Placed], whole: int) -> None:
    """Raise ValueError for a file that is larger than its kind can be; what is read whole has to be small."""
    for path, each in placed.items():
        most = whole if path == MANIFEST or path.endswith(TENSORS) else MOST_BESIDE
        if path.endswith(RECORD):
            most = most_json(whole)
        if each.entry.size > most:
            raise ValueError(f"{path} has {each.entry.size:,} bytes, and {most:,} are the most")


def _copy(zipped: BinaryIO, placed: Placed, digest: str, out: BinaryIO | None) -> None:
    """Read one file, and write it if there is a place for it; raise ValueError if it is not what the manifest says."""
    whole = hashlib.sha256()
    for piece in archive.contents(zipped, placed):
        whole.update(piece)
        if out is not None:
            out.write(piece)
    if whole.hexdigest() != digest:
        raise ValueError(f"{placed.entry.name} is damaged: its digest does not match")


def _check_version(folder: Path, reference: str, digest: str) -> None:
    """Check the record, the header of the tensors, the figures and the form of the signatures of a version."""
    record = read_record(folder, called=reference)
    known = {"checksum", *(item.name for item in dataclasses.fields(record))}
    if unknown := sorted(read_values(folder, called=reference).keys() - known):
        raise ValueError(f"the record of '{reference}' has a field {unknown[0]!r:.60} that this adaptree does not know")
    with (folder / TENSORS).open("rb") as tensors:
        size = os.fstat(tensors.fileno()).st_size
        if (size, digest) != (record.file_bytes, record.digest):
            raise ValueError(f"the tensors of '{reference}' are not those that its record is about")
        try:
            check_header(tensors, size)
        except ValueError as error:
            raise ValueError(f"{TENSORS} of '{reference}': {error}") from error
    for figure in folder.glob("*.svg"):
        if _ACTIVE.search(figure.read_bytes()):
            raise ValueError(f"{figure.name} of '{reference}' has script or links in it")
    read_signatures(folder, called=reference)


def _check_beside(path: Path) -> None:
    """Raise ValueError for a small file that is damaged, or a tag that names no version."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is damaged: it is not text") from None
    if damaged(text):
        raise ValueError(f"{path.name} is damaged: a line does not have its checksum")
    if path.suffix == TAG and not VERSION.fullmatch("".join(lines(text))):
        raise ValueError(f"{path.name} names no version")

"""Restore damaged files of a store: from another store that has the same task, or from what is whole.

A file that is whole is never replaced, but for SHA256SUMS where the card had to be drawn anew. A version is restored
whole or not at all: what is to be written is complete, and hashed, before the first file is replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adaptree.errors import AdaptreeError, StoreError, TaskCorrupt
from adaptree.tasks import beside, digests, parts, runs
from adaptree.tasks.beside import NEEDED, REMOVED, TAG
from adaptree.tasks.digests import SUMS, Files
from adaptree.tasks.files import cannot_write, replace_file
from adaptree.tasks.names import parse_reference
from adaptree.tasks.record import RECORD, TENSORS
from adaptree.tasks.signing import SIGNATURES
from adaptree.tasks.task import shown

if TYPE_CHECKING:
    from adaptree.hub.verify import Checked
    from adaptree.tasks.store import Store

DRAWN = "drawn from the record"


def repair(store: Store, peer: Store, rows: Sequence[Checked]) -> dict[str, str]:
    """Restore what can be of the damaged files in `rows`; return how, by file."""
    done: dict[str, str] = {}
    for row in rows:
        if row.damaged and "@" in row.task:
            done |= _repair_version(store, peer, row.task)
        elif row.damaged and row.task:
            for file in row.damaged:
                if how := _repair_beside(store, peer, row.task, Path(file).name):
                    done[file] = how
    return done


def existing(peer: str | Path) -> Store:
    """Return the store to restore files from; raise StoreError if its folder is not there."""
    from adaptree.tasks.store import Store

    store = Store(peer)
    if store.location == str(store.path) and not store.path.is_dir():
        raise StoreError(
            f"there is no store to repair from at '{peer}'.",
            hint="--repair DIR|URL   (an empty folder, if only cards are to be drawn again)",
        )
    return store


def what_to_do(row: Checked) -> str:
    """Return what the user can do about a damaged row, as typed."""
    if row.damaged and not row.files and "@" in row.task:
        return f"adaptree remove {row.task}, and push it again from a store that has it"
    if any(file.endswith(SIGNATURES) for file in row.damaged):
        return f"adaptree remove {row.task}, and ask the signer for it"
    if "@" in row.task:
        file = next(iter(row.damaged), "")
        only_card = row.damaged and not any(each.endswith((RECORD, TENSORS)) for each in row.damaged)
        if not file:  # only its probe
            return "its files are whole: look whether the base, torch or the machine has changed"
        rest = "" if only_card else f", or adaptree remove {row.task} and train it again"
        return f"adaptree verify {row.task} --repair PEER{rest}"
    if row.task:
        tags = [Path(file).name.removesuffix(TAG) for file in row.damaged if file.endswith(TAG)]
        return f"adaptree tag {row.task}@N {tags[0]}" if tags else f"adaptree verify {row.task} --repair PEER"
    if runs.BASES in row.damaged:
        return f"delete {runs.BASES}: it is written anew by the next training, or name the base with --base"
    return "train without --resume"


def _repair_version(store: Store, peer: Store, reference: str) -> dict[str, str]:
    """Restore the damaged files of a version; return how, by file; nothing if one of them cannot be."""
    name, version = parse_reference(reference)
    try:
        folder = store.path_of(reference)
    except TaskCorrupt:  # of a store behind a URL: it cannot be changed in its place
        return {}
    if copies := store.wrong_copies(reference):
        store.renew_copies(reference)
        return {f"tasks/{name}/{file}": "from the version itself" for file in copies}
    mine = digests.check_files(folder, called=reference)
    written, how = _from_peer(mine, peer, reference)
    missing = [file for file in (RECORD, TENSORS) if file in mine.damaged and file not in written]
    if missing:
        return {}
    if any(file not in written for file in mine.damaged):
        drawn = _drawn(mine, written, reference)
        how |= dict.fromkeys(drawn, DRAWN)
        written |= drawn
    try:
        for file, data in written.items():
            replace_file(folder / file, data)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return {f"tasks/{name}/{version}/{file}": way for file, way in how.items()}


def _from_peer(mine: Files, peer: Store, reference: str) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the damaged files that the same version of another store has whole, and where they are from."""
    if (found := _same_version(mine, peer, reference)) is None:
        return {}, {}
    folder, theirs = found
    lost = list(mine.damaged)
    if SUMS in mine.damaged:  # then nobody knows whether the card is whole
        lost += [
            file for file, digest in theirs.expected.items() if file not in lost and mine.digests.get(file) != digest
        ]
    written: dict[str, bytes] = {}
    for file in lost:
        if file in theirs.digests and file not in theirs.damaged:
            data = (folder / file).read_bytes()
            if hashlib.sha256(data).hexdigest() == mine.expected.get(file, theirs.digests[file]):
                written[file] = data
    return written, dict.fromkeys(written, f"from {peer.location}")


def _same_version(mine: Files, peer: Store, reference: str) -> tuple[Path, Files] | None:
    """Return the folder and files of the same version in another store, where it may have another number."""
    name, version = parse_reference(reference)
    for number in sorted(peer.versions(name), key=lambda number: number != version):
        try:
            folder = peer.path_of(f"{name}@{number}")
        except AdaptreeError:
            continue
        theirs = digests.check_files(folder, called=f"{name}@{number}")
        if _is_same(mine, theirs):
            return folder, theirs
    return None


def _is_same(mine: Files, theirs: Files) -> bool:
    """Return whether another store's version is whole, and the same task by whatever is whole of this one."""
    if not theirs.has_task:
        return False
    if RECORD in mine.expected and TENSORS in mine.expected:
        return all(mine.expected[file] == theirs.digests[file] for file in (RECORD, TENSORS))
    if RECORD not in mine.damaged:
        return mine.digests[RECORD] == theirs.digests[RECORD]
    return mine.digests.get(TENSORS) == theirs.digests[TENSORS]


def _drawn(mine: Files, written: Mapping[str, bytes], reference: str) -> dict[str, bytes]:
    """Return the card and figures of a whole record that are damaged, and the SHA256SUMS that goes with them.

    Where SHA256SUMS itself is damaged, nobody knows whether the card is whole: all of it is drawn.
    """
    from adaptree.data.foreign_json import loads
    from adaptree.tasks.record import Record, corrupt

    record = mine.record
    if RECORD in written:
        record = Record.from_json(loads(written[RECORD]), called=reference)
    if record is None:
        raise corrupt(reference, RECORD, "nothing of it is left")
    every = shown(record)
    lost = [file for file in mine.damaged if file not in written and file != SUMS]
    drawn = {file: data for file, data in every.items() if file in lost or SUMS in mine.damaged}
    hashed = {file: hashlib.sha256(data).hexdigest() for file, data in {**written, **drawn}.items()}
    if all(mine.expected.get(file) == digest for file, digest in hashed.items()) and set(lost) <= set(drawn):
        return drawn  # the very bytes that were lost
    known = {RECORD, TENSORS, *mine.expected, *every} - {SUMS}
    whole = {file: digest for file, digest in mine.digests.items() if file in known and file not in mine.damaged}
    return {**drawn, SUMS: digests.sums_text({**whole, **hashed}).encode()}


def _repair_beside(store: Store, peer: Store, name: str, file: str) -> str:
    """Restore a small file beside a task's versions; return how, '' if it cannot be."""
    stem, _, suffix = file.rpartition(".")
    if f".{suffix}" == REMOVED:
        store.write_beside(name, file)
        return "emptied"
    if f".{suffix}" == NEEDED:
        every = (f"{other}@{number}" for other in store.names() for number in store.versions(other))
        store.write_beside(name, file, *(one for one in every if f"{name}@{stem}" in parts.stored_needs(store, one)))
        return "from the records of the tasks that need it"
    theirs = peer.read_beside(name, file)
    kept, offered = beside.lines(store.read_beside(name, file)), beside.lines(theirs)
    if not offered or beside.problem(file, theirs) or not set(kept) <= set(offered):
        return ""
    if f".{suffix}" == TAG and int(offered[0]) not in store.versions(name):
        return ""
    store.write_beside(name, file, *offered)
    return f"from {peer.location}"

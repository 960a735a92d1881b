"""The digests of a version's files, in a file beside them that `sha256sum --check` reads.

    SHA256SUMS    a line for each file, 'DIGEST  NAME', and a last one with the digest of the lines before it

The record has a checksum over its values and the digest of the tensors: that is what a task is. This file covers every
byte of all files, those of the card and the figures too. A version of an earlier adaptree has no such file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from adaptree.errors import AdaptreeError, TaskCorrupt
from adaptree.tasks.files import replace_file
from adaptree.tasks.record import RECORD, TENSORS, Record, read_record
from adaptree.tasks.signing import SIGNATURES, checked_signatures, read_signatures

SUMS = "SHA256SUMS"
MOST_SUMS = 1_000_000
"""Bytes of a SHA256SUMS that are read; a usual one has some five hundred."""
_LINE = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<name>[^/\n]+)")
NOT_COVERED = f"it has no {SUMS}: its card and figures are not covered"


def sums_text(digests: Mapping[str, str]) -> str:
    """Return the text of a SHA256SUMS for {name: digest}."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()) if name != SUMS)
    return f"{lines}# {hashlib.sha256(lines.encode()).hexdigest()}\n"


def read_sums(text: str) -> dict[str, str] | None:
    """Return {name: digest} of a SHA256SUMS; None if it is damaged."""
    found = [_LINE.fullmatch(line) for line in text.split("\n")[:-2]]
    digests = {match["name"]: match["digest"] for match in found if match}
    return digests if sums_text(digests) == text else None


def renew_sums(folder: Path) -> None:
    """Write a version's SHA256SUMS again, if it has one: a file of it has just been changed on purpose."""
    if (folder / SUMS).is_file():
        replace_file(folder / SUMS, sums_text(digests_of(folder)).encode())


def digests_of(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file in a folder, by name."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_file())
    return {name: digest_of(folder / name) for name in names}


def digest_of(path: Path) -> str:
    """Return the sha256 of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of one version as they are: what they hash to, which of them are damaged, and which nobody knows."""

    digests: Mapping[str, str]
    """sha256 of each file that is there, by name"""
    damaged: Mapping[str, str] = field(default_factory=dict)
    """what is wrong, by file"""
    unknown: tuple[str, ...] = ()
    expected: Mapping[str, str] = field(default_factory=dict)
    """what SHA256SUMS says, where it is there and whole"""
    record: Record | None = None
    """where it is whole"""

    @property
    def covered(self) -> bool:
        """Whether there is a SHA256SUMS, so that the card and the figures are covered."""
        return SUMS in self.digests or SUMS in self.damaged

    @property
    def has_task(self) -> bool:
        """Whether the record and the tensors are whole, whatever the card is like."""
        return self.record is not None and TENSORS not in self.damaged and RECORD not in self.damaged


def check_files(folder: Path, *, called: str) -> Files:
    """Hash every file of a version's folder and compare with its record and its SHA256SUMS; nothing is raised."""
    try:
        digests = digests_of(folder)
        text = _text(folder / SUMS) if SUMS in digests else ""
    except OSError as error:
        return Files(digests={}, damaged={RECORD: f"the folder cannot be read ({error.strerror or error})"})
    damaged: dict[str, str] = {}
    expected = read_sums(text) if text or SUMS in digests else {}
    if expected is None:
        damaged[SUMS] = "its last line does not match the others"
        expected = {}
    for name, digest in expected.items():
        if digests.get(name) != digest:
            damaged[name] = "wrong digest" if name in digests else "the file is missing"
    record: Record | None = None
    try:
        record = read_record(folder, called=called)
    except TaskCorrupt as error:  # "task 'reviews@1' is damaged: task.json: broken JSON (…)."
        damaged[RECORD] = error.what.partition(f"{RECORD}: ")[2].rstrip(".") or error.what
    except AdaptreeError as error:
        damaged[RECORD] = error.what.rstrip(".")
    if record is not None and RECORD not in damaged:
        if TENSORS not in digests:
            damaged[TENSORS] = "the file is missing"
        elif digests[TENSORS] != record.digest:
            damaged[TENSORS] = "wrong digest"
    elif TENSORS not in digests:
        damaged[TENSORS] = "the file is missing"
    if SIGNATURES in digests:  # it came later, and each of its lines has a checksum
        try:
            (read_signatures if record is None else checked_signatures)(folder, called=called)
        except AdaptreeError as error:
            damaged[SIGNATURES] = error.what.partition(f"{SIGNATURES}: ")[2].rstrip(".") or error.what
    known = {RECORD, TENSORS, SUMS, SIGNATURES, *expected} | (set() if expected else {"README.md", *_figures(digests)})
    unknown = tuple(name for name in digests if name not in known)
    return Files(digests=digests, damaged=damaged, unknown=unknown, expected=expected, record=record)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MOST_SUMS).decode(errors="replace")


def _figures(names: Mapping[str, str]) -> list[str]:
    return [name for name in names if name.endswith(".svg")]

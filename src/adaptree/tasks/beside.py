"""The small files beside a task's versions: words of text, one a line, each line with a checksum of its own.

    tasks/NAME/VERSION.removed   empty: the number is used up
    tasks/NAME/VERSION.needed    the tasks that need this version
    tasks/NAME/VERSION.marks     words noted later
    tasks/NAME/VERSION.notes     sentences that people wrote about it
    tasks/NAME/TAG.tag           the version that a tag names

A version's own files never change; these may. A line without a checksum was written by an earlier adaptree, and is one
word.
"""

from __future__ import annotations

import re
import zlib

from adaptree.tasks import names

REMOVED, NEEDED, MARKS, NOTES, TAG = ".removed", ".needed", ".marks", ".notes", ".tag"
_SEALED = re.compile(r"(?P<line>.*) #(?P<sum>[0-9a-f]{8})")


def seal(line: str) -> str:
    """Return the line with its checksum behind it."""
    return f"{line} #{zlib.crc32(line.encode()):08x}"


def lines(text: str) -> list[str]:
    """Return the lines of a file without their checksums; those that do not match theirs are left out."""
    return [line for line, whole in _each(text) if whole]


def damaged(text: str) -> list[str]:
    """Return the lines that do not match their checksum, or are cut off."""
    return [line for line, whole in _each(text) if not whole]


def is_known(file: str) -> bool:
    """Return whether a file's name is that of a small file of ours."""
    stem, dot, suffix = file.rpartition(".")
    of_version = f".{suffix}" in (REMOVED, NEEDED, MARKS, NOTES) and names.VERSION.fullmatch(stem)
    return bool(dot and (of_version or (f".{suffix}" == TAG and names.TAG.fullmatch(stem))))


def problem(file: str, text: str) -> str:
    """Return what is wrong with a small file of ours, '' if nothing is."""
    if file.endswith(REMOVED):
        return "it should be empty" if text else ""
    if bad := damaged(text):
        return f"{len(bad)} of its lines {'does' if len(bad) == 1 else 'do'} not match the checksum"
    if file.endswith(TAG) and not (len(lines(text)) == 1 and names.VERSION.fullmatch(lines(text)[0])):
        return "it names no version"
    return ""


def _each(text: str) -> list[tuple[str, bool]]:
    """Return each line without its checksum, and whether it is whole; a file with one checksum has one on each line."""
    every = [line for line in text.split("\n") if line.strip()]
    found = [_SEALED.fullmatch(line) for line in every]
    old = not any(found)
    pairs = []
    for line, match in zip(every, found, strict=True):
        if match:
            pairs.append((match["line"], match["sum"] == f"{zlib.crc32(match['line'].encode()):08x}"))
        else:
            pairs.append((line, old and "#" not in line and " " not in line))
    return pairs

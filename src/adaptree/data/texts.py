"""Rows of text files: plain lines, fastText's format, tables and CoNLL columns in a .txt, folders of texts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adaptree.data.conll import read_conll
from adaptree.data.events import Listener, note
from adaptree.data.files import LARGEST_ROW, UNPACK, File, RowTooLong, undecodable
from adaptree.data.tables import is_table, read_table
from adaptree.errors import DataError

Row = tuple[int, dict[str, Any]]
LABEL = re.compile(r"(?<!\S)__label__(\S+)\s*")
TAG = re.compile(r"O|[BIESLU]-\S+")
SAMPLE = 500
PARTS = {
    "train": ("train", "training"), "validation": ("validation", "valid", "val", "dev"), "test": ("test", "testing"),
}  # fmt: skip
"""What the folders of a dataset's parts are called."""
UNLABELLED = ("unsup", "unlabeled", "unlabelled")
"""Folders whose name says that their texts have no label, as in IMDB's reviews."""


def read_text(file: File) -> Iterator[Row]:
    """Yield the rows of a .txt by what is in it: fastText's labels, CoNLL columns, a table, or else lines of text."""
    start = file.start()
    if start.lstrip().startswith("__label__"):
        yield from read_fasttext(file)
    elif _is_conll(start):
        yield from read_columns(file)
    elif is_table(start):
        yield from read_table(file)
    else:
        with file.text() as stream:
            for line, text in enumerate(stream, 1):
                if text.strip():
                    yield line, {"text": text.rstrip("\r\n")}


def read_fasttext(file: File) -> Iterator[Row]:
    """Yield text and label of each line `__label__x text`; lists of labels where any line has several."""
    start = file.start()
    if not start.lstrip().startswith("__label__"):
        raise DataError(
            f"'{file.name}' is not in fastText's format: its first line has no label.",
            hint="Write lines such as: __label__good I like it. For plain text, rename the file to end in .txt.",
        )
    several = _has_several(file)
    with file.text() as stream:
        for line, text in enumerate(stream, 1):
            if text.strip():
                found = list(dict.fromkeys(LABEL.findall(text)))
                label = (found or None) if several else found[0] if found else None
                yield line, {"text": LABEL.sub("", text).strip(), "label": label}


def _has_several(file: File) -> bool:
    """Return whether any line of a file in fastText's format has more than one label."""
    with file.text() as stream:
        for text in stream:
            file.fetched = 0
            if text.count("__label__") > 1 and len(set(LABEL.findall(text))) > 1:
                return True
    return False


def _is_conll(start: str) -> bool:
    """Return whether every line that is not blank ends with a tag such as B-PER or O, behind a word."""
    lines = [line.split() for line in start.split("\n")[: SAMPLE + 1]]
    rows = [fields for fields in lines[: max(len(lines) - 1, 1)] if fields and fields[0] != "-DOCSTART-"]
    tagged = all(len(fields) > 1 and TAG.fullmatch(fields[-1]) for fields in rows)
    return tagged and any(fields[-1] != "O" for fields in rows)


def read_columns(file: File) -> Iterator[Row]:
    """Yield the sentences of a CoNLL file."""
    with file.text() as stream:
        try:
            yield from read_conll(stream)
        except DataError as error:
            raise DataError(f"'{file.name}': {error.what}", hint=error.hint) from None


def label_folders(folder: Path) -> list[Path]:
    """Return the folders of texts that a folder holds, one for each label; [] where it does not hold two of them."""
    try:
        inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))
        found = [path for path in inside if any(_is_text(each) for each in path.iterdir())]
    except (OSError, ValueError):  # no folder, or no name that a folder can have
        return []
    parts = {name for names in PARTS.values() for name in names}
    return found if len(found) > 1 and not {path.name for path in found} <= parts else []


def _is_text(path: Path) -> bool:
    inner = path.with_suffix("") if path.suffix.lower() in UNPACK else path
    return inner.suffix.lower() == ".txt" and not path.name.startswith(".")


def read_folders(folder: Path, encoding: str, on_event: Listener) -> Iterator[dict[str, Any]]:
    """Yield each text of a folder with a folder of .txt files per label: one of each label in turn."""
    labels = label_folders(folder)
    without = [path for path in labels if path.name in UNLABELLED]
    for path in without:
        note(on_event, f"'{path.name}' in '{folder.name}' is left out: by its name, its texts have no label.")
    columns = [sorted(filter(_is_text, path.iterdir())) for path in labels if path not in without]
    for path in itertools.chain.from_iterable(itertools.zip_longest(*columns)):
        if path is not None:
            label = path.parent.name
            yield {"text": _whole(path, encoding), "label": label, "file": f"{label}/{path.name}"}


def _whole(path: Path, encoding: str) -> str:
    file = File(path, ".txt", encoding)
    try:
        with file.text() as stream:
            parts = []
            while part := stream.read(1 << 16):
                parts.append(part)
    except UnicodeError:
        raise undecodable(file) from None
    except RowTooLong:
        raise DataError(
            f"'{path.parent.name}/{path.name}' has more than {LARGEST_ROW >> 20} MB, too much for one text.",
            hint="Remove it, or cut it into texts.",
        ) from None
    return "".join(parts).strip()

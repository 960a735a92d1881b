"""Check a file at once, before its job is queued: with the eyes of `adaptree check`, and all that `train` refuses.

A small file is checked in a thread. A large or packed one is checked in a process of its own, at low priority: it can
take long, and must not slow down predictions; one that takes too long is ended.
"""

from __future__ import annotations

import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.excel import ENDINGS as EXCEL
from adaptree.data.files import UNPACK
from adaptree.errors import AdaptreeError, DataError
from adaptree.serve.elsewhere import elsewhere
from adaptree.serve.jobs.settings import BaseInfo, run_of, without_folders
from adaptree.serve.problems import Problem
from adaptree.training.preview import command_line, preview

if TYPE_CHECKING:
    from adaptree.data.encode import Encoder

SMALL = 1_000_000
"""Bytes of a file, unpacked, that is checked in a thread."""
_ROWS = re.compile(r"\b(?:row|line) (\d[\d,]*)")


def check_file(
    file: Path,
    options: Mapping[str, Any],
    base: BaseInfo,
    encoder: Encoder,
    *,
    more_files: Mapping[str, Path] | None = None,
    most_rows: int,
    timeout: float,
) -> dict[str, Any]:
    """Return what GET /v1/files/{id}/check says; raise a Problem that names the rows, if it cannot be trained on."""
    more = dict(more_files or {})
    try:
        if all(map(holds_little, (file, *more.values()))):
            found = look(file, options, more, base, encoder)
        else:
            found = elsewhere(_look_there, file, dict(options), more, base, timeout=timeout, name=file.name)
    except AdaptreeError as error:
        raise bad_data(error, file.parent.parent) from error
    if (rows := sum(found["parts"].values())) > most_rows:
        raise Problem(
            413, "too_large", f"'{file.name}' has {rows:,} rows, and {most_rows:,} are the most.",
            hint="Send fewer.",
        )  # fmt: skip
    return found


def holds_little(file: Path, most: int = SMALL) -> bool:
    """Return whether a file has few bytes, also when it is unpacked, or cannot be unpacked at all."""
    if file.stat().st_size > most or file.suffix.lower() == ".parquet":
        return False
    try:
        if (opened := UNPACK.get(file.suffix.lower())) is not None:
            with opened(file) as stream:
                return len(stream.read(most + 1)) <= most
        if file.suffix.lower() in EXCEL:
            with zipfile.ZipFile(file) as book:
                return sum(part.file_size for part in book.infolist()) <= 4 * most
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile):
        pass  # the check says so
    return True


def look(
    file: Path, options: Mapping[str, Any], more: Mapping[str, Path], base: BaseInfo, encoder: Encoder
) -> dict[str, Any]:
    """Return what is in a file, and what would be trained."""
    found = preview(run_of(file, options, **more), encoder, base.limit, base.pooling, base.parameters)
    return {
        **found.report.to_dict(),
        "roles": dict(found.report.columns),
        "columns": found.columns,
        "parts": found.parts,
        "settings": found.settings,
        "why": found.why,
        "preview": found.first_rows,
        "regime": {"objective": found.settings["objective"], "why": found.objective_why},
        "estimate_seconds": found.estimate_seconds,
        "command": command_line(file.name, {**options, **{part: path.name for part, path in more.items()}}),
    }


def _look_there(file: Path, options: Mapping[str, Any], more: Mapping[str, Path], base: BaseInfo) -> dict[str, Any]:
    """Do the same in a process of its own, which has no tokenizer yet."""
    from adaptree.models.opening import encoder_of

    return look(file, options, more, base, encoder_of(base.location)[0])


def bad_data(error: AdaptreeError, folder: Path) -> Problem:
    """Return the answer for a file that cannot be trained on, in the words of `adaptree check`."""
    code = "bad_data" if isinstance(error, DataError) else "bad_input"
    what = without_folders(error.what, f"{folder}{os.sep}")
    rows = [int(number.replace(",", "")) for number in _ROWS.findall(what)]
    return Problem(422, code, what, hint=error.hint, more={"rows": rows})

"""New task: a file is dropped, checked, looked at and trained on; the page asks the HTTP API for most of it."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from adaptree import kinds
from adaptree.data.excel import ENDINGS as EXCEL
from adaptree.data.read import FORMATS, UNPACK
from adaptree.data.read import rows as read_rows
from adaptree.errors import AdaptreeError
from adaptree.serve.jobs.checking import bad_data, holds_little
from adaptree.serve.predicting import as_json
from adaptree.serve.web.frame import page, service_of

router = APIRouter(include_in_schema=False)

SHOWN, WIDEST = 10, 300
"""Rows of a file that are shown, and characters of a cell."""
METHODS = {
    "houlsby": "Adapters (houlsby)",
    "lora": "Low-rank updates (lora)",
    "ia3": "Scales (ia3), the fewest weights",
    "head": "Only a head on the frozen base, in seconds",
    "full": "All weights (full), to compare with",
}
IN_WORDS = {
    "classify": "one label for each text",
    "multilabel": "any number of labels for each text",
    "regress": "a number for each text",
    "multioutput": "several numbers for each text",
    "tag": "a tag for each word",
    "answer": "answers to questions about a text",
    "choose": "one of several choices",
    "mlm": "plain text of a language or a field",
}


@router.get("/new")
async def new_task(request: Request) -> Response:
    service = service_of(request)
    caller = service.caller(request, "train")
    assert service.queue is not None
    endings = [*FORMATS, *(f"{ending}{packed}" for ending in (".csv", ".jsonl", ".txt") for packed in UNPACK)]
    known = {name: IN_WORDS.get(name, "") for name in kinds.KINDS}
    return page(
        request, "new.html", caller, endings=endings, methods=METHODS, kinds=known, keep=service.keys is None,
        base=service.engine.base.name, most=service.limits.upload,
    )  # fmt: skip


@router.get("/new/{file}/rows")
async def first_rows(request: Request, file: str) -> Response:
    """Return the columns of a file and its first rows, also of one that a check refuses."""
    service = service_of(request)
    caller = service.caller(request, "train")
    files = service.queue.files
    found = await asyncio.to_thread(files.get, file, caller.tenant)

    def read() -> dict[str, Any]:
        with files.open(found) as path:
            return _rows(path)

    async with service.checks:
        return as_json(await asyncio.to_thread(read))


def _rows(path: Path) -> dict[str, Any]:
    if path.suffix.lower() in (*UNPACK, *EXCEL, ".parquet") and not holds_little(path):  # the check reads it, elsewhere
        return {"columns": [], "rows": []}
    try:
        some = list(islice(read_rows(path), SHOWN))
    except AdaptreeError as error:
        raise bad_data(error, path.parent) from error
    columns = list(dict.fromkeys(name for _, row in some for name in row))
    return {"columns": columns, "rows": [{"row": number, **_texts(row)} for number, row in some]}


def _texts(row: dict[str, Any]) -> dict[str, str]:
    return {name: str(value)[:WIDEST] for name, value in row.items() if value is not None}

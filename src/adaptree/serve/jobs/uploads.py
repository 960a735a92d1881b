"""Receive data files, one as the body of a request or several as parts of a form: straight to disk, within limits.

Whatever goes wrong, or if the client goes away, nothing stays.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from fastapi import Request

from adaptree.errors import DataError
from adaptree.serve import receive
from adaptree.serve.jobs.files import DataFile, Incoming, check_file_name
from adaptree.serve.jobs.job import MORE_FILES
from adaptree.serve.problems import Problem, too_large

if TYPE_CHECKING:
    from adaptree.serve.jobs.files import Files
    from adaptree.serve.limits import Limits

TYPES = (
    "application/octet-stream", "text/csv", "text/tab-separated-values", "application/json", "application/x-ndjson",
    "application/jsonl", "application/gzip", "application/x-gzip", "application/x-xz", "application/vnd.apache.parquet",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
)  # fmt: skip
"""What a file's body may be said to be; its name says what it is."""
FORM = "multipart/form-data"
PARTS = ("file", *MORE_FILES)
"""Parts of a form that are files."""
MOST_SETTINGS = 65_536
"""Bytes of the part `settings`."""


async def receive_file(request: Request, files: Files, limits: Limits, tenant: str, name: str) -> DataFile:
    """Keep the body of a request as a tenant's file."""
    name = checked_name(name)
    with files.receive() as incoming:
        async for piece in receive.pieces(request, limits, limits.upload):
            await asyncio.to_thread(incoming.write, piece)
        return await asyncio.to_thread(_keep, files, incoming, tenant, name, limits)


async def receive_form(
    request: Request, files: Files, limits: Limits, tenant: str
) -> tuple[dict[str, DataFile], dict[str, Any]]:
    """Keep the files of a form, `file` and others, as a tenant's; return them by their parts, and the other parts."""
    with ExitStack() as opened:
        form = Form(request.headers.get("content-type", ""), lambda: opened.enter_context(files.receive()))
        async for piece in receive.pieces(request, limits, limits.upload + MOST_SETTINGS + 4096):
            await asyncio.to_thread(form.feed, piece)
            if sum(incoming.bytes for _, incoming in form.files.values()) > limits.upload:
                raise too_large(f"the form has files of more than {limits.upload:,} bytes.", "Send less.")
        values = form.end()
        kept: dict[str, DataFile] = {}
        try:
            for part, (name, incoming) in form.files.items():
                kept[part] = await asyncio.to_thread(_keep, files, incoming, tenant, name, limits)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(files.discard, *(file.id for file in kept.values())))
            raise
        return kept, values


def _keep(files: Files, incoming: Incoming, tenant: str, name: str, limits: Limits) -> DataFile:
    if not incoming.bytes:
        raise Problem(422, "bad_data", f"'{name}' is empty.", hint="It needs a row for each text.", more={"rows": []})
    return files.keep(incoming, tenant, name, most=limits.stored)


def checked_name(name: str) -> str:
    """Return a file's name; raise a Problem if it cannot be one."""
    try:
        return check_file_name(name)
    except DataError as error:
        end = {"Connection": "close"}  # the rest of the body is not read
        raise Problem(422, "bad_data", error.what, hint=error.hint, headers=end, more={"rows": []}) from error


class Form:
    """A form that is parsed as it comes: its files go to disk, `settings` and `keep_data` stay in memory."""

    def __init__(self, content_type: str, receive: Callable[[], Incoming]) -> None:
        from python_multipart.multipart import MultipartParser, parse_options_header

        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if not boundary:
            raise _broken("its Content-Type has no boundary")
        self._header, self._parse_options = [b"", b""], parse_options_header
        self.files: dict[str, tuple[str, Incoming]] = {}
        """The name and the bytes of each file, by its part."""
        self._receive, self._part = receive, ""
        self._values: dict[str, bytes] = {}
        self._said: dict[bytes, bytes] = {}
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._add(0, data[start:end]),
                "on_header_value": lambda data, start, end: self._add(1, data[start:end]),
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": lambda data, start, end: self._data(data[start:end]),
                "on_end": self._end,
            },
        )

    def feed(self, piece: bytes) -> None:
        with _parsing():
            self._parser.write(piece)

    def end(self) -> dict[str, Any]:
        """Return the values of the parts that are no files; raise a Problem if something is missing."""
        if not self._ended:
            raise _broken("it ends too soon")
        if "file" not in self.files:
            raise Problem(422, "bad_input", "the form has no part 'file'.", hint="curl -F file=@reviews.csv …")
        found: dict[str, Any] = {}
        for name, value in self._values.items():
            try:
                found[name] = json.loads(value)
            except ValueError:
                raise Problem(422, "bad_json", f"the part '{name}' is no JSON.", hint='{"name": "reviews"}') from None
        return found

    def _begin(self) -> None:
        self._part, self._header, self._said = "", [b"", b""], {}

    def _add(self, which: int, data: bytes) -> None:
        self._header[which] += data
        if len(self._header[which]) > 4096:
            raise _broken("a part's header is too long")

    def _header_end(self) -> None:
        self._said[self._header[0].lower().strip()] = self._header[1]
        self._header = [b"", b""]

    def _headers_finished(self) -> None:
        _, options = self._parse_options(self._said.get(b"content-disposition", b""))
        self._part = options.get(b"name", b"").decode(errors="replace")
        if self._part in PARTS:
            if self._part in self.files:
                raise _broken(f"it has two parts '{self._part}'")
            name = checked_name(options.get(b"filename", b"").decode(errors="surrogateescape"))
            self.files[self._part] = name, self._receive()
        elif self._part in ("settings", "keep_data"):
            self._values[self._part] = b""
        else:
            takes = ", ".join((*PARTS, "settings and keep_data"))
            raise _broken(f"it has a part '{self._part:.40}', and takes {takes}")

    def _data(self, data: bytes) -> None:
        if self._part in PARTS:
            self.files[self._part][1].write(data)
            return
        self._values[self._part] += data
        if len(self._values[self._part]) > MOST_SETTINGS:
            raise too_large(f"'{self._part}' has more than {MOST_SETTINGS:,} bytes.", "Send less.")

    def _end(self) -> None:
        self._ended = True


def _broken(why: str) -> Problem:
    return Problem(422, "bad_input", f"the form cannot be read: {why}.", hint="curl -F file=@reviews.csv -F settings=…")


@contextmanager
def _parsing() -> Iterator[None]:
    from python_multipart.exceptions import FormParserError

    try:
        yield
    except FormParserError as error:
        raise _broken(" ".join(str(error).split())[:100].rstrip(".")) from error

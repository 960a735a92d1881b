"""Connections that are patient only for so long: headers have a size and a time in which they must come.

uvicorn limits neither, so that a few slow clients could hold all connections. What is not HTTP gets an error of
the same shape as all others.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from adaptree.serve.limits import Limits
from adaptree.serve.problems import Problem


class Connection(HttpToolsProtocol):
    """A connection of a client. Its limits are in the application's `limits`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits: Limits = self.config.limits  # type: ignore[attr-defined]
        self._timer: asyncio.TimerHandle | None = None
        self._in_headers = True
        self._header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            if self._timer is None:
                self._wait_for_headers()
            room = self._limits.headers - self._header_bytes
            if len(data) > room:  # feed what may be headers: they have to end there
                self._header_bytes += room
                super().data_received(data[:room])
                if self._header_bytes >= self._limits.headers:
                    most = f"the headers have more than {self._limits.headers:,} bytes."
                    self._refuse(Problem(431, "headers_too_large", most, hint="Send fewer."))
                elif not self.transport.is_closing():
                    self.data_received(data[room:])
                return
            self._header_bytes += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_headers = True
        super().on_message_complete()

    def _wait_for_headers(self) -> None:
        self._timer = self.loop.call_later(self._limits.receive, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.cycle is not None and not self.cycle.response_complete:  # an earlier answer is under way
            self.transport.close()
        else:
            self._refuse(
                Problem(408, "too_slow", "the request's headers did not come in time.", hint="Send them at once.")
            )

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(400, "bad_request", "this is not an HTTP request.", hint="Speak HTTP/1.1."))

    def _refuse(self, problem: Problem) -> None:
        body = problem.to_json()
        head = [
            STATUS_LINE[problem.status],
            b"content-type: application/json\r\nconnection: close\r\n",
            f"content-length: {len(body)}\r\n\r\n".encode(),
        ]
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.write(b"".join([*head, body]))
            self.transport.close()

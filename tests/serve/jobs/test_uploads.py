"""Uploads as an enemy or an accident sends them: each is answered as documented, and nothing stays on disk."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from adaptree.serve.jobs import files as files_module
from adaptree.serve.limits import Limits
from tests.serve.jobs.site import QUICK, Site, form, send
from tests.serve.serving import Asker


def until_gone(site: Site, seconds: float = 10) -> list[str]:
    """What is left on disk, as soon as that is nothing."""
    until = time.monotonic() + seconds
    while (left := site.left()) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def head(ask: Asker, length: str, name: str = "words.csv") -> bytes:
    return (
        f"POST /v1/files?name={name} HTTP/1.1\r\nHost: {ask.host}\r\nContent-Type: text/csv\r\n{length}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize("declared", [True, False])
def test_a_file_that_is_too_large_is_refused_while_it_comes(site: Site, declared: bool) -> None:
    with site.serving(limits=Limits(upload=100_000)) as ask:
        length = "Content-Length: 100001" if declared else "Transfer-Encoding: chunked"
        piece = b"x" * 50_000
        body = b"" if declared else (f"{len(piece):x}\r\n".encode() + piece + b"\r\n") * 3
        said = ask.raw(head(ask, length) + body)
        assert b"413" in said.split(b"\r\n")[0]
        assert b'"too_large"' in said
        assert until_gone(site) == []


def test_a_form_with_a_file_that_is_too_large_is_refused(site: Site) -> None:
    with site.serving(limits=Limits(upload=100_000)) as ask:
        body, header = form(b"x" * 100_001)
        answer = ask("POST", "/v1/jobs", body, headers=header)
        assert answer.status == 413
        assert until_gone(site) == []


@pytest.mark.slow
def test_a_gigabyte_is_taken_and_one_byte_more_is_not(site: Site) -> None:
    """The file goes to disk as it comes: memory does not grow with it."""
    import resource

    size = 1_000_000_000
    with site.serving() as ask:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        piece = b"text,label\n" * 100_000
        for extra, status in ((0, b"201"), (1, b"413")):
            with socket.create_connection((ask.host, ask.port), 120) as connection:
                connection.sendall(head(ask, "Transfer-Encoding: chunked"))
                left = size + extra
                try:
                    while left:
                        part = piece[: min(left, len(piece))]
                        connection.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                        left -= len(part)
                    connection.sendall(b"0\r\n\r\n")
                except OSError:
                    pass  # it was refused before its end
                assert status in connection.recv(4096).split(b"\r\n")[0]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes
        assert len(site.left()) == 1


def bomb(name: str) -> bytes:
    """A small file that unpacks to a gigabyte."""
    if name.endswith(".xlsx"):
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as book:
            book.writestr("[Content_Types].xml", "<Types/>")
            with book.open("xl/worksheets/sheet1.xml", "w", force_zip64=True) as part:
                for _ in range(200):
                    part.write(b"<c>" * 500_000)
        return held.getvalue()
    line = b"hello world, again and again,x\n" * 40_000
    packer: Any = gzip.compress if name.endswith(".gz") else lzma.compress
    first: bytes = packer(b"text,label\nhello,y\n")
    more: bytes = packer(line)
    return first + more * 800  # members one after another


@pytest.mark.slow
@pytest.mark.parametrize("name", ["words.csv.gz", "words.csv.xz", "words.xlsx"])
def test_a_bomb_is_refused_in_bounded_time_and_memory(site: Site, name: str) -> None:
    data = bomb(name)
    assert len(data) < 6_000_000
    with site.serving() as ask:
        body, header = form(data, name, {**QUICK, "name": "words"})
        began = time.monotonic()
        answer = ask("POST", "/v1/jobs", body, headers=header, timeout=110)
        assert answer.status == 422, answer.body
        assert answer.json["error"]["code"] == "bad_data"
        assert name in answer.json["error"]["message"]
        assert time.monotonic() - began < 100
        assert until_gone(site) == []
        assert ask.get("/v1/jobs").json["jobs"] == []


@pytest.mark.parametrize(
    "name", ["report.pdf", "model.bin", "words", "words.csv.zip", "words.exe", "words.sqlite", "a.parquet.gz"]
)
def test_a_type_that_cannot_be_read_is_refused_before_it_is_received(site: Site, name: str) -> None:
    with site.serving() as ask:
        said = ask.raw(head(ask, "Content-Length: 900000000", name))  # nothing of it is sent
        assert b"422" in said.split(b"\r\n")[0]
        assert b"its ending does not say a known format" in said
        body, header = form(site.csv, name)
        assert ask("POST", "/v1/jobs", body, headers=header).status == 422
        assert until_gone(site) == []


def test_a_body_of_a_type_that_a_foreign_page_could_send_is_refused(site: Site) -> None:
    with site.serving() as ask:
        for kind in ("application/x-www-form-urlencoded", "text/plain", ""):
            answer = send(ask, site.csv, **{"Content-Type": kind})
            assert answer.status == 415
        assert site.left() == []


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/cron.d/words.csv", "..\\words.csv", "/etc/words.csv", "C:\\words.csv", "a\0.csv", "a\x1b[2J.csv",
        "a\r\nX-Evil: 1.csv", ".csv", "..", "", "w" * 147 + ".csv", "\u202ewords.csv", "a\udcff.csv",
    ],
)  # fmt: skip
def test_a_hostile_name_is_refused_and_not_repeated(site: Site, name: str) -> None:
    with site.serving() as ask:
        body, header = form(site.csv, name.replace("\r\n", "%0D%0A") if "\r" in name else name)
        answers = [ask("POST", "/v1/jobs", body, headers=header)]
        if "\udcff" not in name:
            answers.append(send(ask, site.csv, name))
        for answer in answers:
            if answer.status == 202:  # a form's parser has made a plain name of it
                assert answer.json["file_name"] in ("words.csv", "a%0D%0AX-Evil: 1.csv")
                ask.post(f"/v1/jobs/{answer.json['id']}/cancel", None)
                continue
            assert answer.status == 422, answer.body
            assert not {b"\0", b"\x1b", b"\r"} & {bytes([c]) for c in answer.body}
        assert until_gone(site) == []
        assert not (site.folder.parent / "etc").exists()


def test_a_plain_name_in_any_script_is_kept_as_it_is(site: Site) -> None:
    with site.serving() as ask:
        for name in ("отзывы.csv", "a b (1).csv", "<script>alert(1)<.csv", "C# и 猫.tsv"):
            answer = send(ask, site.csv, name)
            assert answer.json["name"] == name


def test_a_broken_encoding_is_said_with_its_place(site: Site) -> None:
    data = site.csv + "caf\xe9 ole,fruit\n".encode("latin-1")
    with site.serving() as ask:
        body, header = form(data, settings={**QUICK, "name": "words"})
        answer = ask("POST", "/v1/jobs", body, headers=header)
        assert answer.status == 422
        assert "'words.csv' is not utf-8: byte 0xe9 at offset" in answer.json["error"]["message"]
        assert answer.json["error"]["rows"] == [92]
        assert until_gone(site) == []
        body, header = form(data, settings={**QUICK, "name": "words", "encoding": "latin-1"})
        assert ask("POST", "/v1/jobs", body, headers=header).status == 202


def test_of_a_client_that_stops_half_way_nothing_stays(site: Site) -> None:
    with site.serving(limits=Limits(receive=0.5)) as ask:
        for close in (True, False):
            with socket.create_connection((ask.host, ask.port), 10) as connection:
                connection.sendall(head(ask, "Content-Length: 100000") + b"text,label\n" * 100)
                until = time.monotonic() + 5
                while not site.left() and time.monotonic() < until:
                    time.sleep(0.01)
                assert site.left(), "some of it is on disk"
                if not close:  # it just says nothing more
                    assert b"408" in connection.recv(4096).split(b"\r\n")[0]
            assert until_gone(site) == []


def test_an_empty_file_and_broken_forms_are_refused(site: Site) -> None:
    body, header = form(site.csv)
    with site.serving() as ask:
        assert send(ask, b"").status == 422
        for data, kind in (
            (body[:-30], header["Content-Type"]),
            (body, "multipart/form-data"),
            (body.replace(b'name="file"', b'name="other"'), header["Content-Type"]),
            (body.replace(b"Content-Disposition", b"X-Nothing"), header["Content-Type"]),
            (b"", header["Content-Type"]),
            (body[: body.rindex(b"--", 0, -4)] + body, header["Content-Type"]),
        ):
            answer = ask("POST", "/v1/jobs", data, headers={"Content-Type": kind})
            assert answer.status == 422, (data[-80:], answer.body)
        assert until_gone(site) == []


CHILD = """
import sys
from pathlib import Path
from adaptree.serve.jobs import Jobs
from adaptree.tasks.store import Store
with Jobs(Store(sys.argv[1])).files.receive() as incoming:
    incoming.write(b"text,label\\n" * 1000)
    incoming._file.flush()
    print("half way", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_is_swept_but_not_what_a_living_one_receives(site: Site) -> None:
    site.add()  # there is a database
    command = [sys.executable, "-c", CHILD, str(site.store.path)]
    dead, alive = (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) for _ in range(2)
    )
    try:
        for process in (dead, alive):
            assert process.stdout is not None
            assert process.stdout.readline() == b"half way\n"
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert len(site.left()) == 3
        with site.serving():
            until = time.monotonic() + 10
            while len(site.left()) > 2 and time.monotonic() < until:
                time.sleep(0.05)
        assert len([path for path in site.left() if path.startswith("incoming")]) == 1
    finally:
        for process in (dead, alive):
            process.kill()
            process.communicate()
    site.jobs.sweep()
    assert [path for path in site.left() if path.startswith("incoming")] == []


def test_uploads_that_nobody_uses_expire(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "DAY", -1.0)
    file = site.upload()
    monkeypatch.undo()
    assert Path(site.store.path / "jobs" / "files" / file.id).is_dir()
    site.jobs.sweep()
    assert site.left() == []

"""Versions as one file: the same content gives the same bytes, and any other form is refused in one line."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from safetensors.torch import save

from adaptree.errors import AdaptreeError, BundleError, TaskCorrupt
from adaptree.tasks import archive
from adaptree.tasks.archive import Entry
from adaptree.tasks.beside import seal
from adaptree.tasks.bundle import MANIFEST, pack, unpack
from adaptree.tasks.record import RECORD, TENSORS, Record, checksum
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task, read_task
from adaptree.tasks.tensor_header import check_header

Files = dict[str, bytes]


def task(name: str = "reviews", fill: float = 1.0) -> Task:
    record = Record(name=name, kind="classify", labels=["a", "b"], method="houlsby(size=2)", base={"name": "minilm"})
    return Task(record, {"head.bias": torch.full((8,), fill), "head.weight": torch.full((2, 3), fill)})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.add(task())
    made.add(task("lang/qu", 2.0))
    return made


@pytest.fixture
def bundle(store: Store, tmp_path: Path) -> Path:
    file = tmp_path / "two.adaptree"
    pack({"reviews@1": store.path_of("reviews"), "lang/qu@1": store.path_of("lang/qu")}, file)
    return file


def contents(file: Path) -> Files:
    with zipfile.ZipFile(file) as zipped:
        return {name: zipped.read(name) for name in zipped.namelist()}


def write(file: Path, files: Files, *, manifest: bool = True) -> Path:
    """Write files as a bundle is written, with the digests that they have unless the manifest is one of them."""
    if manifest:
        said = json.loads(files[MANIFEST])
        said["files"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != MANIFEST}
        files = {**files, MANIFEST: json.dumps(said).encode()}
    with file.open("wb") as out:
        archive.write(out, ((Entry(n, len(d), crc32(d)), [d]) for n, d in sorted(files.items())))
    return file


def refused(file: Path, into: Path) -> str:
    with pytest.raises(AdaptreeError) as caught:
        unpack(file, into)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 500
    return said


def test_what_is_packed_comes_out_again_byte_for_byte(store: Store, bundle: Path, tmp_path: Path) -> None:
    manifest = unpack(bundle, tmp_path / "out")
    assert manifest.tasks == manifest.versions == ["lang/qu@1", "reviews@1"]
    for reference in manifest.versions:
        here, there = store.path_of(reference), tmp_path / "out" / reference.replace("@", "/")
        assert {p.name: p.read_bytes() for p in there.iterdir()} == {p.name: p.read_bytes() for p in here.iterdir()}
        assert torch.equal(read_task(there, called="x").tensors["head.bias"], store[reference].tensors["head.bias"])


def test_the_same_content_gives_the_same_bytes_and_any_zip_program_reads_them(store: Store, bundle: Path) -> None:
    again = bundle.with_name("again.adaptree")
    for reference in ("reviews@1", "lang/qu@1"):
        for path in store.path_of(reference).iterdir():
            os.utime(path, (1, 1))
    pack({"lang/qu@1": store.path_of("lang/qu"), "reviews@1": store.path_of("reviews")}, again)
    assert again.read_bytes() == bundle.read_bytes()
    with zipfile.ZipFile(bundle) as zipped:
        assert zipped.testzip() is None
        assert {info.compress_type for info in zipped.infolist()} == {zipfile.ZIP_STORED}
        assert "tasks/lang/qu/1/task.safetensors" in zipped.namelist()


def test_a_file_that_is_there_is_replaced_only_on_demand(store: Store, bundle: Path) -> None:
    folders, before = {"reviews@1": store.path_of("reviews")}, bundle.read_bytes()
    with pytest.raises(BundleError, match=r"there already.*--force"):
        pack(folders, bundle)
    assert bundle.read_bytes() == before
    pack(folders, bundle, force=True)
    assert unpack(bundle, bundle.with_name("out")).versions == ["reviews@1"]
    assert not list(bundle.parent.glob(".*")), "nothing is left beside it"


@pytest.mark.parametrize("file", [RECORD, TENSORS])
def test_a_damaged_version_is_not_packed(store: Store, tmp_path: Path, file: str) -> None:
    path = store.path_of("reviews") / file
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(TaskCorrupt, match=f"'reviews@1' is damaged: {file}"):
        pack({"reviews@1": store.path_of("reviews")}, tmp_path / "x.adaptree")
    assert not (tmp_path / "x.adaptree").exists()


def test_strange_files_in_a_version_stay_behind(store: Store, tmp_path: Path) -> None:
    folder = store.path_of("reviews")
    for name in (".DS_Store", "notes.txt", "weights.bin", "X.svg"):
        (folder / name).write_text("x")
    (folder / "link.svg").symlink_to("/etc/passwd")
    pack({"reviews@1": folder}, tmp_path / "x.adaptree")
    assert set(contents(tmp_path / "x.adaptree")) == {
        MANIFEST, *(f"tasks/reviews/1/{name}" for name in ("README.md", RECORD, TENSORS, "SHA256SUMS"))
    }  # fmt: skip


@pytest.mark.parametrize("what", ["missing", "folder", "text", "empty", "fifo"])
def test_what_is_no_bundle_is_said(tmp_path: Path, what: str) -> None:
    file = tmp_path / "x.adaptree"
    if what == "folder":
        file.mkdir()
    elif what == "fifo":
        os.mkfifo(file)
    elif what != "missing":
        file.write_bytes(b"text,label\n" * 20 if what == "text" else b"")
    assert "x.adaptree" in refused(file, tmp_path / "out")


# A zip in any other form.


def rezipped(**options: Any) -> Callable[[Files], bytes]:
    def write(files: Files) -> bytes:
        out = BytesIO()
        with zipfile.ZipFile(out, "w", **options) as zipped:
            for name, data in sorted(files.items()):
                zipped.writestr(name, data)
        return out.getvalue()

    return write


def special(mode: int, name: str = "tasks/reviews/1/README.md") -> Callable[[Files], bytes]:
    def write(files: Files) -> bytes:
        out = BytesIO()
        with zipfile.ZipFile(out, "w") as zipped:
            for each, data in sorted(files.items()):
                info = zipfile.ZipInfo(each)
                info.external_attr = (mode if each == name else 0o100644) << 16
                zipped.writestr(info, data)
        return out.getvalue()

    return write


ZIPS: dict[str, Callable[[Files], bytes]] = {
    "compressed": rezipped(compression=zipfile.ZIP_DEFLATED),
    "a bomb": lambda files: rezipped(compression=zipfile.ZIP_DEFLATED)({**files, "tasks/x": b"\0" * 10**7}),
    "dated": rezipped(),
    "a link": special(0o120777),
    "a device": special(0o020666),
    "setuid": special(0o104755),
}


@pytest.mark.parametrize("how", ZIPS)
def test_a_zip_of_another_form_is_refused(bundle: Path, tmp_path: Path, how: str) -> None:
    bundle.write_bytes(ZIPS[how](contents(bundle)))
    refused(bundle, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def field(offset: int, value: int, form: str) -> Callable[[bytearray, int], None]:
    return lambda data, at: struct.pack_into(form, data, at + offset, value)


LOCAL, CENTRAL, END = b"PK\3\4", b"PK\1\2", b"PK\5\6"
FIELDS = {
    "encrypted": (CENTRAL, field(8, 1, "<H")),
    "deflated": (CENTRAL, field(10, 8, "<H")),
    "another date": (CENTRAL, field(14, 99, "<H")),
    "another CRC": (CENTRAL, field(16, 99, "<I")),
    "packed size": (CENTRAL, field(20, 1, "<I")),
    "huge": (CENTRAL, field(24, 0xFFFFFFFE, "<I")),
    "zip64 without its extra": (CENTRAL, field(24, 0xFFFFFFFF, "<I")),
    "a long name": (CENTRAL, field(28, 60000, "<H")),
    "an extra": (CENTRAL, field(30, 4, "<H")),
    "a comment": (CENTRAL, field(32, 4, "<H")),
    "another disk": (CENTRAL, field(34, 1, "<H")),
    "a link": (CENTRAL, field(38, 0o120777 << 16, "<I")),
    "an offset": (CENTRAL, field(42, 7, "<I")),
    "another size before the contents": (LOCAL, field(22, 5, "<I")),
    "another CRC before the contents": (LOCAL, field(14, 5, "<I")),
    "streamed": (LOCAL, field(6, 8, "<H")),
    "another name before the contents": (LOCAL, field(31, 65, "<B")),
    "no files": (END, field(10, 0, "<H")),
    "more files": (END, field(10, 9999, "<H")),
    "a longer directory": (END, field(12, 9999999, "<I")),
    "a directory elsewhere": (END, field(16, 3, "<I")),
    "a zip64 directory": (END, field(16, 0xFFFFFFFF, "<I")),
    "a comment at the end": (END, field(20, 9, "<H")),
}


@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("what", FIELDS)
def test_every_field_of_the_zip_counts(bundle: Path, tmp_path: Path, what: str, which: str) -> None:
    sign, change = FIELDS[what]
    data = bytearray(bundle.read_bytes())
    change(data, data.find(sign) if which == "first" else data.rfind(sign))
    bundle.write_bytes(data)
    refused(bundle, tmp_path / "out")


def test_nothing_fits_before_between_or_behind_the_files(bundle: Path, tmp_path: Path) -> None:
    data = bundle.read_bytes()
    places = [0, data.find(LOCAL, 4), data.find(CENTRAL), data.rfind(END), len(data)]
    for number, at in enumerate(places):
        bundle.write_bytes(data[:at] + b"#!/bin/sh\n" + data[at:])
        refused(bundle, tmp_path / f"out{number}")
    for cut in (1, 20, 22, 100, len(data) // 2):
        bundle.write_bytes(data[:-cut])
        refused(bundle, tmp_path / f"cut{cut}")


def test_one_file_twice_or_in_another_place_is_refused(bundle: Path, tmp_path: Path) -> None:
    files = sorted(contents(bundle).items())
    for number, order in enumerate([[*files, files[-1]], files[::-1], [files[1], files[0], *files[2:]]]):
        with bundle.open("wb") as out:
            archive.write(out, ((Entry(n, len(d), crc32(d)), [d]) for n, d in order))
        assert "twice, or not in its place" in refused(bundle, tmp_path / f"out{number}")


@pytest.mark.parametrize(
    "name",
    [
        "../evil", "/etc/evil", "tasks/../../evil", "tasks/reviews/1/../../../evil", "tasks/reviews/1/sub/task.json",
        "tasks\\reviews\\1\\x.svg", "tasks/reviews/1/x.svg\0", "C:/evil", "tasks/reviews/1/weights.bin",
        "tasks/reviews/1/run.py", "tasks/Reviews/1/task.json", "tasks/reviews/0/task.json", "tasks/reviews/1/",
        "tasks/reviews/1.removed", "tasks/reviews/1.needed", "tasks/other/1.notes", "tasks/reviews/2.notes",
        "tasks/reviews/Bad.tag", "tasks/a/b/c/1/task.json", "tasks/reviews/1/1/task.json", "x" * 200, "y" * 400,
    ],
)  # fmt: skip
def test_names_that_are_none_of_a_task_are_refused(bundle: Path, tmp_path: Path, name: str) -> None:
    write(bundle, {**contents(bundle), name: b"x"})
    deep = tmp_path / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    before = {path for path in tmp_path.rglob("*") if "out" not in path.parts}
    refused(bundle, deep / "out")
    assert {path for path in tmp_path.rglob("*") if "out" not in path.parts} == before
    assert not Path("/etc/evil").exists()


@pytest.mark.slow
def test_zip64_is_written_where_it_is_needed_and_read_back(
    store: Store, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LARGE", 1000)
    big = tmp_path / "big.adaptree"
    pack({"reviews@1": store.path_of("reviews"), "lang/qu@1": store.path_of("lang/qu")}, big)
    assert b"PK\6\6" in big.read_bytes()
    assert contents(big) == contents(bundle), "other programs read it"
    assert unpack(big, tmp_path / "out").versions == ["lang/qu@1", "reviews@1"]
    monkeypatch.undo()
    refused(big, tmp_path / "not needed")
    many = tmp_path / "many.zip"
    with many.open("wb") as out:
        archive.write(out, ((Entry(f"{n:06}", 0, 0), []) for n in range(70_000)))
    with many.open("rb") as file, zipfile.ZipFile(many) as zipped:
        assert [each.entry.name for each in archive.read(file)] == zipped.namelist()


# The manifest, and what the files say.


def edited(**changes: Any) -> Callable[[Files], Files]:
    def edit(files: Files) -> Files:
        said = {**json.loads(files[MANIFEST]), **changes}
        return {**files, MANIFEST: json.dumps({key: value for key, value in said.items() if value != "gone"}).encode()}

    return edit


MANIFESTS: dict[str, tuple[Callable[[Files], Files], str]] = {
    "a newer format": (edited(format=2), "pip install --upgrade"),
    "no format": (edited(format="gone"), "lacks some"),
    "true is no format": (edited(format=True), "not known, lacks some"),
    "an unknown field": (edited(run="rm -rf"), "not known"),
    "no tasks": (edited(tasks=[]), "or none"),
    "others": (edited(tasks=["nobody@1"]), "names tasks that are not there"),
    "one twice": (edited(tasks=["reviews@1", "reviews@1"]), "names tasks"),
    "numbers": (edited(tasks=[1]), "wrong type"),
    "no files": (edited(files={}), "only in the zip"),
    "digests that are none": (edited(files=["x"]), "wrong type"),
    "a list": (lambda files: {**files, MANIFEST: b"[]"}, "not known"),
    "broken": (lambda files: {**files, MANIFEST: files[MANIFEST][:-20]}, "broken JSON"),
    "lists within lists": (lambda files: {**files, MANIFEST: b"[" * 900}, "not what adaptree writes"),
    "long": (lambda files: {**files, MANIFEST: files[MANIFEST] + b" " * 9999}, "larger than it can be"),
    "not in ASCII": (lambda files: {**files, MANIFEST: "é".encode() + files[MANIFEST]}, "not what adaptree writes"),
    "missing": (lambda files: {name: data for name, data in files.items() if name != MANIFEST}, "no adaptree.json"),
}  # fmt: skip


@pytest.mark.parametrize("what", MANIFESTS)
def test_a_manifest_that_is_not_ours_is_refused(bundle: Path, tmp_path: Path, what: str) -> None:
    change, why = MANIFESTS[what]
    write(bundle, change(contents(bundle)), manifest=False)
    assert why in refused(bundle, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def record(**changes: Any) -> Callable[[Files], Files]:
    def edit(files: Files) -> Files:
        path = f"tasks/reviews/1/{RECORD}"
        values = {**json.loads(files[path]), **changes}
        values.pop("checksum")
        return {**files, path: json.dumps({**values, "checksum": checksum(values)}).encode()}

    return edit


def file(name: str, data: bytes) -> Callable[[Files], Files]:
    return lambda files: {**files, f"tasks/reviews/1/{name}": data}


CONTENTS: dict[str, tuple[Callable[[Files], Files], str]] = {
    "other tensors": (file(TENSORS, save({"x": torch.zeros(2)})), "not those that its record is about"),
    "another size": (record(file_bytes=7), "not those that its record is about"),
    "no record": (file(RECORD, b"{}"), "checksum"),
    "a record of the wrong type": (record(labels="x"), "wrong type"),
    "a newer record": (record(format=99), "pip install --upgrade"),
    "a field of a record that nobody knows": (record(shell="rm"), "a field 'shell' that this adaptree does not know"),
    "script in a figure": (file("x.svg", b"<svg><script>alert(1)</script></svg>"), "script or links"),
    "a handler in a figure": (file("x.svg", b"<svg onload='alert(1)'/>"), "script or links"),
    "a link in a figure": (file("x.svg", b"<svg><a xlink:href='http://x'/></svg>"), "script or links"),
    "a large figure": (file("x.svg", b" " * 1_000_001), "are the most"),
    "a large record": (file(RECORD, b" " * 1_000_001), "are the most"),
    "no signatures": (file("task.sig", b""), "holds no signatures"),
    "strange signatures": (file("task.sig", b"me too\n"), "holds no signatures"),
    "no tensors": (lambda files: {n: d for n, d in files.items() if not n.startswith(f"tasks/reviews/1/{TENSORS}")},
                   f"has no {TENSORS}"),
    "a task within a version": (
        lambda files: files | {n.replace("reviews/1", "reviews/1/1"): d for n, d in files.items() if "reviews" in n},
        "at once"),
    "a note cut off": (lambda files: {**files, "tasks/reviews/1.notes": seal("a note")[:-1].encode()}, "checksum"),
    "a note that is no text": (lambda files: {**files, "tasks/reviews/1.notes": b"\xff\xfe"}, "not text"),
    "a tag of nothing": (lambda files: {**files, "tasks/reviews/stable.tag": seal("x").encode()}, "names no version"),
}  # fmt: skip


@pytest.mark.parametrize("what", CONTENTS)
def test_files_that_contradict_each_other_are_refused(bundle: Path, tmp_path: Path, what: str) -> None:
    change, why = CONTENTS[what]
    write(bundle, change(contents(bundle)))
    assert why in refused(bundle, tmp_path / "out")


def test_a_changed_file_without_its_digest_is_refused(bundle: Path, tmp_path: Path) -> None:
    files = contents(bundle)
    for number, name in enumerate(files):
        if name != MANIFEST:
            write(bundle, {**files, name: files[name] + b" "}, manifest=False)
            assert "digest does not match" in refused(bundle, tmp_path / str(number))


# The header of the tensors.


def header(entries: Any, data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


HEADERS = {
    "nothing": b"",
    "cut off": b"\x10\0\0",
    "longer than the file": (2**60).to_bytes(8, "little") + b"{}",
    "not JSON": (4).to_bytes(8, "little") + b"{{{{",
    "a list": header([]),
    "a pickle": b"\x80\x04\x95" + b"\0" * 40,
    "a number": header({"w": 3}),
    "a field more": header({"w": tensor(code="x")}, b"\0" * 4),
    "an unknown type": header({"w": tensor("F7")}, b"\0" * 4),
    "a type of another kind": header({"w": tensor(["F32"])}, b"\0" * 4),
    "less than nothing": header({"w": tensor(shape=[-1])}, b"\0" * 4),
    "true as a size": header({"w": tensor(shape=[True])}, b"\0" * 4),
    "too many axes": header({"w": tensor(shape=[1] * 9)}, b"\0" * 4),
    "another size": header({"w": tensor(shape=[2])}, b"\0" * 4),
    "a hole": header({"w": tensor(offsets=[4, 8])}, b"\0" * 8),
    "two in one place": header({"w": tensor(), "x": tensor()}, b"\0" * 4),
    "more behind": header({"w": tensor()}, b"\0" * 5),
    "backwards": header({"w": tensor(offsets=[4, 0])}, b"\0" * 4),
    "metadata of numbers": header({"__metadata__": {"x": 1}, "w": tensor()}, b"\0" * 4),
    "a long name": header({"w" * 1001: tensor()}, b"\0" * 4),
    "terabytes": header({"w": tensor(shape=[2**40], offsets=[0, 2**42])}, b"\0" * 4),
    "a huge header": (1_500_000).to_bytes(8, "little") + b" " * 1_500_000,
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_that_cannot_be_is_refused_before_tensors_are_loaded(what: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_header(BytesIO(HEADERS[what]), len(HEADERS[what]))


def test_the_headers_that_safetensors_writes_are_good() -> None:
    for tensors in (
        {},
        {"a": torch.zeros(0, 3), "b": torch.ones(()), "c": torch.ones(2, 3).half(), "d": torch.ones(5) > 0},
    ):
        data = save(tensors, metadata={"format": "pt"})
        check_header(BytesIO(data), len(data))

"""A task whose checksums hold but whose record or tensors do not fit is refused in one line, and never answers."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from adaptree.data.foreign_json import MOST_NESTED, has_type, loads
from adaptree.errors import AdaptreeError, TaskCorrupt, WrongBase
from adaptree.models.base import Base
from adaptree.models.loading import load_base
from adaptree.tasks import record as records
from adaptree.tasks.record import NEEDS, RECORD, TENSORS, Record, checksum
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task

OLD = Path(__file__).parent.parent / "compat" / "store-0.1"
# Every family of methods, from bottlenecks to sparse δs, whole weights, a bag of words and fusion; and every kind.
TASKS = [
    "words", "a", "lang/xx", "long", "pairs", "several", "number", "numbers", "choices", "answers", "tags", "spans",
    "fused", "on-language", "methods/full", "methods/pal", "methods/head", "methods/rand-sft", "methods/diff-pruning",
    "methods/tfidf", "methods/tfidf-number", "methods/deep", "methods/lora-all", "methods/norm",
]  # fmt: skip
Values = dict[str, Any]
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def base() -> Base:
    return load_base(OLD / "base")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved tasks, each in a folder with its parts."""
    folder = tmp_path_factory.mktemp("good")
    for name in TASKS:
        copied(OLD / "store" / "tasks" / name / "1", folder / name)
        needs = json.loads((folder / name / RECORD).read_text())["extra"].get(NEEDS, {})
        for number, part in enumerate(needs):
            copied(OLD / "store" / "tasks" / part.replace("@", "/"), folder / name / "parts" / str(number))
    return {name: folder / name for name in TASKS}


def copied(folder: Path, to: Path) -> Path:
    """A copy of a task's files, without its figures and its card."""
    return Path(shutil.copytree(folder, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.svg", "*.md")))


def forge(folder: Path, values: Values | None = None, tensors: Tensors | bytes | None = None) -> Path:
    """Write other contents over a saved task's, with checksums that hold."""
    values = json.loads((folder / RECORD).read_text()) if values is None else values
    if tensors is not None:
        data = tensors if isinstance(tensors, bytes) else save(tensors)
        (folder / TENSORS).write_bytes(data)
        values |= {"digest": hashlib.sha256(data).hexdigest(), "file_bytes": len(data)}
    values.pop("checksum", None)
    (folder / RECORD).write_text(json.dumps({**values, "checksum": checksum(values)}))
    return folder


def refused(base: Base, folder: Path) -> str:
    """What is said when a folder's task is used, which must be one line that names the task's damage."""
    with pytest.raises(TaskCorrupt) as caught:
        base.bind(Task.load(folder)).predict("the old lion")
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 500
    assert "is damaged: task." in said
    return said


def test_good_tasks_of_every_kind_are_bound(base: Base, good: dict[str, Path]) -> None:
    for folder in good.values():
        base.bind(Task.load(folder))


# Tensors


def _with(value: float) -> Callable[[Tensor], Tensor]:
    def put(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[-1] = value
        return tensor

    return put


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "an axis more": lambda t: t[None],
    "an axis less": lambda t: t.reshape(-1) if t.dim() > 1 else t.sum(),
    "a row more": lambda t: torch.cat([t, t[-1:]]),
    "a row less": lambda t: t[:-1],
    "a column less": lambda t: t[..., :-1],
    "nothing in it": lambda t: t[:0],
    "halves": lambda t: t.half() if t.is_floating_point() else t.to(torch.int16),
    "doubles": lambda t: t.double() if t.is_floating_point() else t.long(),
    "bf16": lambda t: t.bfloat16(),
    "whole numbers": lambda t: t.to(torch.int32),
    "eight bits": lambda t: t.to(torch.float8_e4m3fn) if t.is_floating_point() else t.to(torch.int8),
    "yes or no": lambda t: t != 0,
    "NaN": _with(float("nan")),
    "infinity": _with(float("inf")),
    "minus infinity": _with(float("-inf")),
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_tensor_is_refused(base: Base, good: dict[str, Path], tmp_path: Path, name: str, change: str) -> None:
    task = Task.load(good[name])
    names = sorted(task.weights)
    for which in {names[0], names[len(names) // 2], "head.bias"} - {"tfidf.words"}:  # another letter is another word
        old = task.tensors[which]
        if not old.is_floating_point() and ("inf" in change or change == "NaN"):
            continue
        new = CHANGES[change](old).contiguous()
        if (new.shape, new.dtype) == (old.shape, old.dtype) and torch.equal(new, old):
            continue
        said = refused(base, forge(copied(good[name], tmp_path), tensors={**task.tensors, which: new}))
        assert which in said or "sparse" in which or "tfidf" in which or name.startswith("methods/tfidf")


@pytest.mark.parametrize("name", TASKS)
def test_missing_and_surplus_tensors_are_refused(base: Base, good: dict[str, Path], tmp_path: Path, name: str) -> None:
    tensors = Task.load(good[name]).tensors
    for which in tensors:
        if not which.startswith("probe."):
            less = {other: tensor for other, tensor in tensors.items() if other != which}
            assert f"lacks the weight '{which}'" in refused(base, forge(copied(good[name], tmp_path), tensors=less))
            break
    for more in ("0.attention.extra", "head.extra", "norm.nowhere.weight", "x", "delta.x"):
        folder = forge(copied(good[name], tmp_path), tensors={**tensors, more: torch.zeros(2)})
        assert f"has a weight '{more}'" in refused(base, folder)


def test_sparse_positions_that_are_no_places_in_the_base_are_refused(
    base: Base, good: dict[str, Path], tmp_path: Path
) -> None:
    tensors = Task.load(good["methods/rand-sft"]).tensors
    code, values = tensors["sparse.positions"], tensors["sparse.values"]
    for bad, why in [
        (torch.cat([code[:-1], torch.tensor([255], dtype=torch.uint8)]), "cut off"),
        (torch.cat([code, torch.tensor([0], dtype=torch.uint8)]), "positions, and"),
        (torch.full_like(code, 255) & torch.tensor(127, dtype=torch.uint8), "positions"),
        (torch.tensor([*[255] * 8, 127], dtype=torch.uint8), "positions"),
    ]:
        folder = forge(copied(good["methods/rand-sft"], tmp_path), tensors={**tensors, "sparse.positions": bad})
        assert why in refused(base, folder)
    far = torch.tensor([255, 255, 255, 255, 127], dtype=torch.uint8)
    folder = forge(
        copied(good["methods/rand-sft"], tmp_path),
        tensors={**tensors, "sparse.positions": far, "sparse.values": values[:1].clone()},
    )
    assert "not in the base" in refused(base, folder)


def header(entries: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


HEADERS = {
    "terabytes": header({"w": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}}, b"\0" * 64),
    "a shape beyond all": header({"w": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}, b"\0" * 4),
    "nothing of a large shape": header({"w": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}),
    "less than nothing": header({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"\0" * 4),
    "an unknown type": header({"w": {"dtype": "F7", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
    "offsets within each other": header({
        "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "x": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
    }, b"\0" * 12),
    "a hole": header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"\0" * 8),
    "a long header": (2**60).to_bytes(8, "little") + b"{}",
    "no header": b"",
    "a list": header([]),  # type: ignore[arg-type]
    "numbers": header({"w": 3}),
    "deep": (10**5).to_bytes(8, "little") + b"[" * 10**5,
    "a pickle": b"\x80\x04\x95" + b"\0" * 40,
}  # fmt: skip


@pytest.mark.parametrize("what", HEADERS)
def test_a_file_of_tensors_that_cannot_be_is_refused(
    base: Base, good: dict[str, Path], tmp_path: Path, what: str
) -> None:
    refused(base, forge(copied(good["words"], tmp_path), tensors=HEADERS[what]))


# The record


def labelled(values: Values) -> bool:
    return bool(values["labels"])


RECORDS: dict[str, Callable[[Values], Values | None]] = {
    "a label twice": lambda r: {"labels": [*r["labels"][:-1], r["labels"][0]]} if labelled(r) else None,
    "a label more": lambda r: {"labels": [*r["labels"], "Z"]} if labelled(r) else None,
    "a label less": lambda r: {"labels": r["labels"][1:]} if labelled(r) else None,
    "no labels": lambda r: {"labels": []} if labelled(r) else None,
    "more labels than rows in the head": lambda r: {"labels": [str(i) for i in range(500)]} if labelled(r) else None,
    "labels that are lists": lambda r: {"labels": [[label] for label in r["labels"]]} if labelled(r) else None,
    "labels that are true": lambda r: {"labels": [True, False, "x"]} if labelled(r) else None,
    "a pooling that there is not": lambda r: {"pooling": "sum"},
    "no pooling": lambda r: {"pooling": ""},
    "max_length 0": lambda r: {"max_length": 0},
    "max_length below 0": lambda r: {"max_length": -64},
    "max_length above the base's": lambda r: {"max_length": 65},
    "max_length beyond all numbers": lambda r: {"max_length": 10**15},
    "max_length without room for a word": lambda r: {"max_length": 2},
    "max_length 1.5": lambda r: {"max_length": 1.5},
    "max_length in words": lambda r: {"max_length": "64"},
    "max_length true": lambda r: {"max_length": True},
    "no method": lambda r: {"method": ""},
    "half a method": lambda r: {"method": "houlsby(size=4"},
    "a method of no size": lambda r: {"method": "houlsby(size=0)"},
    "a method of another size": lambda r: {"method": "houlsby(size=5)"},
    "a method of a huge size": lambda r: {"method": "houlsby(size=1000000000000)"},
    "a method of a size beyond all numbers": lambda r: {"method": "houlsby(size=100000000000000000000)"},
    "a method of huge depth": lambda r: {"method": "houlsby_deep(size=4, depth=1000000000)"},
    "a method in layers that there are not": lambda r: {"method": "houlsby(size=4, layers=0-999999999)"},
    "a method of more layers than there are": lambda r: {"method": "top(n=99)"},
    "another method": lambda r: {"method": "lora(rank=3)"},
    "a method with a field that it has not": lambda r: {"method": "houlsby(colour=red)"},
    "a method of a megabyte": lambda r: {"method": "houlsby(" + "x" * 10**6 + ")"},
    "columns that are a list": lambda r: {"columns": ["text"]},
    "a column that is a number": lambda r: {"columns": {**r["columns"], "text": 3}},
    "a column that is an object": lambda r: {"columns": {**r["columns"], "text": {"a": "b"}}},
    "a base that is a text": lambda r: {"base": "minilm"},
    "a fingerprint that is a number": lambda r: {"base": {**r["base"], "fingerprint": 3}},
    "needs that are a list": lambda r: {"extra": {**r["extra"], "needs": ["a@1"]}},
    "on that is a list": lambda r: {"extra": {**r["extra"], "on": ["a@1"]}},
    "extra that is a list": lambda r: {"extra": [1]},
}  # fmt: skip
UNREAD = (
    "a pooling that there is not", "no pooling", "max_length 0", "max_length above the base's",
    "max_length beyond all numbers", "max_length without room for a word",
)  # fmt: skip


@pytest.mark.parametrize("change", RECORDS)
def test_a_changed_record_is_refused(base: Base, good: dict[str, Path], tmp_path: Path, change: str) -> None:
    tried = 0
    for name, folder in good.items():
        values = json.loads((folder / RECORD).read_text())
        if (changes := RECORDS[change](values)) is None:
            continue
        if "tfidf" in name and change in UNREAD:
            continue  # it neither encodes nor pools
        refused(base, forge(copied(folder, tmp_path), {**values, **changes}))
        tried += 1
    assert tried > 8


OF_KINDS: list[tuple[str, Values]] = [
    ("number", {"mean": None}), ("number", {"mean": "0"}), ("number", {"std": 0.0}), ("number", {"std": -1.0}),
    ("number", {"std": [1.0]}), ("number", {"std": True}), ("numbers", {"means": [0.0]}),
    ("numbers", {"stds": [1.0, 0.0]}),
    ("numbers", {"targets": ["joy", 3]}), ("numbers", {"targets": ["joy", "joy"]}),
    ("numbers", {"targets": ["joy", "fear", "awe"], "means": [0.0] * 3, "stds": [1.0] * 3}),
    ("several", {"threshold": 7.0}), ("several", {"threshold": "high"}), ("answers", {"longest": 0}),
    ("answers", {"overlap": 1.0}), ("answers", {"overlap": 5}), ("answers", {"n_best": -1}),
    ("answers", {"impossible": 1}), ("lang/xx", {"share": 0.0}), ("lang/xx", {"share": 3.0}),
    ("lang/xx", {"whole_words": "yes"}), ("long", {"windows": 1}),
    ("tags", {"scheme": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "extra"), OF_KINDS)
def test_what_a_kind_keeps_is_checked(
    base: Base, good: dict[str, Path], tmp_path: Path, name: str, extra: Values
) -> None:
    values = json.loads((good[name] / RECORD).read_text())
    refused(base, forge(copied(good[name], tmp_path), {**values, "extra": {**values["extra"], **extra}}))


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-1, 1) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(TASKS), st.sampled_from([f.name for f in fields(Record) if f.name != "format"]), ANY)
def test_any_value_in_any_field_is_read_or_refused_in_one_line(
    base: Base, good: dict[str, Path], tmp_path: Path, name: str, field: str, value: Any
) -> None:
    folder = forge(copied(good[name], tmp_path), {**json.loads((good[name] / RECORD).read_text()), field: value})
    hint = records._types()[field]
    said: AdaptreeError | None = None
    try:
        base.bind(Task.load(folder))
    except AdaptreeError as error:
        said = error
    if said is None:
        assert value is None or has_type(value, hint)
    else:
        assert "\n" not in str(said)
        assert field == "base" or not isinstance(said, WrongBase)


def test_labels_without_number_are_refused(base: Base, good: dict[str, Path], tmp_path: Path) -> None:
    values = json.loads((good["words"] / RECORD).read_text())
    said = refused(base, forge(copied(good["words"], tmp_path), {**values, "labels": list(range(10**5 + 1))}))
    assert "100,001 labels" in said


def test_a_task_that_needs_itself_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    record = Record(name="a", kind="classify", method="head", base={"name": "b", "fingerprint": "f"})
    saved = store.add(Task(record, {"w": torch.ones(2)}))
    folder = tmp_path / "tasks" / "a" / "1"
    forge(folder, {**saved.record.to_json(), "extra": {NEEDS: {"a@1": saved.record.digest}}})
    with pytest.raises(TaskCorrupt, match="part of itself"):
        store["a"]


# JSON

TEXTS: dict[str, tuple[str, str]] = {
    "a key twice": ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is there twice"),
    "NaN": ('{"a": NaN}', "NaN is not a number"),
    "infinity": ('{"a": [-Infinity]}', "-Infinity is not a number"),
    "a number that becomes infinity": ('{"a": 1e999}', "1e999 is too large"),
    "a huge whole number": ('{"a": 1' + "0" * 400 + "}", "of 401 digits is too large"),
    "a whole number that Python will not read": ('{"a": 1' + "0" * 10_000 + "}", "of 10,001 digits is too large"),
    "just too large": ('{"a": 18446744073709551616}', "too large"),
    "deep lists": ("[" * 5000 + "]" * 5000, "within each other"),
    "lists that are only just too deep": ("[" * (MOST_NESTED + 2) + "]" * (MOST_NESTED + 2), "within each other"),
    "deep objects": ('{"a":' * 300 + "1" + "}" * 300, "within each other"),
}


@pytest.mark.parametrize("what", TEXTS)
def test_json_that_others_read_otherwise_is_refused(good: dict[str, Path], tmp_path: Path, what: str) -> None:
    text, why = TEXTS[what]
    with pytest.raises(ValueError, match=re.escape(why)):
        loads(text)
    folder = copied(good["words"], tmp_path)
    (folder / RECORD).write_text('{"extra": ' + text + "," + (folder / RECORD).read_text()[1:])
    with pytest.raises(TaskCorrupt, match="broken JSON") as refusal:
        Task.load(folder)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_json_as_it_should_be_is_read() -> None:
    nested: Any = 1
    for _ in range(MOST_NESTED):
        nested = [nested]
    values = {"a": [1, -2.5, None, True, "x"], "b": nested, "c": 2**64 - 1}
    assert loads(json.dumps(values)) == values
    assert loads('{"a": Infinity}', finite=False) == {"a": float("inf")}


@pytest.mark.parametrize(
    ("value", "hint", "fits"),
    [
        (1, int, True), (True, int, False), (1, float, True), (float("nan"), float, False), (True, float, False),
        ("a", str | int, True), (None, str | None, True), (None, str, False), ([1, 2], list[int], True),
        ([1, "a"], list[int], False), ({"a": {"b": 1.5}}, dict[str, dict[str, float]], True),
        ({"a": {"b": "c"}}, dict[str, dict[str, float]], False), (["a"], tuple[str, ...], True),
        ("ab", list[str], False), ({}, Any, True), ([], dict[str, int], False), (0, bool, False),
    ],
)  # fmt: skip
def test_a_value_has_a_type_or_not(value: Any, hint: Any, fits: bool) -> None:
    assert has_type(value, hint) == fits


def test_a_record_that_is_too_large_is_not_read(good: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(good["words"], tmp_path)
    with (folder / RECORD).open("r+b") as file:
        file.truncate(10**10)  # a hole: it takes no room on the disk
    with pytest.raises(TaskCorrupt, match=r"10,000,000,000 bytes, and at most"):
        Task.load(folder)
    with (folder / TENSORS).open("r+b") as file:
        file.truncate(10**12)
    shutil.copy(good["words"] / RECORD, folder / RECORD)
    with pytest.raises(TaskCorrupt, match=r"1,000,000,000,000 bytes, and at most"):
        Task.load(folder)


def test_binding_the_same_method_again_does_not_initialise_it_again(
    base: Base, good: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task.load(good["words"])
    base.bind(task)
    monkeypatch.setattr("adaptree.methods.houlsby.Houlsby.init", lambda *args: pytest.fail("initialised again"))
    base.bind(task)

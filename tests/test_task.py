from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptree import compose
from adaptree.errors import BadName, StoreError, TaskCorrupt, TaskNotFound
from adaptree.tasks.names import NAME, check_name, parse_reference, rename_references
from adaptree.tasks.record import FORMAT, Record, checksum
from adaptree.tasks.task import Task


def record(**changes: object) -> Record:
    values = {"name": "reviews", "kind": "classify", "method": "houlsby(size=2)", "base": {"name": "minilm"}, **changes}
    return Record(**values)  # type: ignore[arg-type]


def small(**changes: object) -> Task:
    tensors = {"0.attention.down": torch.randn(4, 2), "head.bias": torch.randn(2), "probe.logits": torch.randn(3, 2)}
    return Task(record(**changes), tensors)


def houlsby(size: int, width: int = 384, layers: int = 6) -> dict[str, torch.Tensor]:
    """The tensors of a houlsby task, named as they are on a BERT."""
    tensors = {"head.weight": torch.randn(2, width), "head.bias": torch.zeros(2), "probe.logits": torch.randn(4, 2)}
    norms = ["embeddings"]
    for layer in range(layers):
        for site in ("attention", "ffn"):
            tensors[f"{layer}.{site}.down"] = torch.randn(width, size)
            tensors[f"{layer}.{site}.down_bias"] = torch.zeros(size)
            tensors[f"{layer}.{site}.up"] = torch.randn(size, width)
            tensors[f"{layer}.{site}.up_bias"] = torch.zeros(width)
        norms += [f"encoder.layer.{layer}.attention.output", f"encoder.layer.{layer}.output"]
    for norm in norms:
        tensors[f"norm.{norm}.LayerNorm.weight"] = torch.ones(width)
        tensors[f"norm.{norm}.LayerNorm.bias"] = torch.zeros(width)
    return tensors


# names


@pytest.mark.parametrize("name", ["a", "0", "reviews-2_x", "lang/qu", "a" * 64, "a" * 64 + "/" + "b" * 64])
def test_a_good_name_is_itself(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("Reviews", "reviews"), ("my reviews!", "my-reviews"), ("_x", "x"), ("", "my-task"), ("a/b/c", "a/b-c"),
        ("/etc", "etc"), ("../up", "up"), ("a/", "a"), ("Größe", "groe"), ("reviews@3", "reviews"), ("x\n", "x"),
        ("a" * 65, "a" * 64), ("你好", "my-task"), ("-", "my-task"),
    ],
)  # fmt: skip
def test_a_bad_name_gets_the_rule_and_a_good_one(name: str, offered: str) -> None:
    with pytest.raises(BadName) as caught:
        check_name(name)
    assert "a-z, 0-9, '_' and '-'" in caught.value.what
    assert caught.value.hint == f"Try '{offered}'."


@given(st.text())
def test_what_is_offered_for_any_name_is_good(name: str) -> None:
    try:
        check_name(name)
    except BadName as error:
        check_name(error.hint.removeprefix("Try '").removesuffix("'."))
    else:
        assert NAME.fullmatch(name)


def test_a_reference_is_a_name_and_perhaps_a_version() -> None:
    assert parse_reference("reviews") == ("reviews", None)
    assert parse_reference("lang/qu@12") == ("lang/qu", 12)
    for version in ("stable", "0", "-1", "", "1.5", "²", "9" * 5000):
        with pytest.raises(TaskNotFound, match="versions are numbers"):
            parse_reference(f"reviews@{version}")
    with pytest.raises(BadName):
        parse_reference("@3")


REFERENCES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,3}(/[a-z0-9]{1,2})?(@[1-9])?", fullmatch=True)
COMPOSITIONS = st.recursive(
    REFERENCES.map(compose.parse),
    lambda parts: st.one_of(
        st.lists(parts, min_size=1, max_size=3).map(lambda inside: compose.stack(*inside)),
        REFERENCES.map(lambda name: compose.drop(name, layers="0-1")),
        st.tuples(REFERENCES, REFERENCES).map(lambda pair: compose.average(*pair, weights=[1, 0])),
    ),
    max_leaves=5,
)


@given(COMPOSITIONS, st.dictionaries(st.sampled_from(["1", "0-1", "stack", "average"]), REFERENCES), st.data())
def test_references_are_renamed_in_a_text_as_in_the_composition_that_it_spells(
    composition: Any, names: dict[str, str], data: st.DataObject
) -> None:
    names |= {name: data.draw(REFERENCES) for name in composition.names}
    assert rename_references(repr(composition), names) == repr(composition.renamed(names))


def test_a_part_of_a_name_a_block_and_an_option_are_no_references() -> None:
    names = {"a@1": "b@2", "stack": "x", "layers": "x", "0-4": "x", "weights": "x", "1": "x"}
    text = "stack(a@1, a@11, my-a@1, drop(lang/a@1, layers='0-4'), average(a@1, stack, weights=[1, 0]))"
    renamed = "stack(b@2, a@11, my-a@1, drop(lang/a@1, layers='0-4'), average(b@2, x, weights=[1, 0]))"
    assert rename_references(text, names) == renamed


# the record


def test_a_record_is_the_same_after_json() -> None:
    before = record(labels=["good", 2], metrics={"test": {"f1": 0.1 + 0.2}}, history=[{"epoch": 1, "loss": 1e-30}])
    assert Record.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_numpy_numbers_and_tuples_become_plain_and_nan_becomes_null() -> None:
    before = record(labels=(np.int64(1), np.str_("x")), history=[{"loss": math.nan, "score": np.float32(0.5)}])
    values = json.loads(json.dumps(before.to_json(), allow_nan=False))
    after = Record.from_json(values)
    assert after.labels == [1, "x"]
    assert after.history == [{"loss": None, "score": 0.5}]


def test_unknown_keys_of_the_same_format_are_left_out() -> None:
    values = record().to_json() | {"mood": "sunny"}
    values["checksum"] = checksum({key: value for key, value in values.items() if key != "checksum"})
    assert Record.from_json(values) == record()


def test_a_newer_format_is_refused_with_a_clear_line() -> None:
    with pytest.raises(StoreError, match=f"format {FORMAT + 1}; this adaptree reads up to {FORMAT}.*upgrade"):
        Record.from_json({**record().to_json(), "format": FORMAT + 1, "checksum": "of another kind"})


def test_a_changed_value_is_noticed() -> None:
    with pytest.raises(TaskCorrupt, match=r"task 'reviews' is damaged: task\.json: its checksum"):
        Record.from_json({**record().to_json(), "seed": 1})


@pytest.mark.parametrize(
    ("changes", "why"), [({"labels": "ab"}, "'labels' has the wrong"), ({"kind": None}, "'kind' is")]
)
def test_a_record_of_wrong_types_is_damaged_not_a_crash(changes: dict[str, object], why: str) -> None:
    values = {**record().to_json(), **changes}
    del values["checksum"]
    with pytest.raises(TaskCorrupt, match=why):
        Record.from_json({**values, "checksum": checksum(values)})


# on disk


def test_saved_and_loaded_is_the_same_to_the_bit(tmp_path: Path) -> None:
    task = small(labels=["a", "b"])
    saved = task.save(tmp_path / "out")
    loaded = Task.load(tmp_path / "out")
    assert loaded.record == saved.record
    assert loaded.tensors.keys() == task.tensors.keys()
    for name, tensor in task.tensors.items():
        assert torch.equal(loaded.tensors[name], tensor)
        assert loaded.tensors[name].data_ptr() % 64 == 0
    assert set(loaded.weights) == {"0.attention.down", "head.bias"}
    assert task.bytes == 4 * (8 + 2)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md",
        "SHA256SUMS",
        "task.json",
        "task.safetensors",
    ]
    assert saved.record.created.endswith("+00:00")
    assert saved.record.versions["torch"]
    assert repr(task) == "Task(reviews: classify into 2 labels, houlsby(size=2) on minilm, 10 weights, 40 bytes)"


def test_the_same_tensors_give_the_same_file(tmp_path: Path) -> None:
    task = small()
    first = task.save(tmp_path / "a")
    second = Task(task.record, dict(reversed(task.tensors.items()))).save(tmp_path / "b")
    assert first.record.digest == second.record.digest
    assert (tmp_path / "a/task.safetensors").read_bytes() == (tmp_path / "b/task.safetensors").read_bytes()


@pytest.mark.parametrize("size", [2, 64])
def test_the_file_is_hardly_larger_than_its_weights(tmp_path: Path, size: int) -> None:
    task = Task(record(), houlsby(size))
    assert len(task.weights) == 76
    task.save(tmp_path / "out")
    assert (tmp_path / "out/task.safetensors").stat().st_size <= 1.05 * task.bytes + 4096


def test_views_shared_and_trained_tensors_are_saved_as_they_are(tmp_path: Path) -> None:
    whole = torch.randn(6, 4)
    trained = torch.nn.Parameter(torch.randn(3))
    tensors = {"a": whole, "b": whole, "row": whole[2], "turned": whole.T, "trained": trained, "none": whole[:0]}
    Task(record(), tensors).save(tmp_path / "out")
    loaded = Task.load(tmp_path / "out").tensors
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor.detach())
    assert not loaded["trained"].requires_grad
    assert all(tensor.is_contiguous() for tensor in loaded.values())


@settings(deadline=None, max_examples=25)  # each example syncs a disk
@given(st.text(max_size=40), st.text(max_size=20))
def test_any_text_in_a_record_comes_back(tmp_path_factory: pytest.TempPathFactory, text: str, label: str) -> None:
    folder = tmp_path_factory.mktemp("any") / "out"
    small(labels=[label], examples=[{"text": text, "label": label}]).save(folder)
    loaded = Task.load(folder).record
    assert (loaded.labels, loaded.examples[0]["text"]) == ([label], text)


def test_surrogates_in_a_text_do_not_break_the_file(tmp_path: Path) -> None:
    for i, text in enumerate(("\udc80", "\ud83d\ude00", "\x00")):
        small(examples=[{"text": text, "label": "a"}]).save(tmp_path / str(i))
        loaded = Task.load(tmp_path / str(i)).record.examples[0]["text"]
        assert loaded.encode("utf-16", "surrogatepass") == text.encode("utf-16", "surrogatepass")


def test_a_saved_folder_is_never_written_over(tmp_path: Path) -> None:
    saved = small().save(tmp_path / "out")
    with pytest.raises(StoreError, match="is there already"):
        small().save(tmp_path / "out")
    assert Task.load(tmp_path / "out").record == saved.record
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is there already"):
        small().save(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    small().save(tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "out"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("fails_at", range(5))
def test_a_write_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, fails_at: int
) -> None:
    calls = iter(range(100))
    real = {"fsync": os.fsync, "rename": os.rename}

    def failing(name: str, *args: object) -> object:
        if next(calls) == fails_at:
            raise OSError(code, os.strerror(code))
        return real[name](*args)  # type: ignore[operator]

    monkeypatch.setattr(os, "fsync", lambda *args: failing("fsync", *args))
    monkeypatch.setattr(os, "rename", lambda *args: failing("rename", *args))
    with pytest.raises(StoreError, match=os.strerror(code)):
        small().save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        small().save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


DAMAGES = {
    "flipped weight": ("task.safetensors", flip, "wrong digest"),
    "flipped header": ("task.safetensors", lambda path: flip(path, 3), "wrong digest"),
    "truncated": ("task.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-7]), "of .* bytes"),
    "empty": ("task.safetensors", lambda path: path.write_bytes(b""), "0 of"),
    "missing": ("task.safetensors", Path.unlink, "missing"),
    "broken record": ("task.json", lambda path: path.write_bytes(path.read_bytes()[:-9]), "broken JSON"),
    "empty record": ("task.json", lambda path: path.write_bytes(b""), "broken JSON"),
    "binary record": ("task.json", lambda path: path.write_bytes(b"\xff\xfe\x00"), "broken JSON"),
    "deep record": ("task.json", lambda path: path.write_text("[" * 100_000), "broken JSON"),
    "a list": ("task.json", lambda path: path.write_text("[]"), "not a record"),
    "edited record": ("task.json", lambda path: path.write_text(path.read_text().replace("classify", "x")), "checksum"),
    "missing record": ("task.json", Path.unlink, "missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_detected_and_named(tmp_path: Path, damage: str) -> None:
    file, harm, why = DAMAGES[damage]
    small().save(tmp_path / "reviews")
    harm(tmp_path / "reviews" / file)
    with pytest.raises(TaskCorrupt, match=f"task 'reviews' is damaged: {file}: .*{why}") as caught:
        Task.load(tmp_path / "reviews")
    assert "train again" in caught.value.hint


def test_a_lost_card_or_an_absent_folder(tmp_path: Path) -> None:
    small().save(tmp_path / "out")
    (tmp_path / "out/README.md").unlink()
    Task.load(tmp_path / "out")
    with pytest.raises(TaskNotFound, match="no such folder"):
        Task.load(tmp_path / "nowhere")


def test_the_record_of_a_task_can_be_replaced(tmp_path: Path) -> None:
    task = small()
    Task(replace(task.record, name="other"), task.tensors).save(tmp_path / "out")
    assert Task.load(tmp_path / "out").record.name == "other"


def test_importing_tasks_and_stores_is_cheap() -> None:
    code = "import sys, adaptree.tasks.store; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"

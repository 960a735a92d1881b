"""A store that an earlier release made is read as it is, and its tasks give the answers that they gave then.

The store is committed beside this file, with what it answered (make_store.py). Where torch and the processor are those
that answered then, the same bits are asked for; elsewhere numbers that are close.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptree as at
from tests.compat.asking import answers, command, machine, numbers
from tests.compat.forms import FORMS, rows, write

OLD = Path(__file__).resolve().parent / "store-0.1"
EXPECTED = json.loads((OLD / "expected.json").read_text())
ENTRIES = {entry["task"]: entry for entry in EXPECTED["entries"]}
CLOSE = 1e-5


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The answers were given by one thread, and bits depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(EXPECTED["machine"]["threads"])
    yield
    torch.set_num_threads(before)


def copied(folder: Path) -> Path:
    """The old folder in another place, as on a user's machine, with bases.json saying where the bases are now."""
    shutil.copytree(OLD, folder)
    places = folder / "store" / "bases.json"
    places.write_text(places.read_text().replace("{here}", str(folder)))
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that the tests read from; one that writes makes its own."""
    return copied(tmp_path_factory.mktemp("compat") / "old")


@pytest.fixture(scope="module")
def bases() -> dict[str, Any]:
    """The bases that were loaded, for all tests."""
    return {}


def comparison() -> tuple[bool, str]:
    """Whether the same bits are asked for, and how to say so."""
    now, then = machine(), EXPECTED["machine"]
    if all(now[key] == then[key] for key in ("torch", "capability", "threads")):
        return True, f"compared bit for bit, as this is the recorded machine {then}"
    return False, f"compared within {CLOSE}, as this machine is {now} and the recorded one {then}"


def differences(found: Any, expected: Any, exact: bool, place: str = "") -> list[str]:
    """Where two JSON values differ; numbers only where they are not close enough, unless they have to be equal."""
    if isinstance(expected, dict) and isinstance(found, dict):
        odd = [f"{place}.{key}: only in one of them" for key in sorted(found.keys() ^ expected.keys())]
        both = [key for key in expected if key in found]
        return odd + [each for key in both for each in differences(found[key], expected[key], exact, f"{place}.{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [each for i, (a, b) in pairs for each in differences(a, b, exact, f"{place}[{i}]")]
    close = isinstance(expected, float) and isinstance(found, float) and not exact
    # What is computed from logits (a perplexity, above all) can be off by more than they are.
    same = math.isclose(found, expected, rel_tol=10 * CLOSE, abs_tol=CLOSE) if close else found == expected
    return [] if same else [f"{place}: {found!r}, not {expected!r}"]


def check(root: Path, entry: dict[str, Any], bases: dict[str, Any]) -> None:
    """Ask one entry's question again, and compare."""
    exact, how = comparison()
    found, expected = json.loads(json.dumps(answers(root, entry, bases))), dict(entry["expected"])
    if "logits" in expected:
        now, then = numbers(found.pop("logits")), numbers(expected.pop("logits"))
        assert now.shape == then.shape, f"{entry['task']}: logits of another shape"
        off = float((now - then).abs().max())
        fine = torch.equal(now, then) if exact else torch.allclose(now, then, rtol=CLOSE, atol=CLOSE)
        assert fine, f"{entry['task']}: logits are off by {off:.3g}; {how}"
    if "predictions" in expected:  # an empty text has none any more; its logits are those of then
        texts = [i for i, given in enumerate(entry["inputs"]) if given != ""]
        found, expected = (
            {**each, "predictions": [each["predictions"][i] for i in texts]} for each in (found, expected)
        )
    wrong = differences(found, expected, exact)
    assert not wrong, f"{entry['task']}: {'; '.join(wrong[:5])}; {how}"


@pytest.mark.filterwarnings("ignore:.*where nobody has scored it yet")
@pytest.mark.parametrize("task", ENTRIES)
def test_answers_are_those_of_then(task: str, root: Path, bases: dict[str, Any]) -> None:
    check(root, ENTRIES[task], bases)


def test_there_is_a_task_of_every_form_and_of_many_methods() -> None:
    assert {entry["form"] for entry in EXPECTED["entries"]} >= {*FORMS, "attached", "several"}
    methods = {row["method"].partition("(")[0] for row in EXPECTED["listed"]}
    assert methods >= {
        "houlsby", "pfeiffer", "parallel", "lora", "bitfit", "lt_sft", "full", "top", "norms", "head", "ia3", "pal",
        "tfidf", "diff_pruning", "fusion",
    }  # fmt: skip


def test_the_list_is_the_same(root: Path) -> None:
    found = json.loads(command("list", "--store", root / "store", "--format", "json"))
    known = [{key: row[key] for key in EXPECTED["listed"][0]} for row in found]  # there may be new columns
    kinds = {"labels": "multilabel", "numbers": "multioutput"}  # once they were called classify and regress
    forms = {entry["task"].partition("@")[0]: entry["form"] for entry in EXPECTED["entries"]}
    assert known == [{**row, "kind": kinds.get(forms.get(row["name"]), row["kind"])} for row in EXPECTED["listed"]]


def test_the_history_has_both_versions(root: Path) -> None:
    found = json.loads(command("history", "words", "--store", root / "store", "--format", "json"))
    assert sorted(row["version"] for row in found) == [1, 2]
    assert not any(row["problem"] for row in found)


@pytest.mark.parametrize("task", ["words@1", "tags", "fused", "attached"])
def test_a_card_and_a_record_are_shown(task: str, root: Path) -> None:
    assert len(command("show", task, "--store", root / "store")) > 100
    shown = json.loads(command("show", task, "--store", root / "store", "--format", "json"))
    name, _, version = task.partition("@")
    kept = json.loads((root / "store" / "tasks" / name / (version or "1") / "task.json").read_text())
    assert {key: shown[key] for key in kept if key != "checksum"} == {k: v for k, v in kept.items() if k != "checksum"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    ["words@1", "stack(lang/xx, a)", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tags@1", "moved@1"))],
)
def test_the_command_evaluates_on_the_base_that_the_store_remembers(task: str, root: Path, tmp_path: Path) -> None:
    entry = ENTRIES[task]
    data = write(tmp_path / "data.jsonl", entry["form"], 24, seed=7)
    found = json.loads(command("evaluate", task, data, "--store", root / "store", "--format", "json"))
    exact, how = comparison()
    wrong = differences(found["metrics"], entry["expected"]["scores"]["metrics"], exact)
    assert not wrong, f"{task}: {'; '.join(wrong)}; {how}"


def files_of(store: Path) -> dict[str, bytes]:
    """The files of all versions; the notes beside them may grow."""
    found = (path for path in (store / "tasks").rglob("*") if path.is_file() and path.suffix != ".needed")
    return {str(path.relative_to(store)): path.read_bytes() for path in found}


def test_a_new_version_leaves_the_old_ones_as_they_are(tmp_path: Path) -> None:
    here = copied(tmp_path / "old")
    before = files_of(here / "store")
    store, base = at.Store(here / "store"), at.load_base(here / "base")
    options: dict[str, Any] = {"base": base, "store": store, "epochs": 1, "batch_size": 8}
    again = at.train(rows("single", 24, seed=5), name="words", method="houlsby:4", **options)
    assert again.task.record.version == 3
    at.train(
        rows("mlm", 24, seed=5), name="lang/xx", kind="mlm", method="pfeiffer:4", **options
    )  # others were trained on it
    at.train(rows("single", 24, seed=5), name="on-language", method="pfeiffer:4", on="lang/xx@1", **options)
    after = files_of(here / "store")
    changed = [name for name, data in before.items() if after.get(name) != data]
    assert changed == []
    assert {str(Path(name).parent) for name in after.keys() - before.keys()} == {
        "tasks/words/3", "tasks/lang/xx/2", "tasks/on-language/2"
    }  # fmt: skip
    for task in (
        "words@1",
        "words@2",
        "lang/xx@1",
        "on-language@1",
        "less@1",
        "stacked@1",
        "average(words@1, words@2)",
    ):
        check(here, ENTRIES[task], {})

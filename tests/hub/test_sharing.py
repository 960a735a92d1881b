"""Export and import: the same bits in another store, parts and signatures with them, and nothing half way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptree.cli import main
from adaptree.errors import BundleError, TaskNotFound, UsageError, WrongBase
from adaptree.hub.sharing import export, import_file
from adaptree.tasks import beside, signing
from adaptree.tasks.bundle import MANIFEST
from adaptree.tasks.record import FUSES, NEEDS, ON, TENSORS, Record
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests.bases import tiny_base, words_csv
from tests.store.test_bundle import contents, record, write
from tests.store.test_signing import without_package

OLD = Path(__file__).parent.parent / "compat" / "store-0.1"


def simple(name: str, value: float = 1.0, **extra: Any) -> Task:
    made = Record(name=name, kind="classify", method="pfeiffer", base={"name": "b", "fingerprint": "f"}, extra=extra)
    return Task(made, {"w": torch.full((2,), value)})


def made_of(name: str, *parts: Task) -> Task:
    """A task that needs these."""
    extra = {
        FUSES: f"fuse({', '.join(part.record.reference for part in parts)})",
        ON: f"stack({parts[0].record.reference})",
        NEEDS: {part.record.reference: part.record.digest for part in parts},
    }
    whole = simple(name, 9.0, **extra)
    return Task(whole.record, whole.tensors, {part.record.reference: part for part in parts})


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTREE_KEYS", str(tmp_path / "keys"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Tasks a, b, and fused, which is made of both."""
    made = Store(tmp_path / "store")
    a, b = made.add(simple("a")), made.add(simple("b", 2.0))
    made.add(made_of("fused", a, b))
    return made


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(tmp_path / "other")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "out.adaptree"


def files(store: Store, reference: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.path_of(reference).iterdir()}


def holds(store: Store) -> list[str]:
    assert not list((store.path / "tmp").glob("*"))
    return [f"{name}@{version}" for name in store.names() for version in store.versions(name)]


def test_a_task_comes_with_its_parts_byte_for_byte(store: Store, other: Store, file: Path) -> None:
    done = export(store, ["fused"], file)
    assert (done.tasks, done.versions, done.bytes) == (["fused@1"], 3, file.stat().st_size)
    found = import_file(file, other)
    assert [(each.task, each.was, each.here, each.part) for each in found] == [
        ("a@1", "a@1", False, True), ("b@1", "b@1", False, True), ("fused@1", "fused@1", False, False),
    ]  # fmt: skip
    for reference in ("a@1", "b@1", "fused@1"):
        assert files(other, reference) == files(store, reference)
    assert other.dependents("a") == ["fused@1"]
    assert torch.equal(other["fused"].parts["b@1"].tensors["w"], torch.full((2,), 2.0))


def test_what_is_here_already_is_not_added_again(store: Store, other: Store, file: Path) -> None:
    export(store, ["fused"], file)
    import_file(file, other)
    assert all(each.here for each in import_file(file, other))
    assert all(each.here for each in import_file(file, store)), "where it comes from, it is"
    assert holds(other) == ["a@1", "b@1", "fused@1"]


def test_numbers_stay_where_they_can(store: Store, other: Store, file: Path) -> None:
    for value in (3.0, 4.0, 5.0):
        store.add(simple("a", value))
    export(store, ["a@3"], file)
    assert [each.task for each in import_file(file, other)] == ["a@3"]
    other.add(simple("a", 8.0))
    export(store, ["a@2"], file, force=True)
    (found,) = import_file(file, other)
    assert (found.was, found.task) == ("a@2", "a@5")
    assert other["a@5"].record.reference == "a@5"
    assert files(other, "a@5") == files(store, "a@2")
    assert import_file(file, other)[0].here


def test_older_versions_that_come_later_stay_the_older_ones(store: Store, other: Store, file: Path) -> None:
    for value in (3.0, 4.0):
        store.add(simple("a", value))
    export(store, ["a"], file)
    import_file(file, other)
    export(store, ["a"], file, versions=True, force=True)
    found = import_file(file, other)
    assert [(each.was, each.task, each.here) for each in found] == [
        ("a@1", "a@1", False), ("a@2", "a@2", False), ("a@3", "a@3", True),
    ]  # fmt: skip
    assert other["a"].tensors["w"][0] == 4


def test_a_task_may_get_another_name(
    store: Store, other: Store, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(store, ["fused"], file)
    found = import_file(file, other, name="team/mine")
    assert [each.task for each in found] == ["a@1", "b@1", "team/mine@1"]
    assert other["team/mine"].record.reference == "team/mine@1"
    assert other.dependents("a") == ["team/mine@1"]
    assert main(["show", "team/mine", "--store", str(other.path)]) == 0
    assert "# team/mine@1" in capsys.readouterr().out
    export(store, ["a", "b"], file, force=True)
    with pytest.raises(UsageError, match="has 2 tasks, which cannot all be called 'x'"):
        import_file(file, other, name="x")
    with pytest.raises(UsageError, match="cannot be a task's name"):
        import_file(file, other, name="../x")


def test_a_part_leaves_its_name_to_the_task_that_has_it_here(store: Store, other: Store, file: Path) -> None:
    mine = other.add(simple("a", 7.0))
    signing.new_key()
    export(store, ["fused"], file, sign=True)
    found = import_file(file, other, trust="me")
    assert [each.task for each in found] == ["fused-a@1", "b@1", "fused@1"]
    assert other["a"].record.digest == mine.record.digest
    whole = other["fused"]
    assert whole.record.extra[FUSES] == "fuse(fused-a@1, b@1)"
    assert whole.record.digest == store["fused"].record.digest
    assert whole.parts["fused-a@1"].record.digest == store["a"].record.digest
    assert other.dependents("fused-a") == ["fused@1"]
    assert signing.signers(other.path_of("fused"), called="fused@1") == ["signed by me"], "it still holds"
    assert all(each.here for each in import_file(file, other))


def test_a_part_under_another_number_is_linked_and_kept(store: Store, other: Store, file: Path) -> None:
    other.add(simple("a", 7.0))
    export(store, ["a", "fused"], file)
    assert [each.task for each in import_file(file, other)] == ["a@2", "b@1", "fused@1"]
    assert torch.equal(other["fused"].parts["a@1"].tensors["w"], torch.full((2,), 1.0))
    assert other.dependents("a@2") == ["fused@1"]
    assert other.dependents("a@1") == []
    assert other.remove("a@1") == 1


def test_a_composition_is_exported_as_the_tasks_that_it_names(store: Store, other: Store, file: Path) -> None:
    assert export(store, ["average(a, b)"], file).tasks == ["a@1", "b@1"]
    import_file(file, other)
    assert holds(other) == ["a@1", "b@1"]


def test_a_whole_store_takes_its_tags_and_notes_along(store: Store, other: Store, file: Path) -> None:
    store.add(simple("a", 3.0))
    store.write_beside("a", "stable.tag", "1")
    store.append_beside("a", f"1{beside.NOTES}", "2026-01-01T00:00:00 good on Mondays")
    store.mark("b", "evaluated")
    assert export(store, [], file, everything=True).tasks == ["a@2", "b@1", "fused@1"]
    assert export(store, [], file, everything=True, versions=True, force=True).versions == 4
    other.add(simple("a", 7.0))
    found = import_file(file, other)
    assert [each.task for each in found] == ["a@2", "a@3", "b@1", "fused@1"]
    assert beside.lines(other.read_beside("a", "stable.tag")) == ["2"]
    assert beside.lines(other.read_beside("a", "2.notes")) == ["2026-01-01T00:00:00 good on Mondays"]
    assert other.marks("b") == {"evaluated"}
    other.write_beside("a", "stable.tag", "1")
    again = import_file(file, other)
    assert any("stays at a@1" in note for each in again for note in each.notes)
    assert len(beside.lines(other.read_beside("a", "2.notes"))) == 1


def test_a_dry_run_adds_nothing(store: Store, other: Store, file: Path) -> None:
    export(store, ["fused"], file)
    found = import_file(file, other, dry_run=True)
    assert [(each.task, each.here) for each in found] == [("a", False), ("b", False), ("fused", False)]
    assert not other.path.exists()


def test_a_part_that_is_nowhere_is_named(store: Store, other: Store, file: Path) -> None:
    export(store, ["fused"], file)
    kept = {name: data for name, data in contents(file).items() if "tasks/a/" not in name}
    write(file, kept)
    with pytest.raises(BundleError, match="'fused@1' is made of 'a@1', which is neither in the file nor in the store"):
        import_file(file, other)
    assert holds(other) == []
    other.add(simple("a"))
    assert [each.task for each in import_file(file, other)] == ["b@1", "fused@1"]
    store.remove("a", force=True)
    with pytest.raises(TaskNotFound, match="'fused@1' is made of 'a@1', which is not in the store any more"):
        export(store, ["fused"], file, force=True)


@pytest.mark.slow
def test_circles_and_towers_of_parts_are_refused(store: Store, other: Store, file: Path) -> None:
    reviews = simple("reviews")
    store.add(reviews)
    digest = store["reviews"].record.digest
    export(store, ["reviews"], file)
    write(file, record(extra={NEEDS: {"reviews@1": digest}})(contents(file)))
    with pytest.raises(BundleError, match="the task is a part of itself"):
        import_file(file, other)
    low = [store.add(simple(name, 50.0 + i)) for i, name in enumerate(("x0", "y0"))]
    for level in range(1, 12):
        low = [store.add(made_of(f"{name}{level}", *low)) for name in "xy"]
    export(store, ["x11"], file, force=True)
    with pytest.raises(BundleError, match="is made of more than 1,000 others"):
        import_file(file, other)
    assert holds(other) == []


def test_a_version_that_nobody_asked_for_is_refused(store: Store, other: Store, file: Path) -> None:
    export(store, ["a", "b"], file)
    said = json.loads(contents(file)[MANIFEST])
    write(file, {**contents(file), MANIFEST: json.dumps({**said, "tasks": ["a@1"]}).encode()})
    with pytest.raises(BundleError, match="nobody asked for the task"):
        import_file(file, other)


def test_numbers_that_are_not_finite_are_refused(store: Store, other: Store, file: Path) -> None:
    import hashlib

    from safetensors.torch import save

    store.add(simple("reviews"))
    export(store, ["reviews"], file)
    data = save({"w": torch.tensor([1.0, float("nan")])})
    found = {**contents(file), f"tasks/reviews/1/{TENSORS}": data}
    write(file, record(digest=hashlib.sha256(data).hexdigest(), file_bytes=len(data))(found))
    with pytest.raises(BundleError, match=r"cannot be imported: task 'reviews@1' is damaged.*'w' has NaN"):
        import_file(file, other)
    assert holds(other) == []


def test_export_says_what_cannot_be(store: Store, file: Path, other: Store) -> None:
    with pytest.raises(UsageError, match=r"name some tasks.*--all"):
        export(store, [], file)
    with pytest.raises(UsageError, match="name some tasks"):
        export(store, ["a"], file, everything=True)
    with pytest.raises(TaskNotFound, match="no task 'aa'"):
        export(store, ["aa"], file)
    with pytest.raises(TaskNotFound, match="there are no tasks in"):
        export(other, [], file, everything=True)
    with pytest.raises(UsageError, match="no key to sign with"):
        export(store, ["a"], file, sign=True)
    assert not file.exists()


# signatures


def test_signatures_are_checked_shown_and_kept(
    store: Store, other: Store, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    me = signing.new_key()
    before = files(store, "fused")
    assert export(store, ["fused"], file, sign=True).signed_by == "me"
    assert files(store, "fused") == before, "the store is not changed"
    assert {tuple(each.signed_by) for each in import_file(file, other)} == {("me",)}
    assert main(["list", "--store", str(other.path)]) == 0
    assert "signed by" in (shown := capsys.readouterr().out)
    assert shown.count(" me ") == 3
    assert main(["show", "fused", "--store", str(other.path)]) == 0
    assert "- signed by me" in capsys.readouterr().out
    assert main(["show", "fused", "--store", str(other.path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["signed"] == ["signed by me"]
    again = file.with_name("again.adaptree")
    export(other, ["fused"], again)
    assert again.read_bytes() == file.read_bytes(), "they travel on with the task"
    signing.new_key("second")
    export(other, ["fused"], again, key="second", force=True)
    third = Store(other.path.with_name("third"))
    assert {frozenset(each.signed_by) for each in import_file(again, third, trust=me.public)} == {
        frozenset({"me", "second"})
    }
    assert sorted(signing.signers(third.path_of("a"), called="a@1")) == ["signed by me", "signed by second"]
    signing.remove_key("me", force=True)
    assert f"signed by {me.public}" in signing.signers(third.path_of("a"), called="a@1")
    assert f"signed by {me.public}, as a@1" in signing.signers(third.path_of("a"), called="mine@2")


def test_who_is_trusted_must_have_signed(store: Store, other: Store, file: Path) -> None:
    me = signing.new_key()
    export(store, ["a"], file)
    with pytest.raises(BundleError, match="'a@1' is not signed by me"):
        import_file(file, other, trust="me")
    signing.new_key("you")
    export(store, ["a"], file, key="you", force=True)
    with pytest.raises(BundleError, match="'a@1' is signed by you and not by me"):
        import_file(file, other, trust=me.public)
    with pytest.raises(UsageError, match="no key 'nobody'"):
        import_file(file, other, trust="nobody")
    assert holds(other) == []
    assert import_file(file, other, trust="you")[0].signed_by == ["you"]


@pytest.mark.parametrize("what", ["record", "other signer", "other name"])
def test_a_wrong_signature_is_always_refused(store: Store, other: Store, file: Path, what: str) -> None:
    signing.new_key()
    store.add(simple("reviews"))
    export(store, ["reviews"], file, sign=True)
    found = contents(file)
    if what == "record":
        found = record(labels=["other"])(found)
    else:
        sig = "tasks/reviews/1/task.sig"
        (line,) = beside.lines(found[sig].decode())
        public, signature, reference = line.split(" ")
        new = [signing.new_key("you").public if what == "other signer" else public, signature,
               "wanted@1" if what == "other name" else reference]  # fmt: skip
        found[sig] = f"{beside.seal(' '.join(new))}\n".encode()
    write(file, found)
    for trust in (None, "me"):
        with pytest.raises(BundleError, match=r"the signature by \w+ on 'reviews@1' is wrong"):
            import_file(file, other, trust=trust)
    assert holds(other) == []


def test_a_signed_task_that_is_given_out_as_another_is_seen(store: Store, other: Store, file: Path) -> None:
    signing.new_key()
    export(store, ["a"], file, sign=True)
    found = {name.replace("tasks/a/", "tasks/bank/"): data for name, data in contents(file).items()}
    write(file, {**found, MANIFEST: found[MANIFEST].replace(b'"a@1"', b'"bank@1"')})
    (added,) = import_file(file, other, trust="me")
    assert "signed as a@1" in added.notes


def test_without_the_package_signatures_are_not_trusted(
    store: Store, other: Store, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing.new_key()
    export(store, ["a"], file, sign=True)
    without_package(monkeypatch)
    with pytest.raises(UsageError, match=r"adaptree\[signing\]"):
        import_file(file, other, trust="me")
    (found,) = import_file(file, other)
    assert found.signed_by == []
    assert any("not checked" in note for note in found.notes)


# bases


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base, a store with a task of it, and its file."""
    import adaptree as at

    root = tmp_path_factory.mktemp("trained")
    tiny_base(root / "base")
    tiny_base(root / "wrong", seed=1)
    data = words_csv(root / "words.csv", 30)
    at.train(data, name="words", base=root / "base", store=Store(root / "store"), epochs=1, method="houlsby:4")
    export(Store(root / "store"), ["words"], root / "words.adaptree")
    return root


def test_the_weights_are_held_against_the_base_where_it_is(trained: Path, other: Store) -> None:
    file = trained / "words.adaptree"
    (found,) = import_file(file, other, dry_run=True)
    assert any("its base base is not here" in note for note in found.notes)
    with pytest.raises(WrongBase, match="none of the tasks is of the base wrong: they were trained on base"):
        import_file(file, other, base=trained / "wrong")
    assert holds(other) == []
    (found,) = import_file(file, other, base=trained / "base")
    assert found.notes == []
    assert main(["predict", "words", "a lion", "--store", str(other.path)]) == 0, "the base is remembered"


@pytest.mark.parametrize(
    "change",
    [
        {"method": "houlsby(size=5)"}, {"max_length": 10_000}, {"labels": ["a"]}, {"method": "houlsby(size=999999999)"},
        {"extra": {ON: "fuse(x@1"}}, {"extra": {NEEDS: {"Bad Name": "x"}}}, {"extra": {FUSES: "fuse(a@1, b@1)"}},
    ],
)  # fmt: skip
def test_a_record_that_does_not_fit_its_base_is_refused(
    trained: Path, other: Store, file: Path, change: dict[str, Any]
) -> None:
    found = {name.replace("/words/", "/reviews/"): data for name, data in contents(trained / "words.adaptree").items()}
    found[MANIFEST] = found[MANIFEST].replace(b"words@1", b"reviews@1")
    write(file, record(**change)(found))
    with pytest.raises(BundleError, match="cannot be imported"):
        import_file(file, other, base=trained / "base")
    assert holds(other) == []


# the command line


def test_the_commands_say_what_was_done(
    store: Store, other: Store, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = ["--store", str(store.path)], ["--store", str(other.path)]
    assert main(["export", "fused", str(file), *here]) == 0
    assert "out.adaptree: fused@1 with 2 parts" in capsys.readouterr().out
    assert main(["export", "fused", str(file), *here]) == 1
    assert capsys.readouterr().err.startswith(f"✘ '{file}' is there already.  Choose")
    assert main(["export", "--all", str(file), "--force", "--format", "json", *here]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"] == ["a@1", "b@1", "fused@1"]
    assert main(["import", str(file), *there]) == 0
    shown = capsys.readouterr()
    assert "added" in shown.out
    assert "note: a@1, b@1, fused@1: its base b is not here" in shown.err
    assert main(["import", str(file), *there, "--format", "json", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert [row["here"] for row in json.loads(shown.out)] == [True] * 3
    assert shown.err == ""
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["import", str(file), *there]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_store_that_cannot_be_written_is_said(store: Store, file: Path, tmp_path: Path) -> None:
    from adaptree.errors import StoreError

    export(store, ["a"], file)
    (tmp_path / "blocked").write_text("a file")
    with pytest.raises(StoreError, match="cannot write"):
        import_file(file, Store(tmp_path / "blocked"))
    with pytest.raises(StoreError, match=r"cannot write .*Check that its folder is there, or choose another place\."):
        export(store, ["a"], tmp_path / "nowhere" / "x.adaptree")


# other machines

ASK = """
import json, sys
from pathlib import Path
from tests.compat.asking import answers
root, bases = Path(sys.argv[1]), {}
entries = [e for e in json.loads((root / "expected.json").read_text())["entries"]]
print(json.dumps([answers(root, e, bases).get("logits") or answers(root, e, bases) for e in entries]))
"""


def asked(root: Path, home: Path) -> Any:
    env = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    env.pop("ADAPTREE_CACHE", None)
    done = subprocess.run([sys.executable, "-c", ASK, str(root)], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_every_kind_and_composition_gives_the_same_logits_on_another_machine(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(OLD, here)
    shutil.copytree(OLD, there, ignore=shutil.ignore_patterns("store"))
    homes = [tmp_path / "home1", tmp_path / "home2"]
    for home in homes:
        home.mkdir()
    file = tmp_path / "all.adaptree"
    tool = [sys.executable, "-m", "adaptree"]
    env = {**os.environ, "HOME": str(homes[1])}
    subprocess.run(
        [*tool, "export", "--all", "--versions", str(file), "--store", str(here / "store")], check=True, env=env
    )
    subprocess.run([*tool, "import", str(file), "--store", str(there / "store")], check=True, env=env)
    assert asked(there, homes[1]) == asked(here, homes[0])


def test_the_old_store_comes_through_whole_and_checked(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "old")
    places = tmp_path / "old" / "store" / "bases.json"
    places.write_text(places.read_text().replace("{here}", str(tmp_path / "old")))
    old, new = Store(tmp_path / "old" / "store"), Store(tmp_path / "new")
    export(old, [], tmp_path / "all.adaptree", everything=True, versions=True)
    new.path.mkdir()
    shutil.copy(places, new.path / "bases.json")
    found = import_file(tmp_path / "all.adaptree", new)
    assert not any(each.notes for each in found), "all of them fit their bases"
    assert {each.task for each in found} == {f"{n}@{v}" for n in old.names() for v in old.versions(n)}
    for each in found:
        assert files(new, each.task) == files(old, each.was)


@pytest.mark.slow
def test_a_task_predicts_the_same_in_another_process_with_an_empty_home(trained: Path, tmp_path: Path) -> None:
    tool = [sys.executable, "-m", "adaptree"]
    (tmp_path / "home").mkdir()
    env = {**os.environ, "HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    env.pop("ADAPTREE_STORE", None)
    subprocess.run(
        [*tool, "import", str(trained / "words.adaptree"), "--base", str(trained / "base")], check=True, env=env
    )
    ask = (
        "import sys, json; from adaptree.tasks.store import Store; from adaptree.models.opening import open_task\n"
        "bound = open_task(Store(sys.argv[1] or None), 'words')\n"
        "print(bound.logits(['the old lion', 'a saw', 'plum and pear today']).numpy().tobytes().hex())"
    )
    answers = [
        subprocess.run([sys.executable, "-c", ask, where], check=True, env=env, capture_output=True, text=True).stdout
        for where in (str(trained / "store"), "")
    ]
    assert answers[0] == answers[1] != ""

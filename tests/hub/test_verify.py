"""Memory that can be proved: every flipped bit is found and named, and every answer can be computed again."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptree as at
from adaptree import api
from adaptree.cli import main
from adaptree.errors import StoreError, TaskCorrupt, TaskNotFound, UsageError
from adaptree.hub import certificate
from adaptree.hub.repair import DRAWN
from adaptree.hub.verify import DAMAGED, EXACTLY, NEARLY, NOT_CHECKED, OK, verify
from adaptree.models.base import Base
from adaptree.tasks import beside, digests, machine, runs, signing
from adaptree.tasks.record import Record, checksum
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from adaptree.training import checkpoint
from tests.bases import tiny_base, words_csv
from tests.compat import test_old_store

OLD = test_old_store.OLD / "store"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny"))


@pytest.fixture(scope="module")
def trained(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all that a store can hold; tests work on copies of it."""
    folder = tmp_path_factory.mktemp("trained")
    data, store = words_csv(folder / "words.csv"), Store(folder / "store")
    how: dict[str, Any] = {"base": base, "epochs": 1, "store": store, "baselines": False}
    at.train(data, name="words", method="houlsby:2", **how)  # with its figures
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adaptree.reports.figures.figures", lambda record: {})
        _fill(store, data, how)
        patch.setenv("ADAPTREE_KEYS", str(folder / "keys"))
        _sign(store, folder / "signed.adaptree")
    return store.path


def _sign(store: Store, file: Path) -> None:
    """Put a signature on a version, as it has one that comes from somebody."""
    signing.new_key()
    api.export(store, ["lang/qu"], file, sign=True)
    store.remove("lang/qu")
    api.import_file(file, store)


def _fill(store: Store, data: Path, how: dict[str, Any]) -> None:
    at.train(data, name="words", method="houlsby:3", **how)
    at.train(data, name="lang/qu", method="pfeiffer:2", **how)
    at.train(data, name="upper", method="pfeiffer:2", on="words@1", **how)
    api.compose("average(words@2, words@2)", name="mean", store=store)
    store.tag("words@1", "stable")
    store.tag("words@2", "best")
    store.note("words@1", "a first try, with few rows")
    store.note("words@1", "and another remark")
    store.mark("words@2", "seen")
    at.train(data, name="third", method="pfeiffer:2", **how)
    at.train(data, name="third", method="pfeiffer:3", **how)
    store.remove("third@1")
    stopped = runs.run_folder(store, "stopped")
    checkpoint.write(stopped, {"now.w": torch.arange(40.0)}, {"history": [], "batch": 3})
    trials = "".join(json.dumps({"number": n, "lr": 1e-5 * n}) + "\n" for n in (1, 2))
    (stopped / runs.SEARCH).write_text(runs.search_header("k" * 64, trials) + trials)
    (store.path / runs.STREAMS).mkdir()
    (store.path / runs.STREAMS / f"words{runs.LOCK}").touch()
    (store.path / runs.STREAMS / runs.SET_ASIDE).write_text(beside.seal('{"task": "bad", "why": "no label"}') + "\n")


@pytest.fixture
def store(trained: Path, tmp_path: Path) -> Store:
    shutil.copytree(trained, tmp_path / "store", ignore=shutil.ignore_patterns("index.sqlite*"))
    return Store(tmp_path / "store")


def flip(path: Path, bit: int) -> bytes:
    """Flip one bit of a file; return what it was."""
    before = path.read_bytes()
    data = bytearray(before)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return before


# files


def test_a_whole_store_is_fine(store: Store) -> None:
    found = verify(store)
    assert found.ok
    assert {row.state for row in found.rows} == {OK}
    assert {row.task for row in found.tasks} == {
        "words@1", "words@2", "lang/qu@1", "upper@1", "mean@1", "third@2",
    }  # fmt: skip
    assert sorted(file for row in found.rows for file in row.files) == store.files(), "every file is covered"
    assert [row.notes for row in found.rows if row.notes] == []
    assert [row.unknown for row in found.rows if row.unknown] == []
    words = next(row for row in found.rows if row.task == "words@1")
    assert words.weights == store["words@1"].record.digest
    assert words.files["tasks/words/1/README.md"] == digests.digest_of(store.path_of("words@1") / "README.md")
    assert "6 versions of tasks" in found.sentence
    assert "nothing is damaged" in found.sentence


def owner(file: str) -> set[str]:
    """The row that a file belongs to."""
    parts = file.split("/")
    if parts[0] != "tasks":
        return {""}
    if parts[-2].isdigit():
        return {f"{'/'.join(parts[1:-2])}@{parts[-2]}"}
    return {"/".join(parts[1:-1])}


def flips(store: Store, count: int, seed: int) -> None:
    """Flip single bits over all files, small files as often as large ones; each must be found and named."""
    rng = random.Random(seed)
    files = [file for file in store.files() if (store.path / file).stat().st_size]
    assert len(files) > 25
    for number in range(count):
        file = files[number % len(files)]
        path = store.path / file
        bit = rng.randrange(8 * path.stat().st_size)
        before = flip(path, bit)
        named = {name: row.task for row in verify(store).rows for name in row.damaged}
        assert file in named, f"bit {bit} of {file} is not found: {before[bit // 8]:#x}"
        assert {named[file]} == owner(file)
        assert len(named) <= 2, named  # a damaged record can leave the tensors beside it unproved, and nothing else
        path.write_bytes(before)
    assert verify(store).ok


@pytest.mark.slow
def test_two_hundred_flipped_bits_are_found_and_named(store: Store) -> None:
    flips(store, 200, seed=0)


@pytest.mark.campaign
def test_a_thousand_flipped_bits_are_found_and_named(store: Store) -> None:
    flips(store, 1000, seed=1)


def test_every_bit_of_the_small_files_is_found(store: Store) -> None:
    small = [file for file in store.files() if Path(file).suffix in (".tag", ".notes", ".marks", ".needed")]
    assert {Path(file).suffix for file in small} == {".tag", ".notes", ".marks", ".needed"}
    for file in small:
        path = store.path / file
        text = path.read_bytes()
        for bit in range(8 * len(text)):
            data = bytearray(text)
            data[bit // 8] ^= 1 << bit % 8
            assert beside.problem(path.name, data.decode(errors="replace")), f"bit {bit} of {file}"


@pytest.mark.parametrize("file", [runs.BASES, f"runs/stopped/{runs.SEARCH}", f"runs/stopped/{runs.CHECKPOINT}"])
def test_every_bit_of_the_other_files_is_found(store: Store, file: str) -> None:
    path = store.path / file
    assert runs.problem(path) == ""
    for bit in range(0, 8 * path.stat().st_size, 11):
        before = flip(path, bit)
        assert runs.problem(path), f"bit {bit} of {file}"
        path.write_bytes(before)


def test_a_file_that_is_missing_empty_or_cut_is_named(store: Store) -> None:
    for file in ("README.md", "task.json", "task.safetensors"):
        path = store.path_of("words@2") / file
        whole = path.read_bytes()
        for left in (None, b"", whole[:-1], whole + b"x"):
            path.unlink()
            if left is not None:
                path.write_bytes(left)
            (row,) = verify(store, ["words@2"]).damaged
            assert f"tasks/words/2/{file}" in row.damaged
            path.write_bytes(whole)


def test_a_version_of_an_earlier_release_is_fine_but_not_covered(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "old")
    found = verify(Store(tmp_path / "old"))
    assert found.ok
    assert {row.notes for row in found.tasks} == {(digests.NOT_COVERED,)}
    assert len(found.tasks) > 10
    flip(Store(tmp_path / "old").path_of(found.tasks[0].task) / "task.safetensors", 4000)
    assert [row.task for row in verify(Store(tmp_path / "old")).damaged] == [found.tasks[0].task]


def test_files_of_others_are_named_and_are_no_damage(store: Store) -> None:
    strays = ("notes.txt", "tasks/words/todo.txt", "tasks/words/1/.DS_Store", "tasks/junk/x.bin", "runs/stopped/y")
    for file in strays:
        (store.path / file).parent.mkdir(exist_ok=True)
        (store.path / file).write_text("?")
    found = verify(store)
    assert found.ok
    assert sorted(file for row in found.rows for file in row.unknown) == sorted(strays)


def test_only_the_tasks_that_are_named_are_verified_with_their_parts(store: Store) -> None:
    flip(store.path_of("lang/qu") / "README.md", 99)
    found = verify(store, ["upper"])
    assert [row.task for row in found.rows] == ["upper@1", "words@1", "words"]
    assert found.ok
    assert [row.task for row in verify(store, ["words@stable"]).tasks] == ["words@1"]
    with pytest.raises(TaskNotFound, match="Did you mean 'upper'"):
        verify(store, ["uper"])


def test_the_sums_are_those_of_sha256sum(store: Store) -> None:
    if shutil.which("sha256sum") is None:
        pytest.skip("there is no sha256sum here")
    folder = store.path_of("words@1")
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", digests.SUMS], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "README.md: OK" in done.stdout


def test_a_saved_task_has_sums_too(store: Store, tmp_path: Path) -> None:
    store["upper"].save(tmp_path / "out")
    for folder in (tmp_path / "out", tmp_path / "out/parts/0"):
        found = digests.check_files(folder, called="out")
        assert found.covered
        assert not found.damaged


def test_a_damaged_checkpoint_is_not_resumed(store: Store) -> None:
    folder = store.path / "runs/stopped"
    assert checkpoint.read(folder)[1]["batch"] == 3  # type: ignore[index]
    flip(folder / checkpoint.FILE, 8 * (folder / checkpoint.FILE).stat().st_size - 3)
    with pytest.raises(at.AdaptreeError, match=r"cannot be read.*without --resume"):
        checkpoint.read(folder)


def test_a_thousand_tasks_are_verified_without_torch(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    record = Record(name="task-0", kind="classify", method="houlsby(size=2)", base={"name": "b", "fingerprint": "f"})
    store.add(Task(record, {"w": torch.randn(20_000)}))
    first = store.path_of("task-0")
    for number in range(1, 1000):
        shutil.copytree(first, store.path / f"tasks/task-{number}/1")
    code = (
        "import sys\nfrom adaptree.tasks.store import Store\nfrom adaptree.hub.verify import verify\n"
        f"found = verify(Store({str(store.path)!r}))\n"
        "assert found.ok and len(found.tasks) == 1000\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# probes


def test_probes_are_the_same_bit_for_bit(store: Store, base: Base) -> None:
    found = verify(store, probes=True)
    assert found.ok
    assert {row.task: str(row.probe) for row in found.tasks} == dict.fromkeys(
        (row.task for row in found.tasks), EXACTLY
    )
    (checked,) = found.bases
    assert (checked.fingerprint, checked.state) == (base.fingerprint, OK)
    assert found.machine == machine.here()
    assert "6 probes bit for bit" in found.sentence


def test_each_base_is_loaded_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from adaptree.models import loading

    loaded: list[object] = []
    real = loading.load_base
    monkeypatch.setattr(loading, "load_base", lambda name, **how: (loaded.append(name), real(name, **how))[1])
    verify(store, probes=True)
    assert len(loaded) == 1


def rewritten(store: Store, reference: str, tensors: dict[str, torch.Tensor] | None = None, **changes: Any) -> None:
    """Replace a version by one that has other contents and whole digests."""
    task = store[reference]
    folder = store.path_of(reference)
    shutil.rmtree(folder)
    Task(replace(task.record, **changes), {**task.tensors, **(tensors or {})}).write(folder)


def test_other_answers_are_found_though_all_digests_match(store: Store) -> None:
    logits = store["words@1"].tensors["probe.logits"].clone()
    logits[0, 0] += 1e-6
    rewritten(store, "words@1", {"probe.logits": logits})
    (row,) = verify(store, ["words@1"], probes=True).damaged
    assert row.probe is not None
    assert (row.probe.state, row.probe.comparison, row.damaged) == (DAMAGED, EXACTLY, {})
    assert row.probe.difference == pytest.approx(1e-6, rel=0.3)


@pytest.mark.parametrize(("off", "state"), [(5e-5, OK), (5e-4, DAMAGED)])
def test_another_machine_has_a_tolerance_and_says_so(store: Store, off: float, state: str) -> None:
    task = store["words@1"]
    probe = task.record.probe
    other = {**probe, "machine": {**probe["machine"], "processor": "another", "torch": "1.0"}}
    rewritten(store, "words@1", {"probe.logits": task.tensors["probe.logits"] + off}, probe=other)
    (row,) = verify(store, ["words@1"], probes=True).tasks
    assert row.probe is not None
    assert (row.probe.state, row.probe.comparison, row.state) == (state, NEARLY, state)
    assert row.probe.difference == pytest.approx(off, rel=0.1)
    assert row.probe.why == "other or unknown: processor, torch"


def test_what_cannot_be_probed_says_why(store: Store) -> None:
    rewritten(store, "words@1", probe={})
    rewritten(store, "lang/qu@1", base={"name": "nowhere", "fingerprint": "0" * 64, "architecture": "bert"})
    found = verify(store, ["words@1", "lang/qu"], probes=True)
    assert found.ok
    assert {row.task: row.state for row in found.tasks} == {"words@1": NOT_CHECKED, "lang/qu@1": NOT_CHECKED}
    said = {row.task: str(row.probe) for row in found.tasks}
    assert said["words@1"] == "not checked: it has no probe"
    assert "its base cannot be loaded" in said["lang/qu@1"]
    assert [base.state for base in found.bases] == [OK, NOT_CHECKED]


def test_a_base_that_is_another_now_is_found(store: Store, tmp_path: Path) -> None:
    places = json.loads((store.path / runs.BASES).read_text())
    other = tiny_base(tmp_path / "tiny", seed=9)
    moved = {key: str(other) for key in places if key != runs.CHECKSUM}
    (store.path / runs.BASES).write_text(json.dumps(moved | {runs.CHECKSUM: checksum(moved)}, indent=1))
    found = verify(store, probes=True)
    assert not found.ok
    assert found.damaged == []
    assert found.bases[0].state == DAMAGED
    assert "another fingerprint" in found.bases[0].why


def test_old_probes_are_compared_within_a_tolerance(tmp_path: Path) -> None:
    root = test_old_store.copied(tmp_path / "old")
    found = verify(Store(root / "store"), probes=True)
    states = {row.task: row.probe for row in found.tasks}
    computed = [probe for probe in states.values() if probe is not None and probe.state != NOT_CHECKED]
    assert len(computed) > 10
    assert {(probe.state, probe.comparison) for probe in computed} == {(OK, NEARLY)}
    assert max(probe.difference or 0 for probe in computed) < 1e-5


def test_a_record_says_on_which_machine_it_was_made(store: Store) -> None:
    record = store["words@1"].record
    assert record.machine == machine.here()
    assert set(record.machine) == {"processor", "instructions", "cores", "threads", "system"}
    assert set(record.probe["machine"]) == set(machine.KIND)
    assert record.unscored().machine == {}
    assert Store(OLD)[Store(OLD).names()[0]].record.machine == {}


# repair


@pytest.fixture
def peer(store: Store, tmp_path: Path) -> Store:
    shutil.copytree(store.path, tmp_path / "peer")
    return Store(tmp_path / "peer")


def bits(store: Store) -> dict[str, bytes]:
    return {file: (store.path / file).read_bytes() for file in store.files()}


@pytest.mark.figures
@pytest.mark.parametrize("files", [
    ["task.safetensors"], ["task.json"], ["README.md"], ["SHA256SUMS"], ["task.json", "task.safetensors"],
    ["README.md", "SHA256SUMS"], ["task.json", "task.safetensors", "README.md"],
])  # fmt: skip
def test_damaged_files_come_back_from_a_peer(store: Store, peer: Store, files: list[str]) -> None:
    whole, times = bits(store), {file: (store.path / file).stat().st_mtime_ns for file in store.files()}
    for file in files:
        flip(store.path_of("words@1") / file, 1234)
    found = verify(store, repair=peer)
    assert found.ok
    assert bits(store) == whole
    row = next(row for row in found.rows if row.task == "words@1")
    assert {Path(file).name for file in row.repaired} >= set(files)
    touched = {file for file in store.files() if (store.path / file).stat().st_mtime_ns != times[file]}
    assert touched <= {f"tasks/words/1/{file}" for file in (*files, "README.md")}, "a good file is never replaced"


def test_a_peer_with_another_task_of_that_name_restores_nothing(store: Store, peer: Store) -> None:
    peer.remove("words", force=True)
    shutil.copytree(peer.path_of("lang/qu@1"), peer.path / "tasks/words/1")
    shutil.rmtree(peer.path / "tasks/lang")
    for file in ("task.safetensors", "README.md"):
        flip(store.path_of("words@1") / file, 1234)
    damaged = bits(store)
    found = verify(store, repair=peer)
    assert [row.task for row in found.damaged] == ["words@1"]
    assert bits(store) == damaged, "whole or not at all"


def test_a_peer_that_has_the_version_under_another_number_restores_it(store: Store, peer: Store) -> None:
    whole = bits(store)
    peer.remove("words@2", force=True)
    (peer.path / "tasks/words/1").rename(peer.path / "tasks/words/7")
    flip(store.path_of("words@1") / "task.safetensors", 1234)
    found = verify(store, repair=peer)
    assert found.ok
    assert bits(store) == whole


def test_a_peer_that_is_not_there_is_said(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store.path_of("words@1") / "README.md", 100)
    assert main(["verify", "--store", str(store.path), "--repair", str(tmp_path / "pere")]) == 1
    assert "there is no store to repair from at" in capsys.readouterr().err
    assert not (tmp_path / "pere").exists()
    assert not verify(store).ok, "nothing was done"


def test_a_damaged_peer_restores_nothing(store: Store, peer: Store) -> None:
    for each in (store, peer):
        flip(each.path_of("words@1") / "task.safetensors", 9999)
    assert not verify(store, repair=peer).ok
    with pytest.raises(TaskCorrupt):
        store["words@1"]


@pytest.mark.figures
def test_a_card_is_drawn_again_without_a_peer(store: Store, tmp_path: Path, base: Base) -> None:
    data = words_csv(tmp_path / "words.csv")
    at.train(data, name="drawn", base=base, method="houlsby:2", epochs=2, store=store, baselines=False)
    folder = store.path_of("drawn")
    assert (folder / "course.svg").exists()
    whole = bits(store)
    for file in ("README.md", "course.svg"):
        flip(folder / file, 4321)
    (folder / "calibration.svg").unlink()
    nobody = Store(tmp_path / "nobody")
    found = verify(store, ["drawn"], repair=nobody)
    assert found.ok
    assert bits(store) == whole
    assert set(next(iter(found.rows)).repaired.values()) == {DRAWN}
    flip(folder / "SHA256SUMS", 100)
    assert verify(store, ["drawn"], repair=nobody).ok
    assert bits(store) == whole
    (folder / "README.md").write_text("of another release\n")
    text = digests.sums_text(digests.digests_of(folder))
    (folder / "SHA256SUMS").write_text(text)
    assert verify(store, ["drawn"]).ok
    flip(folder / "README.md", 9)  # what that release wrote cannot be drawn by this one: it gets a card of today
    assert verify(store, ["drawn"], repair=nobody).ok
    assert bits(store) == whole


def test_small_files_come_back_too(store: Store, peer: Store) -> None:
    whole = bits(store)
    for file in ("stable.tag", "1.notes", "2.marks", "1.needed"):
        flip(store.path / "tasks/words" / file, 3)
    (store.path / "tasks/third/1.removed").write_text("x")
    found = verify(store, repair=peer)
    assert found.ok
    assert bits(store) == whole
    assert store.tags("words") == {"stable": 1, "best": 2}


def test_without_help_the_command_says_what_to_do(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store.path_of("words@1") / "task.safetensors", 9999)
    flip(store.path / "tasks/words/stable.tag", 3)
    flip(store.path / runs.BASES, 100)
    flip(store.path / "runs/stopped" / runs.SEARCH, 100)
    assert main(["verify", "--store", str(store.path)]) == 1
    out, err = capsys.readouterr()
    assert "words@1" in out
    assert "tasks/words/1/task.safetensors: wrong digest" in err
    assert "adaptree verify words@1 --repair PEER, or adaptree remove words@1 and train it again" in err
    assert "adaptree tag words@N stable" in err
    assert "delete bases.json" in err


# certificates


def test_a_certificate_says_what_has_changed_since(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "out/certificate.json"
    found, _ = api.verify(store, certificate=path)
    values = json.loads(path.read_text())
    assert values["ok"] is True
    assert values["tasks"]["words@1"]["files"] == dict(found.tasks[-2].files)
    assert values["tasks"]["words@1"]["weights"] == store["words@1"].record.digest
    store.add(store["words"])
    store.remove("third")
    rewritten(store, "lang/qu@1", seed=5)
    found, changes = api.verify(store, against=path)
    assert found.ok
    states = {change.task: change.state for change in changes}
    assert states == {
        "words@1": "same", "words@2": "same", "upper@1": "same", "mean@1": "same", "words@3": "new", "third@2": "gone",
        "lang/qu@1": "changed",
    }  # fmt: skip
    files = next(change.files for change in changes if change.state == "changed")
    assert "tasks/lang/qu/1/task.json" in files
    assert main(["verify", "--store", str(store.path), "--against", str(path)]) == 1


def test_a_certificate_that_was_changed_is_refused(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    api.verify(store, certificate=path)
    path.write_text(path.read_text().replace('"ok": true', '"ok": false'))
    with pytest.raises(StoreError, match="was changed"):
        api.verify(store, against=path)
    path.write_text("[]")
    with pytest.raises(StoreError, match="no certificate"):
        api.verify(store, against=path)
    with pytest.raises(StoreError, match="cannot be read"):
        api.verify(store, against=tmp_path / "none.json")
    with pytest.raises(UsageError, match=r"is \.json or \.html"):
        api.verify(store, certificate=tmp_path / "x.txt")


def test_a_certificate_says_of_one_task_nothing_about_the_others(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    api.verify(store, certificate=path)
    store.remove("words@2", force=True)
    for asked, changed in (("lang/qu", {"lang/qu@1": "same"}), ("words", {"words@1": "same", "words@2": "gone"})):
        _, changes = api.verify(store, [asked], against=path)
        assert {change.task: change.state for change in changes} == changed


def test_the_page_stands_alone_and_is_harmless(store: Store, tmp_path: Path) -> None:
    flip(store.path_of("words@1") / "README.md", 100)
    moved = store.path.rename(tmp_path / "<script>alert(1)")
    path = tmp_path / "certificate.html"
    found, _ = api.verify(Store(moved), probes=True, certificate=path)
    page = path.read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "tasks/words/1/README.md" in page
    assert "bit for bit" in page
    assert certificate.certificate(found)["checksum"] in page


def test_the_command_prints_tables_and_json(store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["verify", "--store", str(store.path)]
    assert main([*words, "--probes", "--certificate", str(tmp_path / "c.json")]) == 0
    out, _ = capsys.readouterr()
    assert "upper@1" in out
    assert "bit for bit" in out
    assert main([*words, "--format", "json", "--against", str(tmp_path / "c.json")]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["ok"] is True
    assert {change["state"] for change in values["changes"]} == {"same"}
    for form in ("csv", "jsonl"):
        assert main([*words, "--format", form]) == 0
        assert "words@1" in capsys.readouterr().out
    flip(store.path_of("words@1") / "README.md", 100)
    (tmp_path / "nobody").mkdir()
    assert main([*words, "words@1", "--repair", str(tmp_path / "nobody")]) == 0
    assert "repaired: tasks/words/1/README.md, drawn from the record" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.real
def test_a_task_on_the_real_base_answers_the_same_bits_in_another_process(tmp_path: Path) -> None:
    rows = [{"text": f"{word} {n}", "label": word} for n in range(6) for word in ("good", "bad")]
    store = Store(tmp_path / "store")
    at.train(rows, name="real", method="houlsby:4", epochs=1, store=store)
    command = [sys.executable, "-m", "adaptree", "verify", "--probes", "--store", str(store.path), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = [row for row in json.loads(done.stdout)["rows"] if row["task"] == "real@1"]
    assert (row["probe"]["comparison"], row["probe"]["difference"]) == (EXACTLY, 0)

"""push and pull between stores, and the commands on a store behind a URL."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptree import api
from adaptree.cli import main
from adaptree.errors import TaskCorrupt, TaskNotFound, UsageError
from adaptree.hub.verify import verify
from adaptree.tasks import beside, signing
from adaptree.tasks.record import FUSES
from adaptree.tasks.remote import RemoteStore
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests import s3
from tests.bases import tiny_base, words_csv
from tests.store.test_local import task
from tests.store.test_parts import made_of, simple
from tests.store.test_signing import without_package


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTREE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return Store(tmp_path / "here")


@pytest.fixture(params=["folder", "memory"])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(tmp_path / "there" if request.param == "folder" else f"memory://{uuid.uuid4().hex}/tasks")


def push(here: Store, there: Store, *references: str, **options: bool) -> list[tuple[str, int]]:
    return [(each.task, each.versions) for each in api.push(references, there.location, store=here, **options)]


def pull(there: Store, here: Store, *references: str, **options: bool) -> list[tuple[str, int]]:
    return [(each.task, each.versions) for each in api.pull(there.location, references, store=here, **options)]


def test_a_task_goes_and_comes_back_the_same(here: Store, there: Store, tmp_path: Path) -> None:
    added = here.add(task(fill=3))
    (here.path_of("reviews") / "curves.svg").write_text("<svg/>")  # whatever else belongs to a version
    (copied,) = api.push(["reviews"], there.location, store=here)
    assert (copied.source, copied.task, copied.versions) == ("reviews@1", "reviews@1", 1)
    assert copied.bytes == added.record.file_bytes
    assert there["reviews"].record == added.record
    other = Store(tmp_path / "other")
    assert pull(there, other, "reviews@1") == [("reviews@1", 1)]
    before = {path.name: path.read_bytes() for path in here.path_of("reviews").iterdir()}
    assert {path.name: path.read_bytes() for path in other.path_of("reviews").iterdir()} == before


def test_what_is_there_is_not_copied_again(here: Store, there: Store) -> None:
    for fill in (1, 2):
        here.add(task(fill=fill))
    assert push(here, there, "reviews@1") == [("reviews@1", 1)]
    assert push(here, there, "reviews@1") == [("reviews@1", 0)]
    assert push(here, there, "reviews", versions=True) == [("reviews@1", 0), ("reviews@2", 1)]
    assert pull(there, here) == [("reviews@2", 0)]
    assert here.versions("reviews") == there.versions("reviews") == [1, 2]


def test_the_same_weights_with_another_record_are_another_version(here: Store, there: Store) -> None:
    first = here.add(task())
    push(here, there, "reviews")
    here.add(Task(replace(first.record, version=0, extra={"rolled_back_from": "reviews@1"}), first.tensors))
    assert push(here, there, "reviews") == [("reviews@2", 1)]


def test_a_number_is_kept_unless_it_is_taken(here: Store, there: Store) -> None:
    for fill in (1, 2, 3):
        here.add(task(fill=fill))
    assert push(here, there, "reviews") == [("reviews@3", 1)]
    assert push(here, there, "reviews@1") == [("reviews@4", 1)], "a later version has a higher number"
    assert there["reviews@4"].tensors["head.bias"][0] == 1


def test_older_versions_that_come_later_stay_the_older_ones(here: Store, there: Store) -> None:
    for fill in (1, 2, 3, 4):
        here.add(task(fill=fill))
    push(here, there, "reviews")
    here.remove("reviews@2")
    assert push(here, there, "reviews", versions=True) == [("reviews@1", 1), ("reviews@3", 1), ("reviews@4", 0)]
    assert there["reviews"].tensors["head.bias"][0] == 4
    there.remove("reviews@1")
    assert push(here, there, "reviews", versions=True)[0] == ("reviews@5", 1), "a used number is not used again"


def test_versions_of_another_task_of_that_name_come_after_those_that_are_there(here: Store, there: Store) -> None:
    for fill in (1, 2):
        here.add(task(fill=fill))
        there.add(task(fill=10 * fill))
    there.remove("reviews@1")
    assert push(here, there, "reviews", versions=True) == [("reviews@3", 1), ("reviews@4", 1)]


def test_all_tasks_and_all_versions(here: Store, there: Store, tmp_path: Path) -> None:
    for fill, name in enumerate(("a", "lang/qu", "a")):
        here.add(task(name, fill))
    assert push(here, there) == [("a@2", 1), ("lang/qu@1", 1)]
    other = Store(tmp_path / "other")
    assert push(here, other, versions=True) == [("a@1", 1), ("a@2", 1), ("lang/qu@1", 1)]
    third = Store(tmp_path / "third")
    assert pull(there, third) == [("a@2", 1), ("lang/qu@1", 1)]


def test_parts_come_along(here: Store, there: Store, tmp_path: Path) -> None:
    a, b = here.add(simple("a")), here.add(simple("b", 2.0))
    fused = here.add(made_of("fused", a, b))
    there.add(simple("a", 7.0))  # another task of that name
    (copied,) = api.push(["fused"], there.location, store=here)
    assert (copied.task, copied.versions) == ("fused@1", 3)
    assert copied.bytes == sum(each.record.file_bytes for each in (a, b, fused))
    assert there["fused"].record.extra[FUSES] == "fuse(fused-a@1, b@1)"
    assert push(here, there, "fused") == [("fused@1", 0)]
    other = Store(tmp_path / "other")
    assert pull(there, other, "fused") == [("fused@1", 3)]
    found = other["fused"]
    assert {part.record.digest for part in found.parts.values()} == {a.record.digest, b.record.digest}


def test_tags_notes_and_marks(here: Store, there: Store) -> None:
    for fill in (1, 2):
        here.add(task(fill=fill))
    there.add(task("reviews", fill=9))
    here.mark("reviews@2", "evaluated")
    here.append_beside("reviews", "2.notes", "2026-01-01T00:00:00 good")
    here.write_beside("reviews", "stable.tag", "2")
    here.write_beside("reviews", "old.tag", "1")
    assert push(here, there, "reviews@2") == [("reviews@2", 1)]
    assert there.marks("reviews@2") == {"evaluated"}
    assert there.beside("reviews") == ["2.marks"]
    for _ in range(2):
        push(here, there, "reviews@2", tags=True)
    assert beside.lines(there.read_beside("reviews", "stable.tag")) == ["2"]
    assert beside.lines(there.read_beside("reviews", "2.notes")) == ["2026-01-01T00:00:00 good"]
    assert "old.tag" not in there.beside("reviews")


def test_a_url_may_end_in_the_task(here: Store, there: Store, tmp_path: Path) -> None:
    for name in ("reviews", "reviews", "lang/qu"):
        there.add(task(name))
    for tail, found in (("reviews", "reviews@2"), ("reviews@1", "reviews@1"), ("lang/qu", "lang/qu@1")):
        into = Store(tmp_path / tail.replace("/", "-"))
        assert [each.task for each in api.pull(f"{there.location}/{tail}", store=into)] == [found]
    for wrong in ("nothing", "No Name"):
        with pytest.raises(TaskNotFound, match=rf"there is no store with tasks at {there.location}/{wrong}"):
            api.pull(f"{there.location}/{wrong}", store=here)


def test_what_cannot_be_copied_says_why_and_leaves_nothing(here: Store, there: Store) -> None:
    here.add(task())
    with pytest.raises(TaskNotFound, match=r"no task 'revews' in the store.*'reviews'"):
        push(here, there, "reviews", "revews")
    assert there.names() == [], "all are looked up before the first is copied"
    weights = here.path_of("reviews") / "task.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(TaskCorrupt, match="reviews@1"):
        push(here, there, "reviews")
    assert there.names() == []


def test_signatures_come_along_and_are_listed(here: Store, there: Store, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ADAPTREE_KEYS", str(tmp_path / "keys"))
    key = signing.new_key("alice")
    here.add(task())
    api.export(here, ["reviews"], tmp_path / "signed.adaptree", key="alice")
    other = Store(tmp_path / "other")
    api.import_file(tmp_path / "signed.adaptree", other)
    push(other, there, "reviews")
    assert [line.signed_by for line in there.list()] == [key.public]
    assert [line.signed_by for line in Store(there.location).history("reviews")] == [key.public]


def test_a_wrong_signature_is_seen_in_a_list_and_by_verify_and_is_not_copied(
    there: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ADAPTREE_KEYS", str(tmp_path / "keys"))
    key = signing.new_key("alice")
    forged = Store(tmp_path / "forged")
    forged.add(task())
    wrong = signing.Signature(key.public, bytes(64), "reviews@1")
    (forged.path_of("reviews") / signing.SIGNATURES).write_text(signing.to_text([wrong]))
    (line,) = forged.list()
    assert (line.signed_by, "the signature by alice is wrong" in line.problem) == ("", True)
    with pytest.raises(TaskCorrupt, match="the signature by alice is wrong: the task is not what was signed"):
        push(forged, there, "reviews")
    assert there.names() == []
    assert main(["verify", "--store", str(forged.path)]) == 1
    assert "adaptree remove reviews@1, and ask the signer for it" in capsys.readouterr().err


def test_signatures_that_could_not_be_checked_are_checked_when_they_can_be(
    here: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ADAPTREE_KEYS", str(tmp_path / "keys"))
    wrong = signing.Signature(signing.new_key("alice").public, bytes(64), "reviews@1")
    here.add(task())
    (here.path_of("reviews") / signing.SIGNATURES).write_text(signing.to_text([wrong]))
    with monkeypatch.context() as patched:
        without_package(patched)
        assert main(["list", "--store", str(here.path)]) == 0
        assert "signed by (not checked)" in capsys.readouterr().out
    assert "is wrong" in here.list()[0].problem


def test_a_store_is_exported_imported_searched_and_verified_wherever_it_is(
    here: Store, there: Store, tmp_path: Path
) -> None:
    for name in ("reviews", "tickets"):
        here.add(task(name))
    api.export(here, [], tmp_path / "all.adaptree", everything=True)
    api.import_file(tmp_path / "all.adaptree", there)
    api.export(there, ["reviews"], tmp_path / "one.adaptree")
    assert [hit.summary.name for hit in api.search("tickets", there)] == ["tickets"]
    there.tag("tickets", "stable")
    there.note("tickets", "good enough")
    assert [row.summary.name for row in there.rows(tag="stable")] == ["tickets"]
    found, _ = api.verify(there)
    assert (found.ok, found.store) == (True, there.location)
    assert {row.task for row in found.rows if "@" in row.task} == {"reviews@1", "tickets@1"}


def test_verify_reads_the_objects_and_not_their_copies(here: Store) -> None:
    there = Store(f"memory://{uuid.uuid4().hex}")
    assert isinstance(there, RemoteStore)
    for name in ("a", "b"):
        here.add(task(name))
    push(here, there)
    there["a"]
    key = "tasks/a/1.adaptree"
    data = bytearray(there._objects.read(key) or b"")
    data[len(data) // 2] ^= 1
    there._objects.put(key, bytes(data))
    found, _ = api.verify(there, repair=here)
    assert not found.ok
    assert [row.task for row in found.damaged] == ["a@1"]
    assert key in " ".join(found.damaged[0].damaged.values())


@pytest.mark.slow
def test_a_flipped_bit_in_any_object_is_found_and_named(
    here: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTREE_KEYS", str(tmp_path / "keys"))
    signing.new_key("alice")
    here.add(task())
    api.export(here, ["reviews"], tmp_path / "signed.adaptree", key="alice")
    there = Store(f"memory://{uuid.uuid4().hex}")
    assert isinstance(there, RemoteStore)
    api.import_file(tmp_path / "signed.adaptree", there)
    there.tag("reviews", "stable")
    objects, rng = there._objects, random.Random(0)
    keys = [key for key, found in objects.listing("").items() if found.bytes]
    assert {Path(key.partition("+")[0]).suffix for key in keys} == {".adaptree", ".json", ".sig", ".notes", ".tag"}
    for key in keys * 5:
        before = objects.read(key)
        assert before
        data, bit = bytearray(before), rng.randrange(8 * len(before))
        data[bit // 8] ^= 1 << bit % 8
        objects.put(key, bytes(data))
        found = verify(Store(there.location))
        assert key.partition("+")[0] in str([row.damaged for row in found.damaged]), f"bit {bit} of {key}"
        if key.endswith((".json", ".sig")):
            mended = verify(Store(there.location), repair=Store(tmp_path / "nobody"))
            assert mended.ok
            assert [each for row in mended.rows for each in row.repaired] == [key]
            assert objects.read(key) == before
        objects.put(key, before)
    assert verify(there).ok


# commands


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3.running() as endpoint:
        yield endpoint


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.slow
def test_every_command_works_on_a_store_behind_a_url(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    s3.use(server, monkeypatch)
    base, data = tiny_base(tmp_path / "base"), words_csv(tmp_path / "words.csv")
    url = ["--store", f"s3://{s3.BUCKET}/{uuid.uuid4().hex}"]
    capsys.readouterr()
    assert main(["list", *url]) == 0
    assert capsys.readouterr().err == f"no tasks in {url[1]} yet.  adaptree train DATA --name NAME\n"
    training = ["train", data, "--name", "words", "--epochs", "1", "--base", base, "--method", "houlsby:4", "-q"]
    result = json.loads(run(capsys, *training, *url, "--format", "json"))
    assert (result["task"], result["version"]) == ("words", 1)
    run(capsys, *training, *url)
    texts = ["lion bear", "apple"]
    answers = run(capsys, "predict", "words@1", *texts, *url, "--format", "jsonl")
    assert len(answers.splitlines()) == 2
    assert "words@2" in run(capsys, "list", *url)
    assert len(json.loads(run(capsys, "history", "words", *url, "--format", "json"))) == 2
    assert "# words@2" in run(capsys, "show", "words", *url)
    assert json.loads(run(capsys, "show", "words@1", *url, "--format", "json"))["version"] == 1
    scores = json.loads(run(capsys, "evaluate", "words", data, *url, "--format", "json"))
    assert scores["rows"] == 90
    run(capsys, "compose", "average(words@1, words@2)", "--name", "mean", *url)
    assert run(capsys, "predict", "mean", "lion", *url, "--format", "jsonl")
    local = ["--store", tmp_path / "local"]
    copied = json.loads(run(capsys, "pull", url[1], "words@1", *local, "--format", "json"))
    assert [(row["source"], row["task"], row["versions"]) for row in copied] == [("words@1", "words@1", 1)]
    assert run(capsys, "predict", "words", *texts, *local, "--base", base, "--format", "jsonl") == answers
    run(capsys, "remove", "words@1", *url)
    assert [row["version"] for row in json.loads(run(capsys, "history", "words", *url, "--format", "json"))] == [2]
    monkeypatch.setenv("ADAPTREE_STORE", url[1])
    assert "words@2" in run(capsys, "list")


def test_push_and_pull_say_how_much_they_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    for name in ("a", "b"):
        Store(here).add(task(name))
    assert main(["push", "a", there, "--store", here]) == 0
    out, err = capsys.readouterr()
    assert "a@1" in out
    assert re.fullmatch(rf"1 version, \d+ B copied to {there}\n", err)
    assert main(["push", "--all", there, "--store", here]) == 0
    assert capsys.readouterr().err.endswith("; 1 of 2 were there already\n")
    assert main(["pull", there, "--store", str(tmp_path / "third"), "-q"]) == 0
    assert capsys.readouterr().err == ""
    for words in (["push", there], ["push", "a", there, "--all"]):
        assert main([*words, "--store", here]) == UsageError.exit_code
        assert "adaptree push TASK… URL" in capsys.readouterr().err


OTHER_MACHINE = """
import sys
import torch
from adaptree import Store, api, load_base
url, base, texts = sys.argv[1], sys.argv[2], sys.argv[3:]
api.pull(url, ["whole"], store=Store())
torch.save(load_base(base).bind(Store()["whole"]).logits(texts), "logits.pt")
"""


@pytest.mark.slow
def test_through_s3_to_another_machine_the_logits_are_the_same_bit_for_bit(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import adaptree as at

    s3.use(server, monkeypatch)
    base, data = tiny_base(tmp_path / "base"), words_csv(tmp_path / "words.csv")
    here, url = at.Store(tmp_path / "here"), f"s3://{s3.BUCKET}/{uuid.uuid4().hex}"
    options = {"base": base, "store": here, "epochs": 1, "method": "pfeiffer:4"}
    for name in ("first", "second"):
        at.train(data, name=name, seed=len(name), **options)
    api.compose("fuse(first, second)", name="whole", store=here, data=data, epochs=1, base=base)
    assert [each.versions for each in api.push(["whole"], url, store=here)] == [3]
    texts = ["lion bear the", "apple or saw", "new hammer drill"]
    expected = at.load_base(base).bind(here["whole"]).logits(texts)
    home = tmp_path / "home"
    home.mkdir()
    kept = ("PATH", "PYTHONPATH", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"HOME": str(home), **s3.settings(server)}
    command = [sys.executable, "-c", OTHER_MACHINE, url, str(base), *texts]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(home / "logits.pt", weights_only=True), expected)

"""A task in another base of its shape: the same weights, no scores of its own, and a warning until it is evaluated."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import adaptree as at
from adaptree import api
from adaptree.cli import main
from adaptree.errors import AdaptreeError, BadName, TaskNotFound, UsageError, WrongBase
from adaptree.models.base import Base
from adaptree.models.loading import load_base
from adaptree.models.opening import open_task
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from adaptree.training.composing import compose
from adaptree.training.rebase import rebase
from tests.bases import tiny_base, words_csv

TEXTS = ["the lion and a plum", "new saw near the bear today", "apple"]
RARE = "drill"
"""A word that is in none of the texts."""
METHODS = ("pfeiffer(size=8, invertible=true)", "houlsby:8", "lt_sft:0.05", "rand_sft:0.05", "bitfit", "lora:2", "head")


def moved(source: Path, target: Path, *names: str, by: float = 0.05, row: int | None = None) -> Path:
    """A copy of a base with some of its weights moved; only one row of them if that is said."""
    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for name, tensor in sorted(weights.items()):  # a file has no order
        if not names or name in names:
            noise = by * torch.randn(tensor.shape, generator=generator)
            weights[name] = tensor + (
                noise if row is None else torch.where(torch.arange(len(noise)) == row, 1, 0)[:, None] * noise
            )
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def with_a_word_more(source: Path, target: Path) -> Path:
    """A copy of a base that knows one word more."""
    moved(source, target)
    weights = load_file(target / "model.safetensors")
    embeddings = weights["embeddings.word_embeddings.weight"]
    weights["embeddings.word_embeddings.weight"] = torch.cat([embeddings, embeddings[:1]])
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config, tokenizer = (json.loads((target / name).read_text()) for name in ("config.json", "tokenizer.json"))
    config["vocab_size"] += 1
    tokenizer["model"]["vocab"]["tiger"] = len(embeddings)
    (target / "config.json").write_text(json.dumps(config))
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("bases") / "source", mask=True)


@pytest.fixture(scope="module")
def source(folder: Path) -> Base:
    return load_base(folder)


@pytest.fixture(scope="module")
def target(folder: Path) -> Base:
    """A base that is near the source everywhere."""
    return load_base(moved(folder, folder.parent / "target"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("data") / "words.csv")


@pytest.fixture(scope="module")
def tasks(source: Base, data: Path) -> dict[str, Task]:
    """A task of each method, trained on the source."""
    return {
        method: at.train(data, base=source, method=method, epochs=1, lr=5e-3, name="words", baselines=False).task
        for method in (*METHODS, "full", "top:1", "tfidf")
    }


@pytest.fixture
def store(tasks: dict[str, Task], tmp_path: Path) -> Store:
    where = Store(tmp_path / "store")
    where.add(tasks[METHODS[0]])
    return where


@pytest.mark.parametrize("method", METHODS)
def test_the_same_weights_run_in_another_base(
    method: str, tasks: dict[str, Task], source: Base, target: Base, tmp_path: Path
) -> None:
    where = Store(tmp_path)
    where.add(tasks[method])
    found = rebase(where, "words", target)
    assert found.record.reference == "words@2"
    assert all(torch.equal(t, tasks[method].weights[name]) for name, t in found.weights.items())
    assert found.weights.keys() == tasks[method].weights.keys()
    here, there = target.bind(where["words"]).logits(TEXTS), source.bind(where["words@1"]).logits(TEXTS)
    assert float((here - there).abs().max()) > 1e-4
    assert torch.isfinite(here).all()
    probes = found.record.probe["inputs"]
    assert torch.equal(where["words"].tensors["probe.logits"], target.bind(found).logits(probes))
    with pytest.raises(WrongBase):
        source.bind(where["words"])


@pytest.mark.parametrize("method", METHODS)
def test_where_the_bases_do_not_differ_neither_do_the_logits(
    method: str, tasks: dict[str, Task], source: Base, folder: Path, tmp_path: Path
) -> None:
    at_word = source.encoder.encode([RARE], 8)[0].ids[1]
    other = load_base(moved(folder, tmp_path / "rare", "embeddings.word_embeddings.weight", by=1.0, row=int(at_word)))
    assert other.fingerprint != source.fingerprint
    where = Store(tmp_path / "store")
    where.add(tasks[method])
    found = rebase(where, "words", other)
    assert torch.equal(other.bind(found).logits(TEXTS), source.bind(tasks[method]).logits(TEXTS))
    assert not torch.equal(other.bind(found).logits([RARE]), source.bind(tasks[method]).logits([RARE]))


def test_the_record_says_where_it_comes_from(store: Store, source: Base, target: Base) -> None:
    old = store["words"].record
    new = rebase(store, "words", target, "elsewhere").record
    assert new.reference == "elsewhere@1"
    assert new.base == {"name": "target", "fingerprint": target.fingerprint, "architecture": "bert"}
    assert new.extra["rebased"] == {
        "from": "source", "fingerprint": source.fingerprint, "reference": "words@1", "metrics": old.metrics,
    }  # fmt: skip
    assert old.metrics["validation"]
    assert new.metrics == new.intervals == new.baselines == {}
    assert new.history == []
    assert "insight" not in new.extra
    assert (new.labels, new.method, new.pooling, new.columns) == (old.labels, old.method, old.pooling, old.columns)
    assert new.parameters["trained"] == old.parameters["trained"]
    assert store["words"].record == old, "the task itself stays as it is"
    assert [summary.score for summary in store.list()] == [None, old.metrics["validation"]["accuracy"]]


def test_that_base_already(store: Store, source: Base) -> None:
    with pytest.raises(UsageError, match="'words@1' is on that base already, source"):
        rebase(store, "words", source)
    assert len(store.history("words")) == 1


@pytest.mark.parametrize(
    ("method", "why"), [("full", "whole weights"), ("top:1", "whole weights"), ("tfidf", "does not use")]
)
def test_what_has_no_meaning_elsewhere_is_refused(
    method: str, why: str, tasks: dict[str, Task], target: Base, tmp_path: Path
) -> None:
    where = Store(tmp_path)
    where.add(tasks[method])
    with pytest.raises(UsageError, match=rf"'words@1' .*{why}.*adaptree train DATA --name words --base"):
        rebase(where, "words", target)


def test_a_task_on_others_is_refused(store: Store, source: Base, target: Base, data: Path) -> None:
    at.train(data, base=source, method="pfeiffer:4", on="words", epochs=1, store=store, name="upper")
    with pytest.raises(UsageError, match=r"'upper@1' is made of words@1, which would stay"):
        rebase(store, "upper", target)


SHAPES: dict[str, dict[str, int]] = {"deeper": {"layers": 3}, "wider": {"hidden": 48}}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_base_of_another_shape_is_refused(shape: str, store: Store, tmp_path: Path) -> None:
    other = load_base(tiny_base(tmp_path / shape, mask=True, **SHAPES[shape]))  # type: ignore[arg-type]
    what = r"it has a base of [\d,]+ parameters without embeddings, here [\d,]+\."
    with pytest.raises(WrongBase, match=rf"'words@1' does not fit into {shape}: {what}.*same shape as source"):
        rebase(store, "words", other)
    assert len(store.history("words")) == 1


def test_another_architecture_is_refused(store: Store, target: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target.hooked, "sites", replace(target.hooked.sites, architecture="electra"))
    with pytest.raises(WrongBase, match="it has the architecture bert, here electra"):
        rebase(store, "words", target)


def test_a_weight_of_another_shape_is_named(store: Store, tasks: dict[str, Task], target: Base) -> None:
    task = tasks[METHODS[0]]
    up = task.weights["0.feedforward.up"]
    store.add(Task(replace(task.record, name="wide"), {**task.weights, "0.feedforward.up": torch.cat([up, up])}))
    with pytest.raises(WrongBase, match=r"it has 0.feedforward.up 16 × 32, here 8 × 32"):
        rebase(store, "wide", target)
    store.add(Task(replace(task.record, name="more"), {**task.weights, "9.feedforward.up": up}))
    with pytest.raises(WrongBase, match=r"it has 9.feedforward.up 8 × 32, here missing"):
        rebase(store, "more", target)


def test_positions_over_other_embeddings_are_refused(tasks: dict[str, Task], tmp_path: Path) -> None:
    """A δ counts its positions over all weights: with another vocabulary they would be other weights'."""
    other = load_base(tiny_base(tmp_path / "unmasked"))  # one word less
    where = Store(tmp_path / "store")
    for method in ("lt_sft:0.05", "pfeiffer(size=8, invertible=true)"):
        where.add(Task(replace(tasks[method].record, name=method[:4]), tasks[method].tensors))
    with pytest.raises(WrongBase, match=r"it has a base of [\d,]+ parameters in all, here"):
        rebase(where, "lt_s", other)
    assert rebase(where, "pfei", other).record.version == 2, "an adapter does not care how many words there are"


def test_a_language_keeps_its_words(source: Base, folder: Path, tmp_path: Path) -> None:
    where = Store(tmp_path / "store")
    text = [
        {"text": f"the {word} and a {other}"} for word in ("lion", "saw", "plum") for other in ("bear", "apple")
    ] * 4
    at.train(text, base=source, kind="mlm", method="pfeiffer:4", epochs=1, store=where, name="lang")
    other = load_base(with_a_word_more(folder, tmp_path / "longer"))
    with pytest.raises(WrongBase, match=r"it has head.bias \d+, here \d+"):
        rebase(where, "lang", other)


def test_inputs_longer_than_the_base_reads_are_refused(store: Store, tasks: dict[str, Task], target: Base) -> None:
    task = tasks[METHODS[0]]
    store.add(Task(replace(task.record, max_length=9999), task.tensors))
    with pytest.raises(WrongBase, match="it has inputs of 9999 tokens, here at most 6"):
        rebase(store, "words", target)


def test_names_are_checked_before_anything_is_loaded(store: Store) -> None:
    with pytest.raises(BadName):
        rebase(store, "words", "no-such-base", "Not A Name")
    with pytest.raises(TaskNotFound, match="Did you mean 'words'"):
        rebase(store, "wrods", "no-such-base")
    with pytest.raises(AdaptreeError, match="no-such-base"):
        rebase(store, "words", "no-such-base")


# the warning


def warned(store: Store, reference: str, base: Base, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        open_task(store, reference, base=base, **options)
    return [str(each.message) for each in found]


def test_prediction_warns_until_the_task_is_evaluated_there(
    store: Store, source: Base, target: Base, data: Path
) -> None:
    rebase(store, "words", target)
    files = {path: path.read_bytes() for path in store.path_of("words").iterdir()}
    (text,) = warned(store, "words", target)
    assert text == (
        "'words' was trained on source and put into target, where nobody has scored it yet.  "
        "adaptree evaluate words@2 DATA"
    )
    assert warned(store, "words", target, evaluating=True) == []
    assert warned(store, "words@1", source) == []
    api.evaluate(target.bind(store["words"]), data)  # in no store: nobody is told
    assert len(warned(store, "words", target)) == 1
    api.evaluate(source.bind(store["words@1"]), data, store=store)
    assert store.marks("words@1") == frozenset()
    api.evaluate(target.bind(store["words"]), data, store=store)
    assert store.marks("words") == {"evaluated"}
    assert warned(store, "words", target) == []
    assert {path: path.read_bytes() for path in store.path_of("words").iterdir()} == files, "a version never changes"
    rebase(store, "words@1", target)
    assert len(warned(store, "words", target)) == 1, "a new version is a new one"


def test_a_score_without_some_layers_is_none_of_the_task(store: Store, target: Base, data: Path) -> None:
    rebase(store, "words", target)
    api.evaluate(target.bind("drop(words, layers='0')", tasks=store), data, store=store)
    assert store.marks("words") == frozenset()
    elsewhere = Store(store.path / "elsewhere")
    assert api.evaluate(target.bind(store["words"]), data, store=elsewhere)["rows"] > 0


@pytest.mark.filterwarnings("ignore:.*nobody has scored it yet")
def test_what_is_made_of_an_unscored_task_warns_too(store: Store, target: Base, data: Path) -> None:
    rebase(store, "words", target)
    at.train(data, base=target, method=METHODS[0], epochs=1, seed=1, store=store, name="here", baselines=False)
    for text, name in (("average(here, words)", "first"), ("average(words, here)", "second")):
        made = compose(text, name=name, store=store, base=target).task
        assert made.record.extra["rebased"]["metrics"] == {}
        (said,) = warned(store, name, target)
        assert f"evaluate {name}@1 DATA" in said
    api.evaluate(target.bind(store["words"]), data, store=store)
    assert "rebased" not in compose("average(here, words)", name="third", store=store, base=target).task.record.extra


def test_a_part_that_was_put_back_under_another_number_is_warned_of(store: Store, target: Base, data: Path) -> None:
    part = rebase(store, "words", target, name="part")
    at.train(data, base=target, method="pfeiffer:4", on="part", epochs=1, store=store, name="top", baselines=False)
    store.remove("part@1", force=True)
    assert store.add(part).record.reference == "part@2"
    assert len(warned(store, "top", target)) == 1


def test_marks_lie_beside_a_version_and_disturb_nothing(store: Store, target: Base) -> None:
    rebase(store, "words", target)
    for word in ("evaluated", "seen", "evaluated"):
        store.mark("words@2", word)
    assert store.marks("words") == {"evaluated", "seen"}
    assert [summary.version for summary in store.history("words")] == [1, 2]
    with pytest.raises(TaskNotFound):
        store.mark("words@3", "evaluated")
    store.remove("words@2")
    assert rebase(store, "words@1", target).record.version == 3
    assert store.marks("words") == frozenset()
    store.remove("words")
    assert len(store) == 0


def run(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main([str(word) for word in words]) == code
    said = capsys.readouterr()
    return said.out, said.err


@pytest.mark.filterwarnings("default:.*nobody has scored it yet")
def test_the_commands(store: Store, folder: Path, target: Base, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--store", store.path)
    other = folder.parent / "target"
    out, err = run(capsys, "rebase", "words", "--base", other, "--name", "moved", *where)
    assert out == ("moved@1: pfeiffer(size=8, invertible=true) on target, as words@1 on source\n")
    assert err == "it has no score there yet.  adaptree evaluate moved DATA\n"
    note = "note: 'moved' was trained on source and put into target, where nobody has scored it yet."
    for _ in range(2):
        out, err = run(capsys, "predict", "moved", *TEXTS, "--format", "jsonl", *where)
        assert len(out.splitlines()) == 3
        assert err.count(note) == len(err.splitlines()) == 1
    for quiet in ("--quiet", "-q"):
        out, err = run(capsys, "predict", "moved", *TEXTS, "--format", "jsonl", quiet, *where)
        assert (len(out.splitlines()), err) == (3, "")
    out, err = run(capsys, "evaluate", "moved", data, "--format", "json", *where)
    assert err == ""
    assert json.loads(out)["base"] == "target"
    _, err = run(capsys, "predict", "moved", *TEXTS, *where)
    assert err == ""
    out, err = run(capsys, "rebase", "words", "--base", other, "--format", "json", "-q", *where)
    found = json.loads(out)
    assert (found["task"], found["version"], found["metrics"], err) == ("words", 2, {}, "")
    assert found["rebased"]["reference"] == "words@1"
    _, err = run(capsys, "rebase", "words@1", "--base", folder, *where, code=2)
    assert err.startswith("✘ 'words@1' is on that base already, source.")
    _, err = run(capsys, "rebase", "wrods", "--base", other, *where, code=1)
    assert "Did you mean 'words'?" in err
    _, err = run(capsys, "rebase", "words", *where, code=2)
    assert "--base" in err

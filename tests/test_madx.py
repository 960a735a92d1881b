"""MAD-X: tasks on language adapters, which are swapped; beside a plain model written out here."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import adaptree as at
from adaptree.cli import main
from adaptree.core import sparse
from adaptree.errors import CompositionError, MethodError, TaskNotFound, TrainingError, UsageError
from adaptree.methods.sparse import POSITIONS, VALUES, universe
from adaptree.models.base import Base
from adaptree.models.loading import load_base
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from adaptree.training import loop
from tests.bases import WORDS, tiny_base, words_csv

LANGUAGE = "pfeiffer(size=8, invertible=true)"
ENGLISH = [("lion", "wolf"), ("apple", "pear"), ("hammer", "saw")]
QUECHUA = [("old", "new"), ("big", "small"), ("plum", "bear")]
TEXTS = [["the", "lion", "and", "a", "plum"], ["new", "saw", "near", "the", "bear", "today"], ["apple"]]


def lines(pairs: Sequence[tuple[str, str]], count: int = 60, seed: int = 0) -> list[dict[str, str]]:
    """Plain text in which each word comes with its fellow."""
    rng = random.Random(seed)
    return [{"text": " ".join(word for pair in rng.choices(pairs, k=4) for word in pair)} for _ in range(count)]


def entities(path: Path, rows: int = 60, seed: int = 0) -> Path:
    """Sentences whose beasts and tools are tagged."""
    rng = random.Random(seed)
    tags = {word: f"B-{kind.upper()}" for kind in ("beast", "tool") for word in WORDS[kind].split()}
    words = [*tags, *"the a old new near".split()]  # noqa: SIM905
    with path.open("w") as file:
        for _ in range(rows):
            tokens = rng.choices(words, k=rng.randint(2, 8))
            file.write(json.dumps({"tokens": tokens, "tags": [tags.get(word, "O") for word in tokens]}) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("madx") / "base", mask=True)


@pytest.fixture(scope="module")
def base(folder: Path) -> Base:
    return load_base(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return entities(tmp_path_factory.mktemp("data") / "ner.jsonl")


@pytest.fixture(scope="module")
def store(base: Base, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two languages, and a task that was trained on one of them."""
    where = Store(tmp_path_factory.mktemp("store"))
    for name, pairs in (("lang/en", ENGLISH), ("lang/qu", QUECHUA)):
        at.train(lines(pairs), base=base, kind="mlm", method=LANGUAGE, epochs=6, lr=5e-3, store=where, name=name)
    at.train(data, base=base, method="pfeiffer:8", on="lang/en", epochs=3, lr=5e-3, store=where, name="ner")
    return where


def bits(task: Task) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in task.tensors.items()}


# the same model, written out


def bottleneck(x: Tensor, v: dict[str, Tensor], name: str) -> Tensor:
    return F.relu(x @ v[f"{name}.down"] + v[f"{name}.down_bias"]) @ v[f"{name}.up"] + v[f"{name}.up_bias"]


def couple(e: Tensor, v: dict[str, Tensor]) -> Tensor:
    e1, e2 = e.chunk(2, -1)
    o1 = bottleneck(e2, v, "invertible.f") + e1
    return torch.cat([o1, bottleneck(o1, v, "invertible.g") + e2], -1)


def uncouple(o: Tensor, v: dict[str, Tensor]) -> Tensor:
    o1, o2 = o.chunk(2, -1)
    e2 = o2 - bottleneck(o1, v, "invertible.g")
    return torch.cat([o1 - bottleneck(e2, v, "invertible.f"), e2], -1)


def states(w: dict[str, Tensor], ids: Any, tasks: Sequence[dict[str, Tensor]]) -> Tensor:
    """A BERT of two layers with tasks in it, the lowest first: MAD-X, §4.1."""
    ids = torch.as_tensor(ids).long()

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    e = "embeddings"
    x = w[f"{e}.word_embeddings.weight"][ids] + w[f"{e}.token_type_embeddings.weight"][0]
    x = norm(x + w[f"{e}.position_embeddings.weight"][: len(ids)], f"{e}.LayerNorm")
    for v in tasks:
        if "invertible.f.down" in v:
            x = couple(x, v)
    for layer in range(2):
        of = f"encoder.layer.{layer}"
        q, k, u = (linear(x, f"{of}.attention.self.{key}").view(len(ids), 4, -1) for key in ("query", "key", "value"))
        scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
        seen = torch.einsum("hij,jhd->ihd", scores.softmax(-1), u).reshape(len(ids), -1)
        x = norm(linear(seen, f"{of}.attention.output.dense") + x, f"{of}.attention.output.LayerNorm")
        r = linear(F.gelu(linear(x, f"{of}.intermediate.dense")), f"{of}.output.dense") + x
        h = norm(r, f"{of}.output.LayerNorm")
        for v in tasks:  # LA = U(ReLU(D(h))) + r, then TA = U(ReLU(D(LA))) + r: the same r
            h = bottleneck(h, v, f"{layer}.feedforward") + r
        x = norm(h, f"{of}.output.LayerNorm")
    return x


def said(w: dict[str, Tensor], x: Tensor, v: dict[str, Tensor], *, inverse: bool) -> Tensor:
    """The words' logits of an mlm task."""
    x = F.gelu(F.linear(x, v["head.dense.weight"], v["head.dense.bias"]))
    x = F.layer_norm(x, x.shape[-1:], v["head.norm.weight"], v["head.norm.bias"], 1e-12)
    return F.linear(uncouple(x, v) if inverse else x, w["embeddings.word_embeddings.weight"], v["head.bias"])


@pytest.fixture(scope="module")
def exact(folder: Path) -> Base:
    """The base in double precision, so that nothing but the maths can differ."""
    found = load_base(folder)
    found.hooked.model.double()
    return found


@pytest.fixture(scope="module")
def shaken(store: Store) -> dict[str, Task]:
    """The tasks with weights that show, in double precision."""
    found = {}
    for seed, name in enumerate(("lang/en", "lang/qu", "ner")):
        generator = torch.Generator().manual_seed(seed)
        task = store[name]
        tensors = {
            n: (t + 0.2 * torch.randn(t.shape, generator=generator)).double() if t.is_floating_point() else t
            for n, t in sorted(task.weights.items())  # a file has no order
        }
        found[name] = Task(task.record, tensors, task.parts)
    return found


def difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("below", [["lang/en"], ["lang/qu"], ["lang/en", "lang/qu"], ["lang/qu", "lang/en"], []])
def test_a_task_on_languages_is_the_plain_model(exact: Base, shaken: dict[str, Task], below: list[str]) -> None:
    bound = exact.bind(f"stack({', '.join([*below, 'ner'])})", tasks=shaken)
    examples, out = bound.run(bound.kind.inputs(TEXTS, bound.task.record))
    own = [shaken[name].weights for name in (*below, "ner")]
    for (row,), found in zip(examples, out, strict=True):
        x = states(exact.hooked.frozen, row.ids, own)
        expected = F.linear(x, own[-1]["head.weight"], own[-1]["head.bias"])
        assert difference(found, expected) < 1e-6
        unstacked = states(exact.hooked.frozen, row.ids, own[-1:])
        other = F.linear(unstacked, own[-1]["head.weight"], own[-1]["head.bias"])
        assert (difference(other, expected) > 1e-2) == bool(below), "a language that has no effect"


@pytest.mark.parametrize("below", [[], ["lang/qu"]])
def test_a_language_says_words_through_the_inverse_of_its_own_coupling(
    exact: Base, shaken: dict[str, Task], below: list[str]
) -> None:
    """Couplings compose in order; before the output layer there is the answering task's inverse, which it learned."""
    bound = exact.bind(f"stack({', '.join([*below, 'lang/en'])})", tasks=shaken)
    examples, out = bound.run(["lion [MASK] apple pear", "the old hammer saw"])
    v = shaken["lang/en"].weights
    for (row,), found in zip(examples, out, strict=True):
        x = states(exact.hooked.frozen, row.ids, [shaken[name].weights for name in (*below, "lang/en")])[row.at.places]
        gold = torch.as_tensor(row.at.pieces).long()
        expected = F.cross_entropy(said(exact.hooked.frozen, x, v, inverse=True), gold, reduction="none")
        assert difference(found[:, 0], expected) < 1e-6
        without = F.cross_entropy(said(exact.hooked.frozen, x, v, inverse=False), gold, reduction="none")
        assert difference(without, expected) > 1e-3, "an inverse that has no effect"


def test_a_language_without_a_coupling_of_its_own_has_no_inverse(exact: Base, shaken: dict[str, Task]) -> None:
    plain = shaken["lang/qu"]
    v = {name: t for name, t in plain.weights.items() if not name.startswith("invertible.")}
    tasks = {**shaken, "plain": Task(replace(plain.record, method="pfeiffer:8"), v)}
    bound = exact.bind("stack(lang/en, plain)", tasks=tasks)
    [(row,)], [found] = bound.run(["lion [MASK] apple pear"])
    x = states(exact.hooked.frozen, row.ids, [shaken["lang/en"].weights, v])[row.at.places]
    gold = torch.as_tensor(row.at.pieces).long()
    expected = F.cross_entropy(said(exact.hooked.frozen, x, v, inverse=False), gold, reduction="none")
    assert difference(found[:, 0], expected) < 1e-6


def test_a_coupling_that_was_dropped_inside_is_not_inverted(exact: Base, shaken: dict[str, Task]) -> None:
    depth = exact.hooked.sites.depth
    whole = f"drop(lang/en, layers='0-{depth - 1}')"
    nested = f"drop(stack(drop(lang/en, layers='0')), layers='1-{depth - 1}')"
    texts = ["lion [MASK] apple pear"]
    found = [exact.bind(text, tasks=shaken).logits(texts) for text in (whole, nested)]
    assert torch.equal(*found)


# training


def test_a_language_adapter_learns_with_its_coupling(store: Store, base: Base) -> None:
    task = store["lang/en"]
    course = [epoch["validation_loss"] for epoch in task.record.history]
    assert min(course) < course[0] - 0.1
    assert task.record.metrics["validation"]["perplexity"] == min(epoch["perplexity"] for epoch in task.record.history)
    coupling = {name: t for name, t in task.weights.items() if name.startswith("invertible.")}
    assert len(coupling) == 8
    assert all(t.abs().max() > 0 for t in coupling.values()), "biases are born zero: a zero is one that never moved"
    held = lines(ENGLISH, 30, seed=9)
    whole = at.evaluate(base.bind(task), held)["metrics"]["test"]["perplexity"]
    undone = {name: torch.zeros_like(t) if name in coupling else t for name, t in task.weights.items()}
    assert at.evaluate(base.bind(Task(task.record, undone)), held)["metrics"]["test"]["perplexity"] > whole
    counted = task.record.parameters
    assert counted["adapters"] == sum(t.numel() for n, t in task.weights.items() if not n.startswith("head."))


def test_a_task_trained_on_a_language_runs_on_it_and_on_another(store: Store, base: Base, data: Path) -> None:
    ner = store["ner"]
    assert ner.record.extra["on"] == "lang/en@1"
    assert ner.record.extra["needs"] == {"lang/en@1": store["lang/en"].record.digest}
    assert not any(name.startswith("invertible.") for name in ner.weights)
    own = base.bind("ner", tasks=store).logits(TEXTS)
    assert torch.equal(own, base.bind("stack(lang/en, ner)", tasks=store).logits(TEXTS))
    assert torch.equal(own, base.bind(ner).logits(TEXTS))
    probes = ner.record.probe["inputs"]
    assert torch.equal(base.bind(ner).logits(probes), ner.tensors["probe.logits"])
    swapped = base.bind("stack(lang/qu, ner)", tasks=store).logits(TEXTS)
    alone = base.bind("stack(ner)", tasks=store).logits(TEXTS)
    assert not torch.allclose(own, swapped, atol=1e-4)
    assert not torch.allclose(own, alone, atol=1e-4)
    scores = at.evaluate(base.bind("ner", tasks=store), data)["metrics"]["test"]
    course = [epoch["validation_loss"] for epoch in ner.record.history]
    assert course[-1] < course[0]
    assert scores["accuracy"] > 0.5


def test_training_on_top_moves_no_bit_of_what_is_below(store: Store, base: Base, data: Path) -> None:
    before = bits(store["lang/qu"])
    frozen = {name: p.clone() for name, p in base.hooked.frozen.items()}
    at.train(data, base=base, method="pfeiffer:4", on="lang/qu", epochs=1, lr=1e-2, store=store, name="moved")
    assert bits(store["lang/qu"]) == before
    assert all(torch.equal(p, frozen[name]) for name, p in base.hooked.frozen.items())
    assert [summary.version for summary in store.history("lang/qu")] == [1]


def test_a_run_on_a_language_resumes_with_the_same_bits(
    store: Store, base: Base, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    options: dict[str, Any] = {"base": base, "method": LANGUAGE, "on": "lang/en", "epochs": 2, "batch_size": 8}

    class Killed(Exception):
        pass

    def kill(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 9:
            raise Killed

    whole = at.train(data, store=store, name="whole", **options).task
    with pytest.raises(Killed):
        at.train(data, store=store, name="killed", on_event=kill, **options)
    again = at.train(data, store=store, name="killed", resume=True, **options).task
    assert bits(again) == bits(whole)


def test_a_run_is_not_resumed_over_other_weights_of_that_name(
    store: Store, base: Base, data: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"base": base, "method": "pfeiffer:4", "on": "low", "epochs": 3, "baselines": False}
    kept = Store(tmp_path)

    class Killed(Exception):
        pass

    def kill(event: dict[str, Any]) -> None:
        if event["event"] == "epoch":
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
        at.train(data, base=base, method="pfeiffer:4", epochs=1, store=kept, name="low", baselines=False)
        with pytest.raises(Killed):
            at.train(data, store=kept, name="upper", on_event=kill, **options)
    kept.remove("low", force=True)
    at.train(data, base=base, method="pfeiffer:4", epochs=1, seed=1, store=kept, name="low", baselines=False)
    assert kept["low"].record.reference == "low@1"
    with pytest.raises(TrainingError, match="had other data or settings"):
        at.train(data, store=kept, name="upper", resume=True, **options)


@pytest.mark.parametrize("layers", ["0-5", "top:2"])
def test_fast_leaves_no_layer_alone_that_the_task_below_acts_in(tmp_path: Path, layers: str) -> None:
    data = words_csv(tmp_path / "words.csv", 60)
    six, store, notes = load_base(tiny_base(tmp_path / "six", layers=6)), Store(tmp_path / "store"), list[str]()
    options: dict[str, Any] = {"base": six, "epochs": 1, "store": store, "baselines": False}
    at.train(data, method=f"pfeiffer(size=4, layers='{layers}')", name="low", **options)
    at.train(data, method="pfeiffer:4", on="low", fast=True, name="quick", **options,
             on_event=lambda event: notes.append(str(event.get("text", ""))))  # fmt: skip
    everywhere = layers == "0-5"
    said = "all layers are trained; what this task is trained on acts in all of them"
    assert any(said in note for note in notes) == everywhere
    assert any("the others computed once" in note for note in notes) != everywhere
    assert ("layers" in store["quick"].record.method) != everywhere


def test_norms_on_both_are_refused(store: Store, base: Base, data: Path) -> None:
    at.train(data, base=base, method="houlsby:4", epochs=1, store=store, name="normed")
    with pytest.raises(CompositionError, match=r"write the same weight, .*LayerNorm.*bottlenecks without norms stack"):
        at.train(data, base=base, method="houlsby:4", on="normed", epochs=1, store=store, name="refused")
    assert "refused" not in store


def test_an_unknown_language_is_refused_with_a_near_one(store: Store, base: Base, data: Path) -> None:
    with pytest.raises(TaskNotFound, match=r"no task 'lang/eng' in the store.*Did you mean 'lang/en'"):
        at.train(data, base=base, method="pfeiffer:4", on="lang/eng", store=store)


def test_fast_says_that_a_coupling_needs_the_first_layer(tmp_path: Path) -> None:
    six = load_base(tiny_base(tmp_path / "six", layers=6))
    rows = [{"text": f"the {word}", "label": kind} for kind, of in WORDS.items() for word in of.split()] * 4
    with pytest.raises(MethodError, match=r"goes into layer 0, and layers='top:4' leaves that out.*--fast"):
        at.train(rows, base=six, method=LANGUAGE, fast=True)


def test_languages_side_by_side_in_one_pass_are_each_as_alone(store: Store, base: Base) -> None:
    both = ["stack(lang/en, ner)", "stack(lang/qu, ner)", "stack(ner)"]
    together: Any = base.bind(f"parallel({', '.join(both)})", tasks=store)
    assert together.apart == {}
    found = together.predict(TEXTS)
    for name in both:
        assert [answer[name] for answer in found] == base.bind(name, tasks=store).predict(TEXTS)


def test_languages_are_averaged_coupling_and_all(store: Store, base: Base) -> None:
    one, other = store["lang/en"], store["lang/qu"]
    mean = Task(one.record, {name: (t + other.weights[name]) / 2 for name, t in one.weights.items()})
    expected = base.bind(mean).logits(["lion [MASK] apple"])
    torch.testing.assert_close(
        base.bind("average(lang/en, lang/qu)", tasks=store).logits(["lion [MASK] apple"]), expected
    )
    found = base.bind("stack(average(lang/en, lang/qu), ner)", tasks=store).logits(TEXTS)
    torch.testing.assert_close(found, base.bind(store["ner"], on=[mean]).logits(TEXTS))


def test_sparse_deltas_of_a_language_and_of_a_task_add_up(base: Base, data: Path, tmp_path: Path) -> None:
    """LT-SFT: θ + δ_language + δ_task, of tasks of other kinds, through an expression."""
    where = Store(tmp_path)
    options: dict[str, Any] = {"base": base, "method": "lt_sft:0.05", "epochs": 1, "lr": 5e-3, "store": where}
    at.train(lines(QUECHUA), kind="mlm", name="lang/qu-sft", **options)
    at.train(data, name="ner-sft", **options)
    bound = base.bind("stack(lang/qu-sft, ner-sft)", tasks=where)
    assert bound.task.record.kind == "tag"
    frozen, names = base.hooked.frozen, universe(base.hooked.frozen)
    flat = torch.cat([frozen[name].flatten() for name in names]).clone()
    for name in ("lang/qu-sft", "ner-sft"):
        flat[sparse.decode(where[name].weights[POSITIONS])] += where[name].weights[VALUES]
    sizes = [frozen[name].numel() for name in names]
    summed = {n: part.view(frozen[n].shape) for n, part in zip(names, flat.split(sizes), strict=True)}
    head = where["ner-sft"].weights
    examples, out = bound.run(bound.kind.inputs(TEXTS, bound.task.record))
    for (row,), found in zip(examples, out, strict=True):
        inputs = {"input_ids": torch.from_numpy(row.ids)[None].long(), "attention_mask": torch.ones(1, len(row.ids))}
        with torch.no_grad():
            x = torch.func.functional_call(base.hooked.backbone, {**frozen, **summed}, kwargs=inputs).last_hidden_state
        expected = F.linear(x[0], head["head.weight"], head["head.bias"])
        assert difference(found, expected) < 1e-5
    assert not torch.allclose(bound.logits(TEXTS), base.bind("ner-sft", tasks=where).logits(TEXTS), atol=1e-4)


# the command


def run(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main([str(word) for word in words]) == code
    said = capsys.readouterr()
    return said.out, said.err


def test_the_command_trains_on_top_of_a_task(
    store: Store, base: Base, folder: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--base", folder, "--store", store.path, "--epochs", "1", "-q")
    out, _ = run(
        capsys, "train", data, "--name", "typed", "--method", "pfeiffer", "--size", "8", "--on", "lang/en", *common,
        "--format", "json",
    )  # fmt: skip
    assert json.loads(out)["method"] == "pfeiffer(size=8)"
    assert store["typed"].record.extra["on"] == "lang/en@1"
    out, _ = run(capsys, "predict", "typed", "the lion and a saw", "--store", store.path, "--format", "jsonl", "-q")
    (answer,) = base.bind("stack(lang/en, typed)", tasks=store).predict(["the lion and a saw"])
    assert json.loads(out) == answer.to_dict()
    _, err = run(capsys, "train", data, "--name", "typed", "--on", "lang/em", *common, code=1)
    assert err == "✘ no task 'lang/em' in the store.  Did you mean 'lang/en'?   adaptree list\n"
    _, err = run(capsys, "train", data, "--name", "typed", "--on", "rows(lang/en, ner)", *common, code=2)
    assert "nothing can be trained on rows(lang/en@1, ner@1)" in err


def test_the_command_takes_a_fusion_as_a_method(
    store: Store, base: Base, folder: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, name in enumerate(("one", "two")):
        at.train(data, base=base, method="pfeiffer:4", epochs=1, seed=seed, store=store, name=name)
    common = ("--base", folder, "--store", store.path, "--epochs", "1", "-q", "--format", "json")
    run(capsys, "train", data, "--name", "fused", "--method", "fuse(one, two)", *common)
    assert store["fused"].record.extra["fuses"] == "fuse(one@1, two@1)"
    words = ("train", data, "--name", "fused", "--method", "fuse(one, two)")
    _, err = run(capsys, *words, "--size", "4", *common, code=2)
    assert err.startswith("✘ --size and --layers are of one method")
    _, err = run(capsys, "train", data, "--name", "x", "--method", "huolsby", *common, code=2)
    assert "Did you mean 'houlsby'?" in err


def test_a_language_may_take_the_head_of_another_as_it_is(base: Base) -> None:
    english = at.train(lines(ENGLISH), base=base, method="head", kind="mlm", epochs=2, name="english").task
    options: dict[str, Any] = {"base": base, "kind": "mlm", "epochs": 1, "method": "pfeiffer:4"}
    own = at.train(lines(QUECHUA), **options).task
    task = at.train(lines(QUECHUA), head=english, **options).task
    heads = [name for name in english.weights if name.startswith("head.")]
    assert all(torch.equal(task.weights[name], english.weights[name]) for name in heads)
    assert not all(torch.equal(own.weights[name], english.weights[name]) for name in heads)
    assert task.record.parameters["head"] == 0
    assert own.record.parameters["head"] > 0
    body = [name for name in task.weights if name not in heads]
    assert not all(torch.equal(task.weights[name], own.weights[name]) for name in body), "it is fitted to the head"


def test_a_head_of_another_kind_is_refused(base: Base, tmp_path: Path) -> None:
    english = at.train(lines(ENGLISH), base=base, method="head", kind="mlm", epochs=1).task
    with pytest.raises(UsageError, match="not one for kind classify"):
        at.train(words_csv(tmp_path / "words.csv", 40), base=base, epochs=1, head=english)
    with pytest.raises(UsageError, match="without a search"):
        at.train(words_csv(tmp_path / "words.csv", 40), base=base, search=2, head=english)

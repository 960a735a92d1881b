"""What a fused task attends to: means over real tokens, a table, a picture, and what masking an adapter costs."""

from __future__ import annotations

import csv
import functools
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AlbertConfig, AlbertModel

import adaptree as at
from adaptree import compose as algebra
from adaptree.analysis import explain
from adaptree.cli import main
from adaptree.errors import CompositionError, UsageError
from adaptree.models.loading import load_base
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests.bases import tiny_base, words_csv

TEXTS = ["the lion and a plum", "new saw near the bear today and the old wolf under a big drill", "apple"]


class World:
    """A tiny base, three tasks, and a fused one whose queries and keys are large enough to choose among them."""

    def __init__(self, root: Path) -> None:
        self.base = load_base(tiny_base(root / "base"))
        self.data = words_csv(root / "words.csv")
        self.store = Store(root / "store")
        options: dict[str, Any] = {"base": self.base, "lr": 1e-2, "store": self.store, "baselines": False, "epochs": 1}
        for seed, name in enumerate(("a", "b", "lang/c")):
            at.train(self.data, name=name, method="pfeiffer(size=8, init_std=0.3)", seed=seed, **options)
        fused = at.train(self.data, name="born", method="fuse(a, b, lang/c)", **options).task
        generator = torch.Generator().manual_seed(1)
        shaken = {
            name: t + (0.25 * torch.randn(t.shape, generator=generator) if name.endswith((".query", ".key")) else 0)
            for name, t in fused.tensors.items()
        }
        self.store.add(Task(replace(fused.record, name="f", version=0), shaken, fused.parts))
        self.fused = self.base.bind(self.store["f"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def by_hand(world: World, texts: list[str]) -> np.ndarray[Any, Any]:
    """The mean attention from the weights themselves, one text at a time and without padding: (layers, adapters)."""
    base, task = world.base, world.store["f"]
    seen: dict[int, list[Tensor]] = {}
    for text in texts:
        (row,) = base.encoder.encode([text], 64)
        inputs = {"input_ids": torch.from_numpy(row.ids)[None].long()}
        sums: list[Tensor] = []
        norms: list[Any] = [base.hooked.backbone.get_submodule(f"encoder.layer.{i}.output.LayerNorm") for i in range(2)]
        keep = functools.partial(lambda into, module, args: into.append(args[0]), sums)  # before any task acts
        handles = [norm.register_forward_pre_hook(keep, prepend=True) for norm in norms]
        with torch.no_grad(), base.hooked.running(world.fused._plan or {}):
            base.hooked.backbone(**inputs)
        for handle in handles:
            handle.remove()
        for layer, (norm, r) in enumerate(zip(norms, sums, strict=True)):
            h, name = norm(r), f"{layer}.feedforward"
            scores = []
            for part in task.parts.values():
                p = part.weights
                z = torch.relu(h @ p[f"{name}.down"] + p[f"{name}.down_bias"]) @ p[f"{name}.up"] + p[f"{name}.up_bias"]
                scores.append(((h @ task.weights[f"{name}.query"]) * ((z + r) @ task.weights[f"{name}.key"])).sum(-1))
            seen.setdefault(layer, []).append(torch.stack(scores, -1).softmax(-1)[0])
    return np.stack([torch.cat(seen[layer]).double().mean(0).detach().numpy() for layer in range(2)])


def test_it_is_the_mean_over_real_tokens_of_every_text(world: World) -> None:
    found = explain.attention(world.fused, TEXTS)
    assert found.names == ("a@1", "b@1", "lang/c@1")
    assert found.layers == (0, 1)
    assert found.inputs == 3
    assert found.tokens == sum(len(row.ids) for row in world.base.encoder.encode(TEXTS, 64))
    want = by_hand(world, TEXTS)
    assert np.abs(found.weights - want).max() < 1e-5  # padding moves the last bits of a state
    assert np.abs(want - 1 / 3).max() > 0.02, "attention that is even everywhere proves nothing"
    assert np.abs(found.weights.sum(1) - 1).max() < 1e-6
    assert np.abs(found.mean - found.weights.mean(0)).max() == 0
    assert found.most == found.names[int(want.mean(0).argmax())]
    assert found.least == found.names[int(want.mean(0).argmin())]


def test_texts_in_any_number_count_token_by_token(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = (TEXTS * 40)[:100]
    whole = explain.attention(world.fused, texts)
    monkeypatch.setattr(explain, "CHUNK", 7)
    parts = explain.attention(world.fused, iter(texts))
    assert (parts.inputs, parts.tokens) == (whole.inputs, whole.tokens)
    assert np.abs(parts.weights - whole.weights).max() < 1e-12
    one = explain.attention(world.fused, TEXTS[0])
    assert one.inputs == 1


def test_looking_changes_nothing(world: World) -> None:
    before = world.fused.logits(TEXTS)
    explain.attention(world.fused, TEXTS)
    assert torch.equal(world.fused.logits(TEXTS), before)


def test_a_layer_that_runs_several_times_in_a_pass_counts_each_time(tmp_path: Path) -> None:
    """ALBERT has one layer, and runs it at every depth: what it attends to is the mean of all its runs."""
    folder = tiny_base(tmp_path / "base")
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=28, embedding_size=16, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    AlbertModel(config).save_pretrained(folder)
    base, store = load_base(folder), Store(tmp_path / "store")
    options: dict[str, Any] = {"base": base, "store": store, "baselines": False, "epochs": 1}
    for name in "ab":
        at.train(words_csv(tmp_path / "words.csv"), name=name, method="pfeiffer(size=8, init_std=0.3)", **options)
    at.train(tmp_path / "words.csv", name="f", method="fuse(a, b)", **options)
    bound = base.bind(store["f"])
    seen: list[Tensor] = []
    watched = explain._with(bound, lambda fusion: fusion.watched(lambda layer, s: seen.append(s)))
    watched.logits([TEXTS[0]])
    assert len(seen) == 3
    real = torch.stack(seen)[:, 0, : len(base.encoder.encode([TEXTS[0]], 64)[0].ids)]
    found = explain.attention(bound, TEXTS[:1])
    assert found.layers == (0,)
    assert np.abs(found.weights[0] - real.double().mean((0, 1)).numpy()).max() < 1e-7
    assert float(found.weights.sum()) == pytest.approx(1)


def test_in_a_stack_it_is_what_the_fused_task_attends_to_there(world: World) -> None:
    alone = explain.attention(world.fused, TEXTS)
    stacked = explain.attention(world.base.bind("stack(a, f)", tasks=world.store), TEXTS)
    assert stacked.names == alone.names
    assert np.abs(stacked.weights - alone.weights).max() > 1e-4


@pytest.mark.parametrize("text", ["a", "stack(a, b)", "average(a, b)", "drop(f, layers='0')"])
def test_what_does_not_attend_is_refused(world: World, text: str) -> None:
    command = "adaptree explain f" if "f" in algebra.parse(text).names else "adaptree compose"
    with pytest.raises(CompositionError, match=rf"does not attend to anything.*{command}"):
        explain.attention(world.base.bind(text, tasks=world.store), TEXTS)


def test_the_adapters_are_those_of_the_fusion_that_is_looked_at(world: World, tmp_path: Path) -> None:
    """A fused task inside a block is not attended to, and its adapters' names are not the ones to tell."""
    store = Store(tmp_path / "store")
    for name in ("a", "b", "lang/c"):
        store.add(world.store[name])
    at.train(world.data, name="ab", method="fuse(a, b)", base=world.base, store=store, epochs=1, baselines=False)
    at.train(world.data, name="bc", method="fuse(b, lang/c)", base=world.base, store=store, epochs=1, baselines=False)
    bound = world.base.bind("stack(ab, drop(bc, layers='0'))", tasks=store)
    assert explain.attention(bound, TEXTS).names == ("a@1", "b@1")
    bound = world.base.bind("stack(ab, bc)", tasks=store)
    assert explain.attention(bound, TEXTS).names == ("b@1", "lang/c@1")


def test_of_adapters_that_are_attended_to_alike_most_and_least_are_two(world: World) -> None:
    even = explain.Attention("f", ("a@1", "b@1", "c@1"), (0,), np.full((1, 3), 1 / 3), 1, 1)
    assert (even.most, even.least) == ("a@1", "c@1")


def test_nothing_to_read_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="no text was given"):
        explain.attention(world.fused, [])


def test_masking_tells_the_score_with_and_without(world: World) -> None:
    found = explain.masked(world.fused, world.data, ["b@1", "lang/c@1"])
    assert [each.adapter for each in found] == [None, "b@1", "lang/c@1"]
    whole = at.evaluate(world.fused, world.data)["metrics"]["test"]
    assert found[0].scores == whole
    assert found[0].change == 0
    for each in found:
        assert each.metric == "accuracy"
        assert each.score == each.scores["accuracy"]
        assert each.change == each.score - whole["accuracy"]
    rows = [{"text": "the lion", "label": "beast"}, {"text": "a plum", "label": "fruit"}]
    assert len(explain.masked(world.fused, iter(rows), ["a@1"])) == 2
    with pytest.raises(UsageError, match=r"'bb@1' is not fused in 'f'.*Did you mean 'b@1'"):
        explain.masked(world.fused, rows, ["bb@1"])


def test_masking_the_most_attended_moves_the_answers_more_than_masking_the_least(world: World) -> None:
    task = world.store["f"]
    tensors = dict(task.tensors)
    for name in tensors:
        if name.endswith((".query", ".key")):
            tensors[name] = 6 * tensors[name]
    sure = world.base.bind(Task(task.record, tensors, task.parts))
    found = explain.attention(sure, TEXTS)
    most, least = (found.names.index(name) for name in (found.most, found.least))
    whole = sure.logits(TEXTS)
    changed = []
    for index in (most, least):
        other = explain._with(sure, explain._without(index)).logits(TEXTS)
        changed.append(float((other - whole).abs().max()))
    assert changed[0] > 2 * changed[1] > 0


def test_the_picture_is_the_same_again_and_names_every_adapter(world: World, tmp_path: Path) -> None:
    found = explain.attention(world.fused, TEXTS)
    svg, png = explain.heatmap(found, tmp_path / "new" / "one")
    again, _ = explain.heatmap(found, tmp_path / "two")
    assert svg.read_bytes() == again.read_bytes()
    words = {"".join(each.itertext()) for each in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")}
    assert words >= {*found.names, "layer 0", "layer 1", "mean", "What f@1 attends to"}
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    many = replace(found, names=tuple(f"some/long-name-of-a-task-{i}@1" for i in range(3)), task="x" * 200)
    explain.heatmap(many, tmp_path / "three")


# The command


@pytest.fixture
def run(world: World, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: object, code: int = 0) -> str:
        assert main(["explain", *map(str, words), "--store", str(world.store.path)]) == code
        out, err = capsys.readouterr()
        return str(out if code == 0 else err)

    return run


def test_the_command_gives_a_table_json_or_csv(world: World, run: Any) -> None:
    found = explain.attention(world.fused, TEXTS)
    told = json.loads(run("f", *TEXTS, "--format", "json"))
    assert told == found.to_dict()
    rows = list(csv.DictReader(io.StringIO(run("f", *TEXTS, "--format", "csv"))))
    assert [row["layer"] for row in rows] == ["0", "1", "mean"]
    assert float(rows[2]["b@1"]) == pytest.approx(found.mean[1])
    table = run("f", *TEXTS)
    assert "lang/c@1" in table
    assert f"{found.weights[0, 0]:.4f}" in table
    assert "3 inputs" in table


def test_the_command_reads_files_masks_and_draws(world: World, run: Any, tmp_path: Path) -> None:
    told = json.loads(
        run("f", "--file", world.data, "--mask", "--out", tmp_path / "out", "--format", "json", "--quiet")
    )
    assert told["inputs"] == 90
    assert [row["attended"] for row in told["masked"]] == ["", "most", "least"]
    assert told["masked"][1]["adapter"] == told["most"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["attention.png", "attention.svg"]
    table = run("f", world.data, "--mask")
    assert "nothing" in table
    assert "most" in table


def test_texts_that_were_cut_are_told(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    most = world.fused.task.record.max_length
    assert main(["explain", "f", "lion " * (most + 5), "--store", str(world.store.path)]) == 0
    assert f"1 texts are longer than {most} tokens and were truncated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["f"], "give either texts or a data file"),
        (["f", "apple", "--mask"], "--mask scores a labelled file"),
        (["f", "--file", "x.csv", "--mask", "--format", "csv"], "csv has no room"),
        (["a", "apple", "--by", "attention"], "does not attend to anything"),
        (["f", "apple", "--target", "beast"], "whatever the label"),
        (["f", "apple", "--out", "page.html"], "drawn into a folder"),
        (["stack()", "apple"], "bare base"),
        (["parallel(f, a)", "apple"], "several tasks predict here"),
        (["fuse(a, b)", "apple"], 'adaptree compose "fuse(a, b)" --name NAME --train DATA'),
    ],
)
def test_the_command_refuses_what_it_cannot_explain(run: Any, words: list[str], why: str) -> None:
    assert why in run(*words, code=2)

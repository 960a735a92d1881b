"""Each block against a BERT written out in plain PyTorch, and the laws that the algebra obeys.

All in double precision: what differs by a millionth is then another function, and not the rounding of this one.
"""

from __future__ import annotations

import runpy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import adaptree as at
from adaptree import compose
from adaptree.core import sparse
from adaptree.data.batch import collate
from adaptree.errors import CompositionError
from adaptree.methods import parse
from adaptree.methods.sparse import POSITIONS, VALUES, universe
from adaptree.models.base import Base
from adaptree.models.hooks import HookedModel, share, without_dropout
from adaptree.models.loading import load_base
from adaptree.tasks.record import FUSES, Record
from adaptree.tasks.task import Task
from tests import tiny
from tests.bases import FILLER, tiny_base

TEXTS = ["the lion and a plum", "new saw near the bear today", "apple", "a very old hammer with the small new drill"]
LABELS = ["a", "b", "c"]
METHODS = [
    "houlsby:8", "houlsby(size=8, norms=false)", "houlsby_norm:4", "houlsby_deep:4", "houlsby_attention:4",
    "houlsby_feedforward:4", "houlsby_parallel:4", "houlsby_multiplicative:4", "pfeiffer:8",
    "pfeiffer(size=4, norms=true)", "bapna:4", "parallel_adapter:4", "scaled_parallel:4", "lora:2", "ia3", "pal:12",
    "norms", "head", "full", "top:1", "bitfit",
]  # fmt: skip
SPARSE = ["lt_sft:0.05", "diff_pruning:0.05"]
DOCS = Path(__file__).parent.parent / "docs"


Make = Callable[..., Task]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """What a task of the base says of itself."""
    folder = tiny_base(tmp_path_factory.mktemp("base") / "tiny")
    rows = [{"text": text, "label": label} for text in TEXTS * 3 for label in LABELS]
    task = at.train(rows, base=load_base(folder), method="head", epochs=1, baselines=False).task
    return replace(task.record, extra={**task.record.extra, "folder": str(folder)})


@pytest.fixture(scope="module")
def base(record: Record) -> Base:
    found = load_base(record.extra["folder"])
    found.hooked.model.double()
    return found


@pytest.fixture(scope="module")
def task(base: Base, record: Record) -> Make:
    """A task of a method: its weights at birth, moved at random as far as training would; one for each spelling."""
    made: dict[tuple[str, int], Task] = {}

    def make(method: str, seed: int = 0) -> Task:
        if (method, seed) not in made:
            generator = torch.Generator().manual_seed(seed + 1)
            how = parse(method)
            v = how.init(base.hooked.sites, base.hooked.backbone, generator)
            head = {"head.weight": torch.zeros(3, base.width), "head.bias": torch.zeros(3)}
            v = {name: t.double() + 0.2 * torch.randn(t.shape, generator=generator) for name, t in (v | head).items()}
            made[method, seed] = Task(replace(record, name=f"t{len(made)}", method=str(how)), v)
        return made[method, seed]

    return make


@pytest.fixture(scope="module")
def delta(base: Base, task: Make) -> Make:
    """A task of a sparse method with values at random places."""

    def make(method: str, seed: int = 0) -> Task:
        generator = torch.Generator().manual_seed(seed + 50)
        total = sum(base.hooked.frozen[name].numel() for name in universe(base.hooked.frozen))
        places = torch.randperm(total, generator=generator)[: total // 20].sort().values
        head = {name: t for name, t in task("head", seed).weights.items() if name.startswith("head.")}
        weights = {
            POSITIONS: sparse.encode(places),
            VALUES: 0.1 * torch.randn(len(places), generator=generator).double(),
        }
        return Task(replace(task("head").record, name="d", method=str(parse(method))), {**weights, **head})

    return make


def written_out(base: Base, task: Task) -> dict[str, Tensor]:
    """A sparse task's δ as whole parameters."""
    names = universe(base.hooked.frozen)
    flat = torch.zeros(sum(base.hooked.frozen[name].numel() for name in names)).double()
    flat[sparse.decode(task.weights[POSITIONS])] = task.weights[VALUES]
    parts = flat.split([base.hooked.frozen[name].numel() for name in names])
    return {name: part.view_as(base.hooked.frozen[name]) for name, part in zip(names, parts, strict=True)}


class Plain:
    """BERT, with a place for each thing that a task may change; a subclass is one block."""

    def __init__(self, weights: Mapping[str, Tensor], layers: int = 2, heads: int = 4) -> None:
        self.w, self.layers, self.heads = weights, layers, heads

    def linear(self, path: str, x: Tensor) -> Tensor:
        return F.linear(x, self.w[f"{path}.weight"], self.w[f"{path}.bias"])

    def sublayer(self, layer: int, role: str, y: Tensor) -> Tensor:
        """What an attention or a feed-forward sublayer gives, before its residual add."""
        return y

    def norm(self, path: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.w[f"{path}.weight"], self.w[f"{path}.bias"], 1e-12)

    def closing(self, layer: int, path: str, r: Tensor) -> Tensor:
        """What goes into the norm at the end of a layer, where the sum r would."""
        return r

    def __call__(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        B, T = ids.shape
        e = "embeddings"
        x = self.w[f"{e}.word_embeddings.weight"][ids] + self.w[f"{e}.token_type_embeddings.weight"][types]
        x = self.norm(f"{e}.LayerNorm", x + self.w[f"{e}.position_embeddings.weight"][:T])
        hidden = torch.where(mask[:, None, None] == 1, 0.0, -torch.inf)
        for layer in range(self.layers):
            at_ = f"encoder.layer.{layer}"
            q, k, v = (
                self.linear(f"{at_}.attention.self.{name}", x).view(B, T, self.heads, -1).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            attended = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + hidden).softmax(-1) @ v
            y = self.linear(f"{at_}.attention.output.dense", attended.transpose(1, 2).reshape(B, T, -1))
            x = self.norm(f"{at_}.attention.output.LayerNorm", x + self.sublayer(layer, "attention", y))
            y = self.linear(f"{at_}.output.dense", F.gelu(self.linear(f"{at_}.intermediate.dense", x)))
            r = x + self.sublayer(layer, "feedforward", y)
            x = self.norm(f"{at_}.output.LayerNorm", self.closing(layer, f"{at_}.output.LayerNorm", r))
        return x


class Houlsby(Plain):
    """One task's adapters after the sublayers, tanh inside, and its norms where it has some."""

    def __init__(self, weights: Mapping[str, Tensor], v: Mapping[str, Tensor], without: Sequence[int] = ()) -> None:
        super().__init__(weights)
        self.v, self.without = v, without

    def sublayer(self, layer: int, role: str, y: Tensor) -> Tensor:
        if layer in self.without or f"{layer}.{role}.down" not in self.v:
            return y
        down, down_bias, up, up_bias = (self.v[f"{layer}.{role}.{k}"] for k in ("down", "down_bias", "up", "up_bias"))
        return y + torch.tanh(y @ down + down_bias) @ up + up_bias

    def norm(self, path: str, x: Tensor) -> Tensor:
        layer = int(path.split(".")[2]) if path.startswith("encoder") else 0
        if layer in self.without or f"norm.{path}.weight" not in self.v:
            return super().norm(path, x)
        return F.layer_norm(x, x.shape[-1:], self.v[f"norm.{path}.weight"], self.v[f"norm.{path}.bias"], 1e-12)


class StackOfHoulsbys(Plain):
    def __init__(self, weights: Mapping[str, Tensor], *parts: Houlsby) -> None:
        super().__init__(weights)
        self.parts = parts

    def sublayer(self, layer: int, role: str, y: Tensor) -> Tensor:
        for part in self.parts:
            y = part.sublayer(layer, role, y)
        return y


class MeanOfHoulsbys(Plain):
    """Site by site the mean of what each gives, the norms' too."""

    def __init__(self, weights: Mapping[str, Tensor], parts: Sequence[Houlsby], shares: Sequence[float]) -> None:
        super().__init__(weights)
        self.parts, self.shares = parts, shares

    def sublayer(self, layer: int, role: str, y: Tensor) -> Tensor:
        given = (share * part.sublayer(layer, role, y) for part, share in zip(self.parts, self.shares, strict=True))
        return torch.stack(list(given)).sum(0)

    def norm(self, path: str, x: Tensor) -> Tensor:
        given = (share * part.norm(path, x) for part, share in zip(self.parts, self.shares, strict=True))
        return torch.stack(list(given)).sum(0)


class MadX(Plain):
    """MAD-X, §4.1.2: LA = U(ReLU(D(h))) + r, TA = U(ReLU(D(LA))) + r, h = norm(r), the same r for both."""

    def __init__(self, weights: Mapping[str, Tensor], *tasks: Mapping[str, Tensor]) -> None:
        super().__init__(weights)
        self.tasks = tasks

    def closing(self, layer: int, path: str, r: Tensor) -> Tensor:
        x = self.norm(path, r)
        for v in self.tasks:
            down, down_bias, up, up_bias = (
                v[f"{layer}.feedforward.{k}"] for k in ("down", "down_bias", "up", "up_bias")
            )
            x = F.relu(x @ down + down_bias) @ up + up_bias + r
        return x


class LoraBelow(Houlsby):
    """W x + (alpha / rank) x A B in queries and values, under a task's adapters."""

    def __init__(self, weights: Mapping[str, Tensor], lora: Mapping[str, Tensor], v: Mapping[str, Tensor]) -> None:
        super().__init__(weights, v)
        self.lora = lora

    def linear(self, path: str, x: Tensor) -> Tensor:
        y = super().linear(path, x)
        words = path.split(".")
        if words[-1] not in ("query", "value"):
            return y
        name = f"{words[2]}.{words[-1]}"
        return y + 16 / 2 * x @ self.lora[f"{name}.A"] @ self.lora[f"{name}.B"]


def answer(base: Base, plain: Plain, head: Mapping[str, Tensor]) -> Tensor:
    """The logits of all texts, in a batch that pads them anyhow."""
    rows = base.encoder.encode(TEXTS, 64)
    inputs = collate(rows, base.encoder.pad_id)
    with torch.no_grad():
        states = plain(inputs["input_ids"], inputs["token_type_ids"], inputs["attention_mask"])
        return states[:, 0] @ head["head.weight"].T + head["head.bias"]


def assert_close(found: Tensor, expected: Tensor) -> None:
    """To a millionth of the largest value."""
    assert found.shape == expected.shape
    off = (found.double() - expected.double()).abs().max() / expected.abs().max()
    assert off < 1e-6, f"off by {off:.1e}"


def logits(base: Base, text: str, **tasks: Task) -> Tensor:
    found: Tensor = base.bind(text, tasks=tasks).logits(TEXTS)
    return found


def mean(shares: Sequence[float], *of: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.stack([s * v[name] for s, v in zip(shares, of, strict=True)]).sum(0) for name in of[0]}


HOULSBY = "houlsby(size=8, norms=false, activation=tanh)"
NORMED = "houlsby(size=8, activation=tanh)"


def test_the_plain_model_is_the_base(base: Base, task: Make) -> None:
    assert_close(logits(base, "a", a=task("head")), answer(base, Plain(base.hooked.frozen), task("head").weights))
    a = task(NORMED)
    assert_close(logits(base, "a", a=a), answer(base, Houlsby(base.hooked.frozen, a.weights), a.weights))


def test_stack_lets_the_parts_act_one_after_the_other_and_the_last_one_answer(base: Base, task: Make) -> None:
    w = base.hooked.frozen
    tasks = {
        "a": task(HOULSBY),
        "b": task(HOULSBY, 1),
        "c": task("houlsby_feedforward(size=4, norms=false, activation=tanh)"),
    }
    one = {name: Houlsby(w, each.weights) for name, each in tasks.items()}
    found = logits(base, "stack(a, b, c)", **tasks)
    assert_close(found, answer(base, StackOfHoulsbys(w, one["a"], one["b"], one["c"]), tasks["c"].weights))
    other = answer(base, StackOfHoulsbys(w, one["b"], one["a"], one["c"]), tasks["c"].weights)
    assert (found - other).abs().max() > 1e-3, "the order has no effect"


def test_the_one_part_that_owns_norms_gives_them_to_the_stack(base: Base, task: Make) -> None:
    a, b, w = task(HOULSBY), task(NORMED), base.hooked.frozen

    class Normed(StackOfHoulsbys):
        def norm(self, path: str, x: Tensor) -> Tensor:
            return self.parts[-1].norm(path, x)

    found = logits(base, "stack(a, b)", a=a, b=b)
    assert_close(found, answer(base, Normed(w, Houlsby(w, a.weights), Houlsby(w, b.weights)), b.weights))
    below = logits(base, "stack(b, a)", a=a, b=b)
    both = StackOfHoulsbys(w, Houlsby(w, b.weights), Houlsby(w, a.weights))
    both.norm = Houlsby(w, b.weights).norm  # type: ignore[method-assign]
    assert_close(below, answer(base, both, a.weights))


def test_two_pfeiffers_stack_as_in_mad_x(base: Base, task: Make) -> None:
    a, b, w = task("pfeiffer:8"), task("pfeiffer:8", 1), base.hooked.frozen
    found = logits(base, "stack(a, b)", a=a, b=b)
    assert_close(found, answer(base, MadX(w, a.weights, b.weights), b.weights))
    assert (found - answer(base, MadX(w, b.weights, a.weights), b.weights)).abs().max() > 1e-3


def test_lora_stacks_with_an_adapter(base: Base, task: Make) -> None:
    a, b = task("lora:2"), task(HOULSBY)
    assert_close(
        logits(base, "stack(a, b)", a=a, b=b),
        answer(base, LoraBelow(base.hooked.frozen, a.weights, b.weights), b.weights),
    )


@pytest.mark.parametrize("shares", [None, [0.25, 0.75], [1.5, -0.5]])
def test_average_is_the_task_of_the_mean_weights(base: Base, task: Make, shares: list[float] | None) -> None:
    a, b = task(NORMED), task(NORMED, 1)
    v = mean(shares or [0.5, 0.5], a.weights, b.weights)
    text = "average(a, b)" if shares is None else f"average(a, b, weights={shares})"
    assert_close(logits(base, text, a=a, b=b), answer(base, Houlsby(base.hooked.frozen, v), v))


def test_averages_in_weights_and_in_outputs_are_not_the_same(base: Base, task: Make) -> None:
    a, b, w = task(NORMED), task(NORMED, 1), base.hooked.frozen
    found = logits(base, "average_outputs(a, b, weights=[0.3, 0.7])", a=a, b=b)
    blend = MeanOfHoulsbys(w, [Houlsby(w, a.weights), Houlsby(w, b.weights)], [0.3, 0.7])
    assert_close(found, answer(base, blend, mean([0.3, 0.7], a.weights, b.weights)))
    assert (found - logits(base, "average(a, b, weights=[0.3, 0.7])", a=a, b=b)).abs().max() > 1e-3


def test_average_outputs_blends_tasks_of_other_methods_and_one_that_does_nothing_there(base: Base, task: Make) -> None:
    a, b, w = task(NORMED), task("houlsby_feedforward(size=4, norms=false, activation=tanh)"), base.hooked.frozen
    blend = MeanOfHoulsbys(w, [Houlsby(w, a.weights), Houlsby(w, b.weights)], [0.5, 0.5])
    heads = ({k: t for k, t in each.weights.items() if k.startswith("head.")} for each in (a, b))
    assert_close(logits(base, "average_outputs(a, b)", a=a, b=b), answer(base, blend, mean([0.5, 0.5], *heads)))


@pytest.mark.parametrize("layers", ["0", "1", "top:1", "0-1"])
def test_drop_leaves_some_layers_as_the_base_has_them(base: Base, task: Make, layers: str) -> None:
    a = task(NORMED)
    gone = {"0": [0], "1": [1], "top:1": [1], "0-1": [0, 1]}[layers]
    found = logits(base, f"drop(a, layers='{layers}')", a=a)
    assert_close(found, answer(base, Houlsby(base.hooked.frozen, a.weights, gone), a.weights))


class NormsOnly(Houlsby):
    """In some layers only the task's norms."""

    def norm(self, path: str, x: Tensor) -> Tensor:
        return Houlsby(self.w, self.v).norm(path, x)


@pytest.mark.parametrize(("layers", "gone"), [("0", [0]), ("top:1", [1]), ("0-1", [0, 1])])
def test_drop_can_keep_the_norms(base: Base, task: Make, layers: str, gone: list[int]) -> None:
    a, b, w = task(NORMED), task(NORMED, 1), base.hooked.frozen
    found = logits(base, f"drop(a, layers='{layers}', keep_norms=true)", a=a)
    assert_close(found, answer(base, NormsOnly(w, a.weights, gone), a.weights))
    assert (found - logits(base, f"drop(a, layers='{layers}')", a=a)).abs().max() > 1e-3
    found = logits(base, f"drop(average_outputs(a, b), layers='{layers}', keep_norms=true)", a=a, b=b)
    blend = MeanOfHoulsbys(w, [NormsOnly(w, each.weights, gone) for each in (a, b)], [0.5, 0.5])
    assert_close(found, answer(base, blend, mean([0.5, 0.5], a.weights, b.weights)))


def test_drop_of_pfeiffer_can_keep_the_closing_norm(base: Base, task: Make) -> None:
    a = task("pfeiffer(size=4, norms=true)")
    alone = Houlsby(base.hooked.frozen, {name: t for name, t in a.weights.items() if name.startswith("norm.")})
    found = logits(base, "drop(a, layers='0-1', keep_norms=true)", a=a)
    assert_close(found, answer(base, alone, a.weights))


@pytest.mark.parametrize("method", METHODS)
def test_norms_are_kept_only_where_a_task_has_some(base: Base, task: Make, method: str) -> None:
    a = task(method)
    kept, gone, whole = (logits(base, f"{text})", a=a) for text in (KEPT, "drop(a, layers='0'", "stack(a"))
    if method in ("norms", "head"):
        assert torch.equal(kept, whole)
    elif method == "top:1":
        assert torch.equal(gone, whole)
    else:
        assert not torch.equal(kept, whole)
    own = any(name.startswith("norm.") for name in a.weights) or method in ("full", "bitfit")
    assert torch.equal(kept, gone) is not own


KEPT = "drop(a, layers='0', keep_norms=true"


def test_bitfit_keeps_the_biases_of_norms(base: Base, task: Make) -> None:
    a, w = task("bitfit"), dict(base.hooked.frozen)
    for name in w:
        if f"delta.{name}" in a.weights and (name.endswith("LayerNorm.bias") or ".layer.1." in name):
            w[name] = w[name] + a.weights[f"delta.{name}"]
    assert_close(logits(base, f"{KEPT})", a=a), answer(base, Plain(w), a.weights))


def test_a_part_that_keeps_its_norms_owns_them(base: Base, task: Make) -> None:
    a, b = task(NORMED), task(NORMED, 1)
    assert logits(base, "stack(drop(a, layers='1'), drop(b, layers='0'))", a=a, b=b).isfinite().all()
    with pytest.raises(CompositionError, match="write the same weight"):
        logits(base, "stack(drop(a, layers='1', keep_norms=true), drop(b, layers='0'))", a=a, b=b)


def test_drop_of_pfeiffer_leaves_the_closing_norm_to_the_base(base: Base, task: Make) -> None:
    a, w = task("pfeiffer:8"), base.hooked.frozen

    class Upper(MadX):
        def closing(self, layer: int, path: str, r: Tensor) -> Tensor:
            return super().closing(layer, path, r) if layer == 1 else r

    assert_close(logits(base, "drop(a, layers='0')", a=a), answer(base, Upper(w, a.weights), a.weights))


def test_blocks_nest(base: Base, task: Make) -> None:
    w = base.hooked.frozen
    a, b, c = task(HOULSBY), task(HOULSBY, 1), task(HOULSBY, 2)
    found = logits(base, "stack(drop(a, layers='1'), average(b, c, weights=[0.4, 0.6]))", a=a, b=b, c=c)
    v = mean([0.4, 0.6], b.weights, c.weights)
    assert_close(found, answer(base, StackOfHoulsbys(w, Houlsby(w, a.weights, [1]), Houlsby(w, v)), v))

    found = logits(base, "drop(stack(a, average_outputs(b, c)), layers='0')", a=a, b=b, c=c)
    blend: Any = MeanOfHoulsbys(w, [Houlsby(w, each.weights, [0]) for each in (b, c)], [0.5, 0.5])
    plain = StackOfHoulsbys(w, Houlsby(w, a.weights, [0]), blend)
    assert_close(found, answer(base, plain, mean([0.5, 0.5], b.weights, c.weights)))

    found = logits(base, "average(a, average(b, c))", a=a, b=b, c=c)
    v = mean([0.5, 0.25, 0.25], a.weights, b.weights, c.weights)
    assert_close(found, answer(base, Houlsby(w, v), v))


@pytest.mark.parametrize("block", ["average", "average_outputs"])
def test_numbers_on_other_scales_have_the_mean_of_what_they_say(record: Record, block: str) -> None:
    base = load_base(record.extra["folder"])
    tasks = {
        name: at.train(
            [{"text": f"{word} {text}", "label": shift + scale * i} for text in TEXTS for i, word in enumerate(FILLER)],
            base=base, name=name, method="head", kind="regress", epochs=1, baselines=False,
        ).task
        for name, shift, scale in (("a", 0.0, 1.0), ("b", 100.0, 7.0))
    }  # fmt: skip
    a, b, both = (
        torch.tensor([each.value for each in base.bind(text, tasks=tasks).predict(TEXTS)])
        for text in ("a", "b", f"{block}(a, b, weights=[0.25, 0.75])")
    )
    torch.testing.assert_close(both, 0.25 * a + 0.75 * b, rtol=1e-5, atol=1e-5)


def test_what_has_no_meaning_is_refused(base: Base, task: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = task(NORMED), task(NORMED, 1)
    with pytest.raises(CompositionError, match="write the same weight"):
        base.bind("stack(a, b)", tasks={"a": a, "b": b})
    words = {"tfidf.words": torch.tensor([97], dtype=torch.uint8), "tfidf.idf": torch.ones(1)}
    head = {"head.weight": torch.zeros(3, 1), "head.bias": torch.zeros(3)}
    outside = Task(replace(a.record, method="tfidf"), words | head)
    with pytest.raises(CompositionError, match="tfidf does not use the base: it has no layers to drop"):
        base.bind("drop(t, layers='0')", tasks={"t": outside})
    with pytest.raises(CompositionError, match="full changes the base's own weights"):
        base.bind("average_outputs(f, a)", tasks={"f": task("full"), "a": a})
    fused = [
        Task(
            replace(a.record, name=name, method="fusion", extra={FUSES: f"fuse({parts})"}), {}, dict.fromkeys("xyz", c)
        )
        for name, parts, c in (("f", "x, y", task("pfeiffer:8")), ("g", "x, z", task("pfeiffer:8", 1)))
    ]
    monkeypatch.setattr(Base, "check", lambda self, task: None)  # whether they have all their weights is not asked here
    with pytest.raises(CompositionError, match="'f' and 'g' fuse other tasks"):
        base.bind("average(f, g)", tasks={"f": fused[0], "g": fused[1]})


# Laws


@pytest.mark.parametrize("method", [*METHODS, *SPARSE])
def test_the_average_of_a_task_with_itself_is_that_task(base: Base, task: Make, delta: Make, method: str) -> None:
    a = delta(method) if method in SPARSE else task(method)
    alone = logits(base, "a", a=a)
    for text in ("average(a)", "average(a, a)", "average(a, a, a)", "average(a, a, weights=[0.3, 0.7])"):
        assert_close(logits(base, text, a=a), alone)


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("full", "top:1", "bitfit")])
def test_the_mean_of_a_task_s_outputs_with_itself_is_that_task(base: Base, task: Make, method: str) -> None:
    alone = logits(base, "a", a=task(method))
    for text in ("average_outputs(a)", "average_outputs(a, a)", "average_outputs(a, a, weights=[0.3, 0.7])"):
        assert_close(logits(base, text, a=task(method)), alone)


@pytest.mark.parametrize(
    "method", ["houlsby:8", "pfeiffer:8", "lora:2", "pal:12", "parallel_adapter:4", "full", "lt_sft:0.05"]
)
def test_all_of_the_weight_on_one_part_is_that_part(base: Base, task: Make, delta: Make, method: str) -> None:
    make = delta if method in SPARSE else task
    a, b = make(method), make(method, 1)
    blocks = ["average"] if method in ("full", "lt_sft:0.05") else ["average", "average_outputs"]
    for block in blocks:
        assert_close(logits(base, f"{block}(a, b, weights=[1, 0])", a=a, b=b), logits(base, "a", a=a))
        assert_close(logits(base, f"{block}(a, b, weights=[0, 1])", a=a, b=b), logits(base, "b", b=b))


@pytest.mark.parametrize("method", [*METHODS, *SPARSE])
def test_a_stack_of_one_is_that_one(base: Base, task: Make, delta: Make, method: str) -> None:
    a = delta(method) if method in SPARSE else task(method)
    alone = logits(base, "a", a=a)
    for text in ("stack(a)", "stack(stack(), a)", "stack(stack(a))"):
        assert torch.equal(logits(base, text, a=a), alone)


def test_a_stack_of_nothing_is_the_base(base: Base) -> None:
    found = compose.compile_("stack()", {})
    assert (found.task, list(found.parts)) == (None, [])
    assert compose.together(base.hooked.sites, base.hooked.frozen, found.parts) == ({}, {})
    inputs = collate(base.encoder.encode(TEXTS, 64), base.encoder.pad_id)
    with torch.no_grad():
        states = Plain(base.hooked.frozen)(inputs["input_ids"], inputs["token_type_ids"], inputs["attention_mask"])
    assert_close(base.features(TEXTS), states[:, 0])
    with pytest.raises(CompositionError, match=r"bare base.*base.features"):
        base.bind("stack()", tasks={})


@pytest.mark.parametrize("method", [*METHODS, *SPARSE])
def test_dropping_every_layer_is_the_bare_base_under_the_head(base: Base, task: Make, delta: Make, method: str) -> None:
    a = delta(method) if method in SPARSE else task(method)
    bare = Task(replace(a.record, method="head"), {k: t for k, t in a.weights.items() if k.startswith("head.")})
    assert torch.equal(logits(base, "drop(a, layers='0-1')", a=a), logits(base, "bare", bare=bare))


def answer_with(base: Base, change: Mapping[str, Tensor], head: Mapping[str, Tensor]) -> Tensor:
    return answer(base, Plain({n: p + change[n] if n in change else p for n, p in base.hooked.frozen.items()}), head)


def test_sparse_deltas_add_up(base: Base, delta: Make) -> None:
    a, b, c = delta("lt_sft:0.05"), delta("diff_pruning:0.05", 1), delta("lt_sft:0.05", 2)
    deltas = [written_out(base, each) for each in (a, b, c)]
    total = {name: sum(each[name] for each in deltas) for name in deltas[0]}
    assert_close(logits(base, "stack(a, b, c)", a=a, b=b, c=c), answer_with(base, total, c.weights))  # type: ignore[arg-type]


def test_the_average_of_deltas_over_other_places_is_the_mean_change(base: Base, delta: Make) -> None:
    a, b = delta("lt_sft:0.05"), delta("lt_sft:0.05", 1)
    assert not torch.equal(a.weights[POSITIONS], b.weights[POSITIONS])
    change = mean([0.25, 0.75], written_out(base, a), written_out(base, b))
    head = mean([0.25, 0.75], *({k: each.weights[k] for k in ("head.weight", "head.bias")} for each in (a, b)))
    assert_close(logits(base, "average(a, b, weights=[0.25, 0.75])", a=a, b=b), answer_with(base, change, head))


def test_averages_of_averages_of_deltas_count_every_one(base: Base, delta: Make) -> None:
    tasks = dict(zip("abcd", (delta("lt_sft:0.05", seed) for seed in range(4)), strict=True))
    changes = {name: written_out(base, each) for name, each in tasks.items()}
    heads = {name: {k: each.weights[k] for k in ("head.weight", "head.bias")} for name, each in tasks.items()}
    for text, shares in (
        ("average(average(a, b), average(c, d))", (0.25, 0.25, 0.25, 0.25)),
        ("average(average(a, b, weights=[0.25, 0.75]), c)", (0.125, 0.375, 0.5)),
        ("average(average(average(a, b), c), d)", (0.125, 0.125, 0.25, 0.5)),
    ):
        names = "abcd"[: len(shares)]
        change, head = (mean(list(shares), *(of[name] for name in names)) for of in (changes, heads))
        assert_close(logits(base, text, **tasks), answer_with(base, change, head))


def test_tasks_that_differ_in_how_they_were_trained_have_a_mean(base: Base, task: Make, delta: Make) -> None:
    for one, other in (
        (task("pfeiffer(size=8)"), task("pfeiffer(size=8, init_std=0.3)", 1)),
        (task("lora(rank=2)"), task("lora(rank=2, dropout=0.1)", 1)),
    ):
        weights = mean([0.5, 0.5], one.weights, other.weights)
        want = base.bind(Task(one.record, weights)).logits(TEXTS)
        assert_close(logits(base, "average(a, b)", a=one, b=other), want)
    few, many = delta("lt_sft:0.05"), delta("lt_sft:0.1", 1)
    change = mean([0.5, 0.5], written_out(base, few), written_out(base, many))
    head = mean([0.5, 0.5], *({k: each.weights[k] for k in ("head.weight", "head.bias")} for each in (few, many)))
    assert_close(logits(base, "average(a, b)", a=few, b=many), answer_with(base, change, head))


@pytest.mark.parametrize(
    "other", ["pfeiffer(size=8, activation=tanh)", "pfeiffer(size=8, layers=0)", "lora(rank=2, alpha=4)"]
)
def test_tasks_that_differ_in_what_they_compute_have_no_mean(base: Base, task: Make, other: str) -> None:
    one = task("lora(rank=2)" if other.startswith("lora") else "pfeiffer(size=8)")
    with pytest.raises(CompositionError, match=r"have no mean.*average_outputs"):
        logits(base, "average(a, b)", a=one, b=task(other, 1))


def test_a_hint_leads_to_no_other_refusal(base: Base, task: Make, delta: Make) -> None:
    """What replaces the base's weights has no output, and weights of two methods have no mean."""
    tasks = {"f": task("full"), "s": delta("lt_sft:0.05"), "p": task("pfeiffer:8"), "g": task("full", 1)}
    for text, said in (
        ("average(f, s)", "parallel"), ("average(f, p)", "parallel"), ("average_outputs(f, p)", "parallel"),
        ("average_outputs(f, g)", r"average\(…\)"),
    ):  # fmt: skip
        with pytest.raises(CompositionError, match=said):
            base.bind(text, tasks=tasks)


def test_norms_of_layers_that_are_dropped_are_nobody_s(base: Base, task: Make) -> None:
    """The lower half of one task under the upper half of another: each norm has one owner."""
    a, b = task(NORMED), task(NORMED, 1)
    found = logits(base, "stack(drop(a, layers='1'), drop(b, layers='0'))", a=a, b=b)
    upper = {name for name in b.weights if name.startswith(("1.", "norm.encoder.layer.1.", "head."))}
    halves = {name: (b if name in upper else a).weights[name] for name in b.weights}
    assert_close(found, base.bind(Task(b.record, halves)).logits(TEXTS))
    with pytest.raises(CompositionError, match=r"write the same weight, encoder.layer.1"):
        logits(base, "stack(drop(a, layers='0'), b)", a=a, b=b)


BLOCKS = [
    "stack(a, b)", "average(a, c)", "average_outputs(a, b)", "drop(a, layers='1')", "stack(d, e)", "average(d, e)",
    "stack(p, q)", "average_outputs(p, q)", "stack(r, a)", "average_outputs(r, s)",
]  # fmt: skip


@pytest.fixture(scope="module")
def several(task: Make, delta: Make) -> dict[str, Task]:
    return {
        "a": task(HOULSBY), "b": task("pfeiffer:8"), "c": task(HOULSBY, 1), "d": delta("lt_sft:0.05"),
        "e": delta("lt_sft:0.05", 1), "p": task("pfeiffer:8"), "q": task("pfeiffer:8", 1),
        "r": task("parallel_adapter:4"), "s": task("pal:12"),
    }  # fmt: skip


def test_the_base_and_the_old_tasks_keep_their_bits(base: Base, several: dict[str, Task]) -> None:
    before = {name: p.clone() for name, p in base.hooked.frozen.items()}
    kept = {name: {key: t.clone() for key, t in each.weights.items()} for name, each in several.items()}
    alone = {name: logits(base, name, **several) for name in several}
    for text in BLOCKS:
        logits(base, text, **several)
    for name, each in several.items():
        assert torch.equal(logits(base, name, **several), alone[name])
        assert all(torch.equal(t, kept[name][key]) for key, t in each.weights.items())
    assert all(torch.equal(p, before[name]) for name, p in base.hooked.frozen.items())


def test_threads_with_other_compositions_over_one_base_do_not_meet(base: Base, several: dict[str, Task]) -> None:
    alone = {text: logits(base, text, **several) for text in BLOCKS}
    bound = {text: base.bind(text, tasks=several) for text in BLOCKS}
    wrong: list[str] = []

    def run(text: str) -> None:
        for _ in range(4):
            if not torch.equal(bound[text].logits(TEXTS), alone[text]):
                wrong.append(text)

    threads = [threading.Thread(target=run, args=(text,)) for text in BLOCKS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("text", [t for t in BLOCKS if "d" not in t.partition("(")[2]])
def test_checkpointing_and_training_mode_change_no_bit_of_a_block(
    base: Base, several: dict[str, Task], text: str
) -> None:
    inputs = collate(base.encoder.encode(TEXTS, 64), base.encoder.pad_id)
    found: list[tuple[Tensor, list[Tensor]]] = []
    for training, checkpoint in ((False, False), (True, False), (True, True)):
        parts = compose.compile_(text, several).parts
        learned = [t.requires_grad_() for t in _leaves(parts)]
        tree = HookedModel(share(base.hooked.model))
        without_dropout(tree.model)
        tree.model.train(training)
        if checkpoint:
            tiny.checkpoint(tree.model)
        plan, weights = compose.together(tree.sites, tree.frozen, parts)
        assert not weights
        tree.bind(plan)
        ran: list[int] = []
        part = tree.backbone.get_submodule(f"{tree.sites.layers[0]}.attention")  # hooks of a layer itself run once
        part.register_forward_pre_hook(lambda *_, ran=ran: ran.append(1))
        tree.backbone.get_input_embeddings().register_forward_hook(  # type: ignore[operator]
            lambda module, args, output: output.requires_grad_()
        )
        states = tree.backbone(**inputs).last_hidden_state
        gradients = torch.autograd.grad(states.pow(3).sum(), learned, allow_unused=True)
        assert len(ran) == 1 + checkpoint
        found.append((states.detach(), [g for g in gradients if g is not None]))  # a dropped layer learns nothing
        for t in learned:
            t.requires_grad_(False)
    for states, gradients in found[1:]:
        assert torch.equal(states, found[0][0])
        assert all(torch.equal(one, other) for one, other in zip(gradients, found[0][1], strict=True))
    assert found[0][1]
    assert all(g.abs().sum() > 0 for g in found[0][1])


def _leaves(parts: Any) -> list[Tensor]:
    """The weights that act, of a composition's parts and of what is inside of them."""
    found: list[Tensor] = []
    for method, v in parts:
        inner = getattr(method, "parts", ())
        found += _leaves(inner) if inner else [t for key, t in v.items() if not key.startswith("head.")]
    return found


def test_the_page_has_the_table_of_what_may_stand_inside_what_and_a_picture_of_each_block() -> None:
    page = (DOCS / "composition.md").read_text()
    columns = ["", *compose.BLOCKS]
    table = page[page.index("| | name |") :].splitlines()
    assert [cell.strip() for cell in table[0].strip("|").split("|")][1:] == ["name", *columns[1:]]
    rows = {
        cells[0].strip(): cells[1:]
        for cells in (line.strip("|").split("|") for line in table[2 : 2 + len(columns) - 1])
    }
    for name, block in compose.BLOCKS.items():
        assert tuple(c for c, cell in zip(columns, rows[name], strict=True) if cell.strip() == "yes") == block.holds, (
            name
        )
        assert f"![{name}](images/{name}.svg)" in page


def test_the_pictures_are_as_they_are_drawn() -> None:
    drawn = runpy.run_path(str(DOCS / "images" / "blocks.py"))["PICTURES"]
    assert set(drawn) == set(compose.BLOCKS)
    for name, draw in drawn.items():
        assert (DOCS / "images" / f"{name}.svg").read_text() == draw(), "python docs/images/blocks.py"

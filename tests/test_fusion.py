"""AdapterFusion: the paper's formula in real models, what it trains and leaves alone, and that it is kept whole."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import adaptree as at
from adaptree.errors import CompositionError, MethodError, TaskNotFound, TrainingError, WrongBase
from adaptree.methods import Method, Params, parse
from adaptree.methods.fusion import Fusion
from adaptree.models.base import Base
from adaptree.models.hooks import HookedModel, without_dropout
from adaptree.models.loading import load_base
from adaptree.tasks.record import FUSES, NEEDS
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from adaptree.training import loop
from tests import tiny
from tests.bases import tiny_base, words_csv

TEXTS = ["the lion and a plum", "new saw near the bear today", "apple"]
Parts = list[tuple[Method, Params]]


def adapters(hooked: HookedModel, method: str, count: int = 3) -> Parts:
    """Adapters that do something, each something else."""
    generator = torch.Generator().manual_seed(5)
    how = parse(method)
    return [
        (
            how,
            {
                name: 0.3 * torch.randn(tensor.shape, generator=generator)
                for name, tensor in how.init(hooked.sites, hooked.backbone, generator).items()
            },
        )
        for _ in range(count)
    ]


def learned(hooked: HookedModel, fusion: Fusion, size: float = 0.15) -> dict[str, Tensor]:
    """Q, K and V as training might have left them."""
    generator = torch.Generator().manual_seed(6)
    born = fusion.init(hooked.sites, hooked.backbone, generator)
    return {name: tensor + size * torch.randn(tensor.shape, generator=generator) for name, tensor in born.items()}


def off(one: Tensor, other: Tensor) -> float:
    one, other = one.detach().double(), other.detach().double()
    return float((one - other).abs().max() / other.abs().max())


# The formula


def by_the_paper(h: Tensor, z: list[Tensor], q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """AdapterFusion, §3.2, token by token and adapter by adapter: o and s."""
    B, T, d = h.shape
    o, s = torch.zeros(B, T, d, dtype=torch.double), torch.zeros(B, T, len(z), dtype=torch.double)
    for b in range(B):
        for t in range(T):
            query = h[b, t] @ q
            s[b, t] = torch.stack([query @ (each[b, t] @ k) for each in z]).softmax(0)
            for n, each in enumerate(z):
                o[b, t] += s[b, t, n] * (each[b, t] @ v)
    return o, s


def at_site(
    case: str, method: str, layer: int, change: Callable[[Fusion], Fusion] = lambda fusion: fusion
) -> tuple[dict[str, Tensor], nn.Module, Parts, dict[str, Tensor], str]:
    """What goes in and out of the fusion in a layer of a real model; the norm that closes it, and all weights."""
    model = tiny.model(case)
    hooked = HookedModel(model)
    (site,) = [each for each in hooked.sites.sites if each.role == "feedforward" and each.layer == layer]
    closing = method.startswith("pfeiffer") and site.closing is not None
    module = hooked.backbone.get_submodule(str(site.closing) if closing else site.path)
    parts, seen = adapters(hooked, method), {}
    fusion = change(Fusion().over(parts))
    v = learned(hooked, fusion)

    def watch(number: int, s: Tensor) -> None:
        if number == layer:
            seen["s"] = s

    hooked.bind(fusion.watched(watch).plan(hooked.sites, v))
    if closing:  # a norm is given something else
        module.register_forward_pre_hook(lambda _, args: seen.update({"in": args[0]}), prepend=True)
        module.register_forward_hook(lambda _, args, output: seen.update(out=args[0]))
    else:  # a sublayer's output becomes something else
        module.register_forward_hook(lambda _, args, output: seen.update({"in": output}), prepend=True)
        module.register_forward_hook(lambda _, args, output: seen.update(out=output))
    with torch.no_grad():
        model(**tiny.batch(model))
    return seen, module, parts, v, site.name


@pytest.mark.parametrize("layer", [0, 2])
def test_beside_a_closing_norm_it_is_the_papers_formula(layer: int) -> None:
    seen, norm, parts, v, name = at_site("bert", "pfeiffer:5", layer)
    assert isinstance(norm, nn.LayerNorm)
    r = seen["in"].double()
    h = F.layer_norm(r, r.shape[-1:], norm.weight.double(), norm.bias.double(), norm.eps)
    z = []
    for _, p in parts:
        down, down_bias, up, up_bias = (p[f"{name}.{key}"].double() for key in ("down", "down_bias", "up", "up_bias"))
        z.append(torch.relu(h @ down + down_bias) @ up + up_bias + r)
    o, s = by_the_paper(h, z, *(v[f"{name}.{key}"].double() for key in ("query", "key", "value")))
    assert (s - 1 / 3).abs().max() > 0.1, "attention that is even everywhere proves nothing"
    assert off(seen["s"], s) < 1e-6
    assert off(seen["out"], o) < 1e-6


@pytest.mark.parametrize("case", ["gpt2", "llama", "bert"])
def test_in_front_of_the_residual_add_it_is_the_papers_formula(case: str) -> None:
    seen, _, parts, v, name = at_site(case, "houlsby_feedforward(size=5, norms=false)", 1)
    h = seen["in"].double()
    z = []
    for _, p in parts:
        down, down_bias, up, up_bias = (p[f"{name}.{key}"].double() for key in ("down", "down_bias", "up", "up_bias"))
        z.append(h + F.gelu(h @ down + down_bias) @ up + up_bias)
    o, s = by_the_paper(h, z, *(v[f"{name}.{key}"].double() for key in ("query", "key", "value")))
    assert (s - 1 / 3).abs().max() > 0.05, "attention that is even everywhere proves nothing"
    assert off(seen["s"], s) < 1e-6
    assert off(seen["out"], o) < 1e-6


def test_a_masked_adapter_counts_for_nothing_and_the_others_share_its_weight() -> None:
    whole, *_ = at_site("bert", "pfeiffer:5", 0)
    some, *_ = at_site("bert", "pfeiffer:5", 0, lambda fusion: fusion.without([1]))
    assert some["s"][..., 1].abs().max() == 0
    rest = whole["s"][..., [0, 2]]
    assert off(some["s"][..., [0, 2]], rest / rest.sum(-1, keepdim=True)) < 1e-6
    with pytest.raises(MethodError, match="every adapter masked"):
        Fusion().over([(parse("pfeiffer"), {})] * 2).without([0, 1])


@pytest.mark.parametrize(
    ("case", "method"), [("bert", "pfeiffer:5"), ("gpt2", "houlsby_feedforward(size=5, norms=false)")]
)
def test_equal_adapters_are_computed_once_and_count_as_often_as_they_are_there(case: str, method: str) -> None:
    """The tasks of a joint training differ in their heads alone."""
    seen: dict[str, list[Tensor]] = {}
    hooked = HookedModel(tiny.model(case).double())
    a, b, c = [(how, {name: t.double() for name, t in v.items()}) for how, v in adapters(hooked, method)]
    twin = (a[0], {**a[1], "head.weight": torch.ones(2)})
    plain = Fusion().over([a, b, twin, c, twin])
    v = {name: t.double() for name, t in learned(hooked, plain).items()}
    each_by_itself = plain._with(_same=tuple(range(5)))
    assert plain._distinct == [0, 1, 3]
    for without in ([], [2], [1], [0, 2, 4]):
        told = []
        for fusion in (plain, each_by_itself):
            seen.clear()
            watched = fusion.without(without).watched(lambda layer, s: seen.setdefault(str(layer), []).append(s))
            with torch.no_grad(), hooked.running(hooked.hook(watched.plan(hooked.sites, v))):
                states = hooked.backbone(**tiny.batch(hooked.model)).last_hidden_state
            told.append((states, torch.cat([s for layer in sorted(seen) for s in seen[layer]])))
        (out, s), (want, expected) = told
        assert off(out, want) < 1e-6
        assert s.shape == expected.shape
        assert off(s, expected) < 1e-6
        assert float(s[..., without].abs().sum()) == 0


# At birth, and what is trained


def test_at_birth_value_is_the_identity_and_queries_and_keys_are_small() -> None:
    hooked = HookedModel(tiny.model("bert"))
    v = (
        Fusion()
        .over(adapters(hooked, "pfeiffer:5"))
        .init(hooked.sites, hooked.backbone, torch.Generator().manual_seed(0))
    )
    assert set(v) == {f"{layer}.feedforward.{key}" for layer in range(3) for key in ("query", "key", "value")}
    for name, tensor in v.items():
        if name.endswith("value"):
            assert torch.equal(tensor.diagonal(), torch.ones(32))
            rest = tensor - torch.eye(32)
            assert 0 < rest.abs().max() < 1e-5
            assert rest.std() < 1.1e-6
        else:
            assert 0.015 < tensor.std() < 0.025


def test_with_no_say_it_is_the_mean_of_the_adapters() -> None:
    seen, norm, parts, _, name = at_site("bert", "pfeiffer:5", 0)
    hooked = HookedModel(tiny.model("bert"))
    fusion = Fusion(init_std=0.0).over(parts)
    born = fusion.init(hooked.sites, hooked.backbone, torch.Generator())
    (change,) = fusion.plan(hooked.sites, born)["encoder.layer.0.output.LayerNorm"].changes  # type: ignore[union-attr]
    r = seen["in"]
    h = norm(r)
    z = [
        torch.relu(h @ p[f"{name}.down"] + p[f"{name}.down_bias"]) @ p[f"{name}.up"] + p[f"{name}.up_bias"] + r
        for _, p in parts
    ]
    assert off(change(r, h), torch.stack(z).mean(0)) < 1e-5  # but for the noise in V


def test_the_count_is_three_squares_of_the_width_a_layer() -> None:
    for method, layers in (("pfeiffer:5", 3), ("pfeiffer(size=5, layers=top:1)", 1)):
        hooked = HookedModel(tiny.model("bert"))
        fusion = Fusion().over(adapters(hooked, method))
        v = fusion.init(hooked.sites, hooked.backbone, torch.Generator())
        assert fusion.count(hooked.sites, hooked.backbone) == {"adapters": layers * 3 * 32 * 32, "norms": 0}
        assert sum(tensor.numel() for tensor in v.values()) == layers * 3 * 32 * 32


def test_the_penalty_keeps_values_near_the_identity_and_decay_leaves_them_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    v = {
        f"{i}.feedforward.{key}": torch.randn((4, 4), generator=generator)
        for i in range(2)
        for key in ("query", "value")
    }
    far = sum(float((v[f"{i}.feedforward.value"] - torch.eye(4)).pow(2).sum()) for i in range(2))
    assert Fusion().penalty(v).item() == pytest.approx(0.01 * far, rel=1e-6)  # type: ignore[union-attr]
    assert Fusion(regularisation=0.5).penalty(v).item() == pytest.approx(0.5 * far, rel=1e-6)  # type: ignore[union-attr]
    assert Fusion(regularisation=0).penalty(v) is None
    assert [Fusion().decays(f"0.feedforward.{key}") for key in ("query", "key", "value")] == [True, True, False]


@pytest.mark.parametrize("checkpointing", ["plain", "reentrant"])
def test_gradients_reach_query_key_and_value_alone_with_checkpointing_too(checkpointing: str) -> None:
    def run(mode: str) -> tuple[dict[str, Tensor], Counter[str]]:
        model: Any = tiny.model("bert").requires_grad_(False)
        without_dropout(model)
        hooked = HookedModel(model.train())
        parts = adapters(hooked, "pfeiffer:5")
        fusion = Fusion().over(parts)
        v = {name: tensor.requires_grad_() for name, tensor in learned(hooked, fusion).items()}
        hooked.bind(fusion.plan(hooked.sites, v))
        fired: Counter[str] = Counter()
        for site in hooked.sites.sites:
            hooked.backbone.get_submodule(site.path).register_forward_pre_hook(
                lambda *_, path=site.path: fired.update([path])
            )
        if mode != "off":
            options = {"use_reentrant": mode == "reentrant"}
            tiny.checkpoint(model, **options)
            model.enable_input_require_grads()
        loss = tiny.output(model, tiny.batch(model)).square().sum()
        thread = threading.Thread(target=loss.backward)  # as a GPU's backward runs: the plan must be seen there
        thread.start()
        thread.join()
        assert all(p.grad is None for p in model.parameters())
        assert all(p.grad is None for _, own in parts for p in own.values())
        found = {name: tensor.grad for name, tensor in v.items()}
        assert all(grad is not None and grad.abs().sum() > 0 for grad in found.values()), "every weight must learn"
        return found, fired  # type: ignore[return-value]

    want, once = run("off")
    found, fired = run(checkpointing)
    assert (set(once.values()), set(fired.values())) == ({1}, {2})
    assert all(torch.equal(found[name], want[name]) for name in want)


# Every architecture


@pytest.mark.parametrize("case", tiny.CASES)
@pytest.mark.parametrize("method", ["pfeiffer:5", "houlsby_feedforward(size=5, norms=false)"])
def test_adapters_of_every_architecture_can_be_fused(case: str, method: str) -> None:
    model = tiny.model(case)
    hooked = HookedModel(model, tiny.CASES[case].row)
    bare = tiny.output(model, tiny.batch(model))
    parts = adapters(hooked, method)
    seen: set[int] = set()
    fusion = Fusion().over(parts).watched(lambda layer, s: seen.add(layer))
    v = learned(hooked, fusion, 0.05)
    with torch.no_grad(), hooked.running(fusion.plan(hooked.sites, v)):
        fused = tiny.output(model, tiny.batch(model))
    with torch.no_grad(), hooked.running(parts[0][0].plan(hooked.sites, parts[0][1])):
        alone = tiny.output(model, tiny.batch(model))
    assert seen == {site.layer for site in hooked.sites.sites if site.role == "feedforward"}
    assert fused.isfinite().all()
    assert off(fused, bare.detach()) > 1e-3
    assert off(fused, alone) > 1e-3


# A fused task in a store


class World:
    """A tiny base and a store with three tasks and one that fuses them."""

    def __init__(self, root: Path) -> None:
        self.base = load_base(tiny_base(root / "base"))
        self.data = words_csv(root / "words.csv")
        self.store = Store(root / "store")
        self.options: dict[str, Any] = {"base": self.base, "lr": 1e-2, "epochs": 2, "baselines": False}
        for seed, name in enumerate("abc"):
            at.train(self.data, name=name, method="pfeiffer:8", seed=seed, store=self.store, **self.options)
        self.before = {name: self.bits(self.store[name]) for name in "abc"}
        self.frozen = {name: p.clone() for name, p in self.base.hooked.frozen.items()}
        self.fused = at.train(self.data, name="f", method="fuse(a, b, c)", store=self.store, **self.options)

    def bits(self, task: Task) -> dict[str, bytes]:
        return {name: tensor.numpy().tobytes() for name, tensor in task.tensors.items()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def test_a_fused_task_has_weights_of_its_own_and_references_to_its_parts(world: World) -> None:
    record = world.fused.task.record
    keys = {f"{layer}.feedforward.{key}" for layer in range(2) for key in ("query", "key", "value")}
    assert set(world.fused.task.weights) == keys | {"head.weight", "head.bias"}
    assert record.parameters["adapters"] == 2 * 3 * 32 * 32
    assert record.extra[FUSES] == "fuse(a@1, b@1, c@1)"
    assert record.extra[NEEDS] == {f"{name}@1": world.store[name].record.digest for name in "abc"}


def test_fusing_leaves_old_tasks_and_the_base_as_they_were(world: World) -> None:
    assert {name: world.bits(world.store[name]) for name in "abc"} == world.before
    assert all(torch.equal(p, world.frozen[name]) for name, p in world.base.hooked.frozen.items())


def test_kept_anywhere_it_gives_the_same_bits(world: World, tmp_path: Path) -> None:
    want = world.fused.logits(TEXTS)
    assert torch.equal(world.base.bind(world.store["f"]).logits(TEXTS), want)
    world.store["f"].save(tmp_path / "out")
    loaded = Task.load(tmp_path / "out")
    assert torch.equal(world.base.bind(loaded).logits(TEXTS), want)
    other = Store(tmp_path / "other")
    other.add(loaded)
    again = other["f"]
    assert list(again.parts) == ["a@1", "b@1", "c@1"]
    assert torch.equal(world.base.bind(again).logits(TEXTS), want)
    probe = again.record.probe["inputs"]
    assert torch.equal(world.base.bind(again).logits(probe), again.tensors["probe.logits"])


def test_loaded_it_has_an_effect(world: World, tmp_path: Path) -> None:
    """Peers load a fusion that then does nothing: ours differs from its head on the bare base, and from each part."""
    world.store["f"].save(tmp_path / "out")
    loaded = Task.load(tmp_path / "out")
    found = world.base.bind(loaded).logits(TEXTS)
    head = loaded.weights["head.weight"], loaded.weights["head.bias"]
    assert off(F.linear(world.base.features(TEXTS), *head), found) > 1e-2
    for name in "abc":
        assert off(F.linear(world.base.bind(world.store[name]).features(TEXTS), *head), found) > 1e-3
    still = {name: tensor for name, tensor in loaded.tensors.items() if not name.endswith((".query", ".key"))}
    still |= {name: torch.zeros_like(t) for name, t in loaded.tensors.items() if name.endswith((".query", ".key"))}
    assert not torch.equal(world.base.bind(Task(loaded.record, still, loaded.parts)).logits(TEXTS), found)


def test_its_bits_do_not_depend_on_what_else_is_in_the_batch(world: World) -> None:
    texts = [*TEXTS, "the lion and a bear", "old", "the a old new very big small near under with and or seen today"]
    whole = world.fused.logits(texts)
    alone = torch.cat([world.fused.logits([text]) for text in texts])
    assert torch.equal(whole, alone)


def test_two_threads_with_two_compositions_over_one_base_do_not_meet(world: World) -> None:
    said = ("f", "stack(a, f)", "average(a, b)", "drop(c, layers='0')")
    bound = {text: world.base.bind(text, tasks=world.store) for text in said}
    want = {text: each.logits(TEXTS) for text, each in bound.items()}
    wrong: list[str] = []
    start = threading.Barrier(len(said))

    def run(text: str) -> None:
        start.wait()
        for _ in range(15):
            if not torch.equal(bound[text].logits(TEXTS), want[text]):
                wrong.append(text)

    threads = [threading.Thread(target=run, args=(text,)) for text in said]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len({tensor.numpy().tobytes() for tensor in want.values()}) == len(said)


def test_a_stopped_run_that_is_resumed_gives_the_same_bits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    options = {**world.options, "method": "fuse(a, b)", "store": world.store, "epochs": 3}
    whole = at.train(world.data, name="whole", **options)

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        at.train(world.data, name="stopped", on_event=stop, **options)
    assert "stopped" not in world.store
    resumed = at.train(world.data, name="stopped", resume=True, **options)
    weights = resumed.task.weights
    assert all(torch.equal(weights[name], tensor) for name, tensor in whole.task.weights.items())
    assert resumed.task.record.settings["finished"]


def test_a_run_over_other_adapters_is_not_resumed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    options = {**world.options, "store": world.store, "epochs": 3}

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        at.train(world.data, name="changed", method="fuse(a, b)", on_event=stop, **options)
    for method in ("fuse(a, c)", "fuse(b, a)", "pfeiffer:8"):
        with pytest.raises(TrainingError):
            at.train(world.data, name="changed", method=method, resume=True, **options)
    at.train(world.data, name="changed", method="fuse(a, b)", resume=True, **options)


# Bad input


def refused(world: World, method: str, **options: Any) -> str:
    with pytest.raises(at.AdaptreeError) as caught:
        at.train(world.data, name="x", method=method, **{"store": world.store, **world.options, **options})
    assert "x" not in world.store
    return str(caught.value)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("houlsby:8", "is not one feed-forward adapter a layer"),
        ("lora:2", "is not one feed-forward adapter a layer"),
        ("pfeiffer(size=8, norms=true)", "has norms of its own"),
        ("houlsby_feedforward:8", "has norms of its own"),
        ("pfeiffer(size=8, invertible=true)", "changes the embeddings too"),
    ],
)
def test_what_cannot_be_fused_is_refused_with_the_command_that_trains_a_fitting_one(
    world: World, method: str, why: str, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    store.add(world.store["a"])
    at.train(world.data, name="other", method=method, store=store, **{**world.options, "epochs": 1})
    said = refused(world, "fuse(a, other)", store=store)
    assert why in said
    assert "adaptree train DATA --name other --method pfeiffer" in said


def test_adapters_at_different_places_are_refused(world: World, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(world.store["a"])
    for name, method in (("top", "pfeiffer(size=8, layers=1)"), ("front", "houlsby_feedforward(norms=false)")):
        at.train(world.data, name=name, method=method, store=store, **{**world.options, "epochs": 1})
    assert "different layers" in refused(world, "fuse(a, top)", store=store)
    assert "in front of its residual add" in refused(world, "fuse(a, front)", store=store)


def test_a_name_that_is_not_there_is_refused_with_a_near_one(world: World) -> None:
    world.store.add(Task(replace(world.store["b"].record, name="beta", version=0), world.store["b"].tensors))
    said = refused(world, "fuse(a, betta)")
    assert "no task 'betta'" in said
    assert "Did you mean 'beta'?" in said


def test_tasks_of_another_base_are_refused(world: World, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.add(world.store["a"])
    other: Base = load_base(tiny_base(tmp_path / "other", seed=5))
    at.train(world.data, name="stranger", method="pfeiffer:8", store=store, **{**world.options, "base": other})
    assert "was trained on another base, other" in refused(world, "fuse(a, stranger)", store=store)
    with pytest.raises(WrongBase, match="another base"):
        other.bind(world.store["f"])


def test_without_one_of_its_parts_a_fused_task_says_which(world: World, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(world.store["f"])
    with pytest.raises(at.AdaptreeError, match=r"'b' is part of f@1.*--force"):
        store.remove("b")
    store.remove("b", force=True)
    with pytest.raises(TaskNotFound, match="'f@1' is made of 'b@1', which is not in the store any more"):
        store["f"]


@pytest.mark.parametrize("text", ["average(a, b)", "stack(a, b)"])
def test_other_blocks_are_not_trained(world: World, text: str) -> None:
    with pytest.raises(CompositionError, match="only fuse learns"):
        at.train(world.data, method=text, store=world.store, **world.options)


def test_tasks_are_fused_on_what_they_were_trained_on(tmp_path: Path) -> None:
    base = load_base(tiny_base(tmp_path / "base"))
    data, store = words_csv(tmp_path / "words.csv", 40), Store(tmp_path / "store")
    how: dict[str, Any] = {"base": base, "store": store, "epochs": 1, "baselines": False}
    for name, on in (("low", None), ("a", "low"), ("b", "low"), ("c", None)):
        at.train(data, name=name, method="pfeiffer:4", on=on, **how)
    at.train(data, name="good", method="fuse(a, b)", on="low", **how)
    with pytest.raises(CompositionError, match=r"'a@1' was trained on low@1, .* on the bare base.*--on"):
        at.train(data, name="bad", method="fuse(a, b)", **how)
    with pytest.raises(CompositionError, match=r"'c@1' was trained on the bare base.*trained on the same"):
        at.train(data, name="bad", method="fuse(a, c)", on="low", **how)
    at.train(data, name="d", method="pfeiffer:4", **how)
    with pytest.raises(CompositionError, match=r"'c@1' was trained on the bare base.*Leave out --on"):
        at.train(data, name="bad", method="fuse(c, d)", on="low", **how)


def test_a_fuse_may_say_its_regularisation(tmp_path: Path) -> None:
    base = load_base(tiny_base(tmp_path / "base"))
    data, store = words_csv(tmp_path / "words.csv", 40), Store(tmp_path / "store")
    how: dict[str, Any] = {"base": base, "store": store, "epochs": 1, "baselines": False}
    for seed, name in enumerate("ab"):
        at.train(data, name=name, method="pfeiffer:4", seed=seed, **how)
    for name, more in (("usual", ""), ("free", ", regularisation=0"), ("tight", ", regularisation=50")):
        at.train(data, name=name, method=f"fuse(a, b{more})", lr=1e-2, **how)
    methods = [store[name].record.method for name in ("usual", "free", "tight")]
    assert methods == [f"fusion(regularisation={amount})" for amount in ("0.01", "0.0", "50.0")]
    assert {store[name].record.extra[FUSES] for name in ("usual", "free", "tight")} == {"fuse(a@1, b@1)"}

    def away(name: str) -> float:
        values = [t for key, t in store[name].weights.items() if key.endswith(".value")]
        return sum(float((value - torch.eye(len(value))).square().sum()) for value in values)

    assert away("tight") < 0.5 * away("free")
    mean = base.bind("average(free, tight)", tasks=store).logits(TEXTS)
    assert torch.isfinite(mean).all(), "they compute alike, so that there is a mean"


def test_what_is_fused_of_a_fused_task_is_what_it_is_made_of(tmp_path: Path) -> None:
    base = load_base(tiny_base(tmp_path / "base"))
    data, store = words_csv(tmp_path / "words.csv", 40), Store(tmp_path / "store")
    how: dict[str, Any] = {"base": base, "store": store, "epochs": 1, "baselines": False}
    for name in "ab":
        at.train(data, name=name, method="pfeiffer:4", **how)
    at.train(data, name="f", method="fuse(a, b)", **how)
    with pytest.raises(
        CompositionError, match=r"'f' cannot be fused.*Fuse the tasks that it is made of: fuse\(a@1, b@1\)"
    ):
        at.train(data, name="g", method="fuse(a, f)", **how)

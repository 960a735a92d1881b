"""LT-SFT: exactly K weights, those that moved most, rewound and trained alone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adaptree import api, attach
from adaptree.compose.blocks import Raised
from adaptree.core import sparse
from adaptree.errors import AdaptreeError, MethodError, TaskCorrupt
from adaptree.methods import parse
from adaptree.methods.lt_sft import LotteryTicket, RandomTicket
from adaptree.methods.sparse import universe
from adaptree.models.base import Base
from adaptree.models.fingerprint import fingerprint
from adaptree.models.hooks import HookedModel
from adaptree.models.loading import load_base
from adaptree.models.sites import find
from adaptree.tasks.record import Record
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests import tiny
from tests.bases import tiny_base, words_csv

HEAD = ("dense.weight", "dense.bias", "norm.weight", "norm.bias", "bias")
TEXTS = ["the old hammer", "lion wolf", "a plum and a pear"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("data") / "words.csv")


def moved(sites: Any, frozen: dict[str, Tensor], method: LotteryTicket, seed: int = 0) -> dict[str, Tensor]:
    """Weights as a first stage might leave them."""
    generator = torch.Generator().manual_seed(seed)
    return {f"delta.{n}": torch.randn(frozen[n].shape, generator=generator) for n in method.touched(sites, frozen)}


def written_cut(frozen: dict[str, Tensor], v: dict[str, Tensor], k: int) -> dict[str, Tensor]:
    """By sorting everything: the places that stay, as masks by name."""
    entries = [
        (-abs(float(x)), name, i)
        for name in sorted(frozen)
        if f"delta.{name}" in v
        for i, x in enumerate(v[f"delta.{name}"].flatten())
    ]
    masks = {name: torch.zeros(frozen[name].numel(), dtype=torch.bool) for name in frozen}
    for _, name, i in sorted(entries)[:k]:
        masks[name][i] = True
    return masks


@pytest.mark.parametrize("layers", [None, "1", "0", "top:1"])
@pytest.mark.parametrize("case", ["bert", "gpt2", "albert"])
def test_what_is_kept_are_exactly_the_k_that_moved_most(case: str, layers: str | None) -> None:
    model = tiny.model(case)
    sites, frozen = find(model), dict(model.named_parameters())
    method = LotteryTicket(density=0.03, layers=layers)
    k = round(0.03 * sum(p.numel() for p in frozen.values()))
    v = moved(sites, frozen, method)
    after = method.advance(sites, frozen, v, {"head.bias": torch.ones(2)})
    at = sparse.decode(after["sparse.positions"])
    assert len(at) == len(after["sparse.values"]) == k == method.count(sites, model)["adapters"]
    masks = written_cut(frozen, v, k)
    expected = torch.cat([masks[name] for name in universe(frozen)])
    assert torch.equal(at, expected.nonzero().flatten())
    # Rewound: the base again, the head as it was born.
    assert not after["sparse.values"].any()
    assert torch.equal(after["head.bias"], torch.ones(2))


def test_values_go_to_the_places_that_were_kept() -> None:
    model = tiny.model("bert")
    sites, frozen = find(model), dict(model.named_parameters())
    method = LotteryTicket(density=0.02)
    v = moved(sites, frozen, method)
    after = method.advance(sites, frozen, v, {})
    k = len(after["sparse.values"])
    values = torch.randn(k, requires_grad=True)
    new = method.weights(sites, frozen, {**after, "sparse.values": values})
    masks = written_cut(frozen, v, k)
    assert set(new) == {name for name, mask in masks.items() if mask.any()}
    left = values.detach()
    for name in universe(frozen):
        here, left = left[: int(masks[name].sum())], left[int(masks[name].sum()) :]
        expected = frozen[name].detach().clone()
        expected.view(-1)[masks[name]] += here
        assert torch.equal(new.get(name, frozen[name]), expected), name
    assert len(left) == 0
    sum(w.sum() for w in new.values()).backward()  # type: ignore[union-attr]
    assert torch.equal(values.grad, torch.ones(k))  # type: ignore[arg-type]


def test_the_pooler_is_left_out_and_the_embeddings_are_in() -> None:
    model = tiny.model("bert")
    names = LotteryTicket(norms=True).touched(find(model), dict(model.named_parameters()))
    assert not any(name.startswith("pooler") for name in names)
    assert "embeddings.word_embeddings.weight" in names
    assert sorted(names) == names
    assert set(dict(model.named_parameters())) - set(names) == {"pooler.dense.weight", "pooler.dense.bias"}


@pytest.mark.parametrize("density", [0, -0.1, 1.0001, float("nan"), "much", True, None])
def test_a_density_outside_0_to_1_is_refused(density: Any) -> None:
    with pytest.raises(MethodError, match="density"):
        LotteryTicket(density=density)


def test_a_density_that_keeps_nothing_is_refused_before_training() -> None:
    model = tiny.model("bert")
    for call in (
        lambda how: how.count(find(model), model),
        lambda how: how.init(find(model), model, torch.Generator()),
    ):
        with pytest.raises(MethodError, match="keeps none of this base's"):
            call(LotteryTicket(density=1e-9))
        with pytest.raises(MethodError, match="layers 1 have only"):
            call(LotteryTicket(density=0.9, layers="1"))


def test_a_density_of_one_is_all_but_the_pooler_and_the_norms() -> None:
    model = tiny.model("bert")
    sizes = {name: p.numel() for name, p in model.named_parameters() if not name.startswith("pooler")}
    assert LotteryTicket(density=1, norms=True).count(find(model), model)["adapters"] == sum(sizes.values())
    for method in (LotteryTicket, RandomTicket):
        without = sum(size for name, size in sizes.items() if "LayerNorm" not in name)
        assert method(density=1).count(find(model), model)["adapters"] == without


@pytest.mark.parametrize("case", ["bert", "gpt2", "albert", "t5"])
def test_norms_stay_unless_they_are_asked_for(case: str) -> None:
    model = tiny.model(case)
    sites, frozen = find(model), dict(model.named_parameters())
    norms = {name for name in universe(frozen) for norm in sites.norms if name.startswith(norm.path + ".")}
    with_them, without = (set(LotteryTicket(norms=norms).touched(sites, frozen)) for norms in (True, False))
    assert norms
    assert with_them - without == norms
    assert set(LotteryTicket().init(sites, model, torch.Generator())) == {f"delta.{name}" for name in without}


def test_the_penalty_is_l1_times_the_mean_change_of_the_bases_weights_in_both_stages() -> None:
    model = tiny.model("bert")
    sites, frozen = find(model), dict(model.named_parameters())
    method = LotteryTicket(density=0.02, l1=0.3)
    v = {name: delta.requires_grad_() for name, delta in moved(sites, frozen, method).items()}
    flat = torch.cat([delta.flatten() for delta in v.values()])
    penalty = method.penalty(v)
    assert penalty.item() == pytest.approx(0.3 * float(flat.detach().abs().mean()), rel=1e-5)  # type: ignore[union-attr]
    penalty.backward()  # type: ignore[union-attr]
    each = {float(price) for delta in v.values() for price in delta.grad.abs().unique()}  # type: ignore[union-attr]
    after = method.advance(sites, frozen, v, {})
    values = torch.full_like(after["sparse.values"], -2.0).requires_grad_()
    method.penalty({**after, "sparse.values": values}).backward()  # type: ignore[union-attr]
    total = sum(p.numel() for p in frozen.values())
    torch.testing.assert_close(values.grad, torch.full_like(values, -0.3 / total), rtol=1e-3, atol=0)
    assert sorted(each) == pytest.approx([0.3 / len(flat)] * len(each))
    assert LotteryTicket(l1=0).penalty(v) is None


def test_the_l1_of_the_authors_is_for_languages() -> None:
    for method in (LotteryTicket(), RandomTicket()):
        assert method.for_kind("mlm") == replace(method, l1=0.1)
        assert method.for_kind("tag") == replace(method, l1=0.0)
        assert replace(method, l1=0.7).for_kind("mlm").l1 == 0.7
        assert method.penalty({}) is None
        assert str(method) == f"{method.name}(density=0.005)"
    with pytest.raises(MethodError, match="freeze_head is for kind mlm"):
        LotteryTicket(freeze_head=True).for_kind("classify")
    raised = Raised(LotteryTicket(), [], "lang")
    assert raised.for_kind("mlm").method == LotteryTicket(l1=0.1)
    assert raised.freezes("head.norm.weight")


@pytest.mark.parametrize(
    ("method", "kept"),
    [
        ("lt_sft:0.05", {"head.norm.weight", "head.norm.bias"}),
        ("rand_sft:0.05", {"head.norm.weight", "head.norm.bias"}),
        ("lt_sft(density=0.05, norms=true)", set()),
        ("lt_sft(density=0.05, freeze_head=true)", {f"head.{name}" for name in HEAD}),
        ("lt_sft(density=0.05, freeze_head=true, norms=true)", {f"head.{name}" for name in HEAD}),
    ],
)
def test_a_languages_norms_and_head_can_be_shared(tmp_path: Path, method: str, kept: set[str]) -> None:
    base = load_base(tiny_base(tmp_path / "base", mask=True))
    options: dict[str, Any] = {"base": base, "method": method, "kind": "mlm", "epochs": 2, "lr": 5e-3}
    texts = [{"text": text} for text in TEXTS * 8]
    bound = api.train(texts, **options)
    task, initial = bound.task, bound.kind.init(base.width, torch.Generator())
    again = api.train(texts[:20], **{**options, "epochs": 1}).task
    same = {n for n in initial if torch.equal(task.weights[n], again.weights[n])}
    assert same == kept
    trained = sum(tensor.numel() for name, tensor in initial.items() if name not in kept)
    assert task.record.parameters["head"] == trained
    assert torch.equal(task.weights["head.norm.weight"], initial["head.norm.weight"]) == bool(kept)


def test_a_language_has_the_bases_own_decoder_though_its_embeddings_move(tmp_path: Path) -> None:
    base = load_base(tiny_base(tmp_path / "base", mask=True))
    texts = [{"text": text} for text in TEXTS * 8]
    bound = api.train(texts, base=base, method="lt_sft:0.2", kind="mlm", epochs=2, lr=5e-3)
    words = "embeddings.word_embeddings.weight"
    moved = bound.method.weights(base.hooked.sites, base.hooked.frozen, bound.task.weights)
    assert not torch.equal(moved[words], base.hooked.frozen[words])
    used: list[Tensor] = []
    real = type(bound.kind).run

    def run(*args: Any) -> Any:
        used.append(args[-1])
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(bound.kind), "run", run)
        bound.logits(["the old [MASK]"])
        api.train(texts, base=base, method="lt_sft:0.2", kind="mlm", epochs=1, lr=5e-3)
    assert all(torch.equal(embeddings, base.hooked.frozen[words]) for embeddings in used)
    assert len(used) > 2


def test_the_authors_one_rate_for_both_stages() -> None:
    method = LotteryTicket(dense_rate=1)
    assert method.rate("delta.x") == method.rate("sparse.values") == method.rate("head.weight") == 1
    assert LotteryTicket().rate("delta.x") * LotteryTicket.lr == pytest.approx(5e-5)


@pytest.mark.parametrize("wrong", [{"l1": -1}, {"l1": "a"}, {"norms": 1}, {"freeze_head": 0}, {"dense_rate": -1}])
def test_bad_fields_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(MethodError, match=next(iter(wrong))):
        LotteryTicket(**wrong)


def test_fields_that_matter_in_training_only_leave_tasks_alike() -> None:
    changed = LotteryTicket(density=0.1, l1=0.3, norms=True, freeze_head=True, dense_rate=1)
    assert changed.alike(LotteryTicket())
    assert parse(str(changed)) == changed
    assert not LotteryTicket(layers="1").alike(LotteryTicket())


def test_half_a_per_cent_of_minilms_shape() -> None:
    from transformers import BertConfig, BertModel

    with torch.device("meta"):
        model = BertModel(
            BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
        )
    assert sum(p.numel() for p in model.parameters()) == 22_713_216
    assert LotteryTicket().count(find(model), model)["adapters"] == 113_566


def test_spelling() -> None:
    assert parse("lt_sft:0.01") == LotteryTicket(density=0.01)
    assert parse(str(LotteryTicket(density=0.01, layers="1"))) == LotteryTicket(density=0.01, layers="1")


def test_a_trained_task_is_small_and_predicts_the_same_bits_when_read_again(
    base: Base, data: Path, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    bound = api.train(data, base=base, store=store, method="lt_sft:0.05", epochs=2, lr=1e-3, baselines=False)
    task = bound.task
    k = round(0.05 * task.record.parameters["base"])
    assert set(task.weights) == {"sparse.positions", "sparse.values", "head.weight", "head.bias"}
    assert len(task.weights["sparse.values"]) == k == task.record.parameters["adapters"]
    assert task.weights["sparse.values"].dtype == torch.float32
    assert task.weights["sparse.values"].count_nonzero() > 0.5 * k
    assert 4 * k + len(task.weights["sparse.positions"]) <= 6 * k
    assert [h["stage"] for h in task.record.history] == [0, 0, 1, 1]
    assert torch.equal(base.bind(store["task"]).logits(TEXTS), bound.logits(TEXTS))
    assert fingerprint(base.hooked.backbone) == base.fingerprint


def test_the_second_stage_starts_from_the_bare_base(base: Base, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adaptree.training import loop

    outputs, heads = [], []
    real = loop.Trainer._advance

    def advance(self: Any) -> None:
        rows = [row for [row] in self.source.examples(self.train_rows[:4])]
        dense = base.hidden(rows, self.hooked)[0]
        real(self)
        outputs.extend([dense, base.hidden(rows, self.hooked)[0], base.hidden(rows)[0]])
        heads.extend([self.v["head.weight"].detach().clone(), self._initial()["head.weight"]])

    monkeypatch.setattr(loop.Trainer, "_advance", advance)
    api.train(data, base=base, method="lt_sft:0.05", epochs=1, lr=1e-3, baselines=False)
    assert not torch.equal(outputs[0], outputs[2]), "the first stage moved"
    assert torch.equal(outputs[1], outputs[2])
    assert torch.equal(*heads)


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Lets a run die at the end of its n-th epoch."""
    from adaptree.training import checkpoint, loop

    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    when = {"die": 0, "seen": 0}
    real = checkpoint.write

    def write(*args: Any) -> None:
        real(*args)
        if not args[2]["batch"]:
            when["seen"] += 1
            if when["seen"] == when["die"]:
                raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write", write)
    return when


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lt_sft:0.05", "diff_pruning:0.05"])
def test_a_run_that_dies_in_any_stage_is_resumed_to_the_same_bits(
    base: Base, data: Path, tmp_path: Path, stops: dict[str, int], method: str
) -> None:
    import adaptree.methods.diff_pruning  # noqa: F401

    settings: dict[str, Any] = {
        "base": base, "method": method, "epochs": 2, "batch_size": 16, "lr": 1e-3, "baselines": False,
    }  # fmt: skip
    whole = api.train(data, store=Store(tmp_path / "whole"), **settings).task
    for die in (1, 2, 3):  # within the first stage, at its end, within the second
        store = Store(tmp_path / str(die))
        stops.update(die=die, seen=0)
        with pytest.raises(KeyboardInterrupt):
            api.train(data, store=store, **settings)
        torch.manual_seed(99)
        again = api.train(data, store=store, resume=True, **settings).task
        assert set(again.weights) == set(whole.weights)
        for name, tensor in whole.weights.items():
            assert torch.equal(again.weights[name], tensor), (die, name)
        shutil.rmtree(tmp_path / str(die))


def finished(model: Any, method: LotteryTicket, row: Any = None) -> Task:
    """A task of the last stage, with weights where training might have brought them."""
    hooked = HookedModel(model, row)
    v = method.advance(hooked.sites, hooked.frozen, moved(hooked.sites, hooked.frozen, method), {})
    v["sparse.values"] = 0.1 * torch.randn(len(v["sparse.values"]), generator=torch.Generator().manual_seed(5))
    record = Record(
        name="t", kind="attached", method=str(method), base={"name": "x", "fingerprint": fingerprint(hooked.backbone)}
    )
    return Task(record, v)


@pytest.mark.parametrize("case", tiny.CASES)
def test_attach_refuses_to_train_two_stages_and_takes_a_finished_task(case: str) -> None:
    model, row = tiny.model(case), tiny.CASES[case].row
    with pytest.raises(AdaptreeError, match=r"adaptree\.train"):
        attach(model, LotteryTicket(), architecture=row)
    task = finished(model, LotteryTicket(density=0.05), row)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    tuned = attach(model, task, architecture=row)
    inputs = tiny.batch(model)
    with torch.no_grad():
        assert not torch.equal(tiny.output(tuned, inputs), tiny.output(model, inputs))
        assert [name for name, _ in tuned.named_parameters()] == ["sparse.values"]
        assert tuned.count()["trained"] == len(task.weights["sparse.values"])
        assert torch.equal(tiny.output(attach(model, tuned.task, architecture=row), inputs), tiny.output(tuned, inputs))
        tuned.get_parameter("sparse.values").zero_()
        assert torch.equal(tiny.output(tuned, inputs), tiny.output(model, inputs))
    tiny.output(tuned, inputs).square().sum().backward()
    assert tuned.get_parameter("sparse.values").grad.any()  # type: ignore[union-attr]
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())


def test_positions_of_another_base_are_refused() -> None:
    model = tiny.model("bert")
    v = {"sparse.positions": sparse.encode(torch.tensor([10**9])), "sparse.values": torch.ones(1)}
    with pytest.raises(TaskCorrupt, match="do not fit"):
        LotteryTicket().weights(find(model), dict(model.named_parameters()), v)


def test_a_damaged_task_is_refused() -> None:
    model = tiny.model("bert")
    whole = finished(model, LotteryTicket(density=0.02)).weights

    def bind(v: dict[str, Tensor]) -> None:
        LotteryTicket().weights(find(model), dict(model.named_parameters()), v)

    bind(whole)
    cut = torch.cat([whole["sparse.positions"], torch.tensor([200], dtype=torch.uint8)])
    with pytest.raises(TaskCorrupt, match="damaged"):
        bind({**whole, "sparse.positions": cut})
    with pytest.raises(TaskCorrupt, match="do not fit its values"):
        bind({**whole, "sparse.values": whole["sparse.values"][1:]})
    for name in (*whole, ""):  # without one of them, and without both: never the bare base in silence
        with pytest.raises(KeyError):
            bind({key: tensor for key, tensor in whole.items() if name and key != name})

"""Projected attention on whole models: against a model written out with it, sizes, padding, and what it refuses."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from adaptree import attach
from adaptree.errors import MethodError
from adaptree.methods import parse
from adaptree.methods.pal import ENCODERS, Pal
from adaptree.models.hooks import HookedModel
from adaptree.models.sites import find
from adaptree.models.tuned import Tuned
from tests import tiny
from tests.test_reference import attention, difference, gelu, linear, norm

Weights = Mapping[str, Tensor]
SMALL = "pal(size=6, heads=3)"
FULL = "pal(size=6, heads=3, output=true, bias=true)"
every_encoder = pytest.mark.parametrize("case", ENCODERS)


def beside(h: Tensor, v: Weights, i: int, heads: int, allowed: Tensor) -> Tensor:
    """V^D · MH(V^E · h), Stickland & Murray 2019, §3.2."""

    def affine(x: Tensor, name: str) -> Tensor:
        y = torch.einsum("bti,io->bto", x, v[name])
        return y + v[f"{name}_bias"] if f"{name}_bias" in v else y

    z = affine(h, "shared.encode")
    q, k, value = (affine(z, f"{i}.pal.{key}") for key in ("query", "key", "value"))
    z = attention(q, k, value, heads, allowed)
    z = affine(z, f"{i}.pal.output") if f"{i}.pal.output" in v else z
    return affine(z, "shared.decode")


def bert(w: Weights, v: Weights, heads: int, ids: Tensor, mask: Tensor) -> Tensor:
    eps = 1e-12
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], w, {}, "embeddings.LayerNorm", eps)
    allowed = mask[:, None, :].expand(-1, ids.shape[1], -1)
    for i in range(3):
        at = f"encoder.layer.{i}"
        extra = beside(x, v, i, heads, allowed)
        q, k, value = (linear(x, w, f"{at}.attention.self.{name}") for name in ("query", "key", "value"))
        h = linear(attention(q, k, value, 4, allowed), w, f"{at}.attention.output.dense")
        x = norm(h + x, w, {}, f"{at}.attention.output.LayerNorm", eps)
        h = linear(gelu(linear(x, w, f"{at}.intermediate.dense")), w, f"{at}.output.dense")
        x = norm(h + x + extra, w, {}, f"{at}.output.LayerNorm", eps)
    return x


@torch.no_grad()
def shake(tuned: Tuned, seed: int = 1) -> Tuned:
    generator = torch.Generator().manual_seed(seed)
    for p in tuned.parameters():
        p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return tuned


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("method", [SMALL, FULL])
def test_outputs_and_gradients_equal_the_written_out_model(method: str, implementation: str) -> None:
    model: Any = tiny.model("bert")
    model.set_attn_implementation(implementation)  # one hands booleans to its layers, the other a float to add
    tuned = shake(attach(model, method))
    v = {name: p.detach().clone().requires_grad_() for name, p in tuned.named_parameters()}
    inputs = tiny.batch(model, rows=6, tokens=11)
    real = inputs["attention_mask"].bool()
    found = tuned(**inputs).last_hidden_state[real]
    w = {name: p.detach() for name, p in model.named_parameters()}
    written = bert(w, v, 3, inputs["input_ids"], real)[real]
    assert difference(found, model(**inputs).last_hidden_state[real]) > 0.05, "it must show"
    assert difference(found, written) < 1e-6
    towards = torch.randn(found.shape, generator=torch.Generator().manual_seed(2)) / len(found)
    (found * towards).sum().backward()
    (written * towards).sum().backward()
    for name, p in tuned.named_parameters():
        assert p.grad is not None, name
        assert v[name].grad is not None, name
        assert p.grad.any(), name
        if not name.endswith("key_bias"):  # moves all scores of a query alike: its gradient is rounding alone
            assert difference(p.grad, v[name].grad) < 1e-5, name


@torch.no_grad()
@every_encoder
def test_what_stands_in_the_padding_changes_nothing_at_real_positions(case: str) -> None:
    model = tiny.model(case)
    tuned, inputs = shake(attach(model, FULL)), tiny.batch(model, rows=6, tokens=7)
    real = inputs["attention_mask"].bool()
    assert not real.all()
    out = tiny.output(tuned, inputs)
    assert out.isfinite().all()
    # RoBERTa and MPNet count positions over what is not the padding's id, which other ids in the padding would move.
    positions = {}
    if case in ("roberta", "xlm-roberta", "mpnet"):
        ids = inputs["input_ids"]
        positions = {"position_ids": (ids != tiny.PAD).long().cumsum(1) * (ids != tiny.PAD) + tiny.PAD}
        torch.testing.assert_close(tiny.output(tuned, {**inputs, **positions}), out)
    other = torch.randint(3, tiny.VOCABULARY, real.shape, generator=torch.Generator().manual_seed(9))
    changed = {**inputs, **positions, "input_ids": torch.where(real, inputs["input_ids"], other)}
    bare = [tiny.output(model, {**given, **positions})[real] for given in (inputs, changed)]
    assert difference(*bare) < 1e-6, "the base itself must not look at it"
    moved = tiny.output(tuned, changed)
    assert difference(moved[real], out[real]) < 1e-6
    if not case.startswith("deberta"):  # these blank the embeddings of padding; the next test is stronger there
        assert difference(moved[~real], out[~real]) > 0.01, "or nothing was changed"


@torch.no_grad()
@every_encoder
def test_a_padded_text_is_answered_like_the_same_text_alone(case: str) -> None:
    model = tiny.model(case)
    tuned, inputs = shake(attach(model, FULL)), tiny.batch(model, rows=6, tokens=7)
    out = tiny.output(tuned, inputs)
    for i, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        alone = tiny.output(tuned, {key: value[i : i + 1, :length] for key, value in inputs.items()})
        assert difference(out[i, :length], alone[0]) < 3e-6


@torch.no_grad()
@every_encoder
def test_the_attention_beside_really_looks_at_other_tokens(case: str) -> None:
    """With the layer's own attention output removed, a token moves another one through PAL alone."""
    model = tiny.model(case)
    tuned, inputs = shake(attach(model, SMALL)), tiny.batch(model)
    for site in find(model).sites:
        if site.role == "attention":
            tuned.base_model.get_submodule(site.path).register_forward_hook(lambda module, args, out: out * 0)
    changed = {**inputs, "input_ids": inputs["input_ids"].clone()}
    changed["input_ids"][0, 3] = (changed["input_ids"][0, 3] + 1) % tiny.VOCABULARY
    before, after = tiny.output(tuned, inputs), tiny.output(tuned, changed)
    assert difference(after[0, 2], before[0, 2]) > 1e-4
    assert torch.allclose(after[1:], before[1:], atol=1e-6)


@pytest.mark.filterwarnings("ignore:.* is larger than the width 32")  # its default size is for real bases
@torch.no_grad()
@every_encoder
def test_near_the_base_at_birth_and_exactly_it_with_no_width(case: str) -> None:
    model = tiny.model(case)
    inputs = tiny.batch(model)
    bare = tiny.output(model, inputs)
    assert torch.equal(tiny.output(attach(model, "pal(init_std=0)"), inputs), bare)
    near = tiny.output(attach(model, "pal"), inputs)
    assert 0 < ((near - bare).norm() / bare.norm()).item() < 0.05


@every_encoder
def test_every_tensor_gets_a_gradient_at_birth(case: str) -> None:
    tuned = attach(tiny.model(case), FULL).train()
    out = tiny.output(tuned, tiny.batch(tuned))
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(7))).sum().backward()
    assert [name for name, p in tuned.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize(
    ("method", "adapters"),
    [
        ("pal", 1_811_520),  # 2 · 768 · 204 shared, 12 · 3 · 204² in the layers
        ("pal(output=true)", 2_310_912),  # and 12 · 204²
        ("pal(bias=true)", 1_819_836),  # and 768 + 204 + 12 · 3 · 204
        ("pal(size=84)", 383_040),
        ("pal(layers=top:1)", 438_192),  # both projections, and one layer's 3 · 204²
    ],
)
def test_counts_on_bert_base(method: str, adapters: int) -> None:
    with torch.device("meta"):
        model = BertModel(BertConfig())
    how = parse(method)
    assert how.count(find(model), model) == {"adapters": adapters, "norms": 0}
    born = how.init(find(model), model, torch.Generator().manual_seed(0))
    assert sum(t.numel() for t in born.values()) == adapters


def test_eight_tasks_on_bert_base_are_the_papers_1_13_times() -> None:
    with torch.device("meta"):
        model = BertModel(BertConfig())
    base = sum(p.numel() for p in model.parameters())
    assert f"{(base + 8 * Pal().count(find(model), model)['adapters']) / base:.2f}" == "1.13"


def test_layers_restricts_it() -> None:
    model = tiny.model("bert")
    tuned, inputs = shake(attach(model, "pal(size=6, heads=3, layers=1)")), tiny.batch(model)
    own = ["1.pal.key", "1.pal.query", "1.pal.value", "shared.decode", "shared.encode"]
    assert sorted(tuned.state_dict()) == own
    bare, with_task = (made(**inputs, output_hidden_states=True).hidden_states for made in (model, tuned))
    assert [torch.equal(a, b) for a, b in zip(bare, with_task, strict=True)] == [True, True, False, False]


@torch.no_grad()
@every_encoder
def test_a_batch_of_two_tasks_equals_one_by_one(case: str) -> None:
    model = tiny.model(case)
    how, owners, inputs = parse(FULL), [0, 1, 1, 0, 1], tiny.batch(model)
    tasks = [dict(shake(attach(model, how), seed).named_parameters()) for seed in (1, 2)]
    stacked = {name: torch.stack([tasks[owner][name] for owner in owners]) for name in tasks[0]}
    hooked = HookedModel(model)
    with hooked.running(how.plan(hooked.sites, stacked)):
        mixed = tiny.output(model, inputs)
    for i, owner in enumerate(owners):
        with hooked.running(how.plan(hooked.sites, tasks[owner])):
            alone = tiny.output(model, {key: value[i : i + 1] for key, value in inputs.items()})
        torch.testing.assert_close(mixed[i : i + 1], alone, atol=1e-5, rtol=1e-5)


def gradients(tuned: Tuned, thread: bool = False) -> dict[str, Tensor]:
    torch.manual_seed(5)
    tuned.zero_grad()
    loss = tiny.output(tuned, tiny.batch(tuned)).square().sum()
    if thread:
        behind = threading.Thread(target=loss.backward)
        behind.start()
        behind.join()
    else:
        loss.backward()
    return {name: p.grad.clone() for name, p in tuned.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("thread", [False, True], ids=["here", "in another thread"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
@pytest.mark.parametrize("case", ["bert", "modernbert", "distilbert"])
def test_gradient_checkpointing_gives_the_same_gradients(case: str, reentrant: bool, thread: bool) -> None:
    tuned = shake(attach(tiny.model(case, head=True), FULL)).train()
    want = gradients(tuned)
    tiny.checkpoint(tuned, use_reentrant=reentrant)
    got = gradients(tuned, thread)
    assert set(got) == set(want) == {name for name, _ in tuned.named_parameters()}
    for name in want:
        assert math.isclose((got[name] - want[name]).abs().max().item(), 0, abs_tol=1e-6 * want[name].abs().max()), name


def test_one_plan_in_two_threads_keeps_their_inputs_apart() -> None:
    model = tiny.model("albert")
    hooked, how = HookedModel(model), parse(SMALL)
    plan = how.plan(hooked.sites, dict(shake(attach(model, how)).named_parameters()))
    inputs = [tiny.batch(model, rows=4 + i, tokens=6 + i, seed=i) for i in (0, 1)]
    together: list[list[Tensor]] = [[], []]

    def run(i: int) -> None:
        for _ in range(6):
            with hooked.running(plan):
                together[i].append(tiny.output(model, inputs[i]))

    run(0), run(1)
    alone = [together[i][0] for i in (0, 1)]
    threads = [threading.Thread(target=run, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert all(len(together[i]) == 12 and all(torch.equal(out, alone[i]) for out in together[i]) for i in (0, 1))


@pytest.mark.parametrize("case", [case for case in tiny.CASES if case not in ENCODERS])
def test_other_bases_are_refused(case: str) -> None:
    model, row = tiny.model(case), tiny.CASES[case].row
    with pytest.raises(MethodError, match=r"not those of an encoder that gets the padding mask\.  It is for: bert, "):
        attach(model, "pal", architecture=row)
    with pytest.raises(MethodError, match="padding mask"):
        Pal().count(find(model, row), model)


def test_a_bert_that_is_a_decoder_or_works_in_pieces_is_refused() -> None:
    with torch.device("meta"):
        decoder = BertModel(BertConfig(is_decoder=True, num_hidden_layers=1))
        pieces = BertModel(BertConfig(chunk_size_feed_forward=2, num_hidden_layers=1))
    with pytest.raises(MethodError, match="padding mask"):
        Pal().count(find(decoder), decoder)
    with pytest.raises(MethodError, match="in pieces of a text"):
        Pal().count(find(pieces), pieces)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"size": 0}, "size must be"),
        ({"size": 200}, r"not a multiple of 12 heads\.  Write pal\(size=204\)"),
        ({"heads": 0}, "heads must be"),
        ({"init_std": -1}, "init_std must be"),
        ({"output": 1}, "output must be true or false"),
        ({"bias": "yes"}, "bias must be true or false"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(MethodError, match=what):
        Pal(**fields)

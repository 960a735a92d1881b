"""The neighbours of houlsby: what each one changes, what it costs, and where it cannot go."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

import adaptree.methods.bapna
import adaptree.methods.parallel
import adaptree.methods.variants  # noqa: F401
from adaptree import Tuned, attach
from adaptree.core import bottleneck
from adaptree.errors import MethodError
from adaptree.methods import METHODS, parse
from adaptree.models.hooks import HookedModel
from adaptree.models.sites import find
from tests import tiny

BESIDE = ["parallel_adapter", "scaled_parallel", "houlsby_parallel", "houlsby_multiplicative"]
VARIANTS = [
    "houlsby_norm", "houlsby_deep", "houlsby_attention", "houlsby_feedforward", "houlsby_parallel",
    "houlsby_multiplicative",
]  # fmt: skip
FAMILY = ["bapna", "parallel_adapter", "scaled_parallel", *VARIANTS]
CROSSED = ["t5", "bart"]  # their decoders have cross attention

every_one = pytest.mark.parametrize("method", FAMILY)


@torch.no_grad()
def shake(tuned: Tuned, seed: int = 1) -> Tuned:
    generator = torch.Generator().manual_seed(seed)
    for p in tuned.parameters():
        p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return tuned


@torch.no_grad()
def output(model: nn.Module, rows: slice = slice(None)) -> Tensor:
    return tiny.output(model, {key: value[rows] for key, value in tiny.batch(model).items()})


def moved(after: Tensor, before: Tensor) -> float:
    return float((after - before).norm() / before.norm())


# --- What it costs: BERT-base, d = 768, 12 layers, 25 norms of 2d; m = 64 ---------------------------------------------

NORMS = 25 * 2 * 768  # 38,400
ONE = 2 * 64 * 768 + 768 + 64  # 99,136


@pytest.mark.parametrize(
    ("method", "formula", "adapters", "norms"),
    [
        ("bapna:64", 12 * (ONE + 2 * 768), 1_208_064, 0),
        ("parallel_adapter:64", 12 * ONE, 1_189_632, 0),
        ("scaled_parallel:64", 12 * ONE, 1_189_632, 0),
        ("houlsby_norm:64", 24 * (ONE + 2 * 64), 2_382_336, NORMS),
        ("houlsby_deep:64", 24 * (ONE + 64 * 64 + 64), 2_479_104, NORMS),
        ("houlsby_deep(size=64, depth=4)", 24 * (ONE + 3 * (64 * 64 + 64)), 2_678_784, NORMS),
        ("houlsby_attention:64", 12 * ONE, 1_189_632, NORMS),
        ("houlsby_feedforward:64", 12 * ONE, 1_189_632, NORMS),
        ("houlsby_parallel:64", 24 * ONE, 2_379_264, NORMS),
        ("houlsby_multiplicative:64", 24 * ONE, 2_379_264, NORMS),
        ("houlsby_parallel(size=64, layers=top:4)", 8 * ONE, 793_088, 8 * 2 * 768),
        ("bapna(size=64, layers=0)", ONE + 2 * 768, 100_672, 0),
    ],
)
def test_the_count_on_bert_base_is_its_own_formulas(method: str, formula: int, adapters: int, norms: int) -> None:
    with torch.device("meta"):
        model = BertModel(BertConfig())
    how, sites = parse(method), find(model)
    assert adapters == formula
    assert how.count(sites, model) == {"adapters": adapters, "norms": norms}
    with torch.device("cpu"):
        born = how.init(sites, model, torch.Generator().manual_seed(0))
    assert sum(tensor.numel() for tensor in born.values()) == adapters + norms


# --- What it does -----------------------------------------------------------------------------------------------------


def same_weights(case: str, method: str, **options: Any) -> Tuned:
    """A task whose weights are those of a shaken houlsby:6, as far as the two have the same names."""
    tuned = attach(tiny.model(case), parse(method, size=6, **options))
    donor = shake(attach(tiny.model(case), parse("houlsby", size=6, activation=tuned.method.activation)))  # type: ignore[attr-defined]
    given = {name: tensor for name, tensor in donor.state_dict().items() if name in tuned.state_dict()}
    assert any(name.endswith("up") for name in given)
    tuned.load_state_dict({**tuned.state_dict(), **given})
    return tuned


@pytest.mark.parametrize("case", ["bert", "gpt2"])
@every_one
def test_with_houlsbys_weights_it_gives_another_output(case: str, method: str) -> None:
    activation = {"activation": "gelu"}
    houlsby = output(same_weights(case, "houlsby", **activation))
    assert torch.equal(output(same_weights(case, "houlsby", **activation)), houlsby)
    assert moved(output(same_weights(case, method, **activation)), houlsby) > 0.01


def test_no_two_of_the_family_are_the_same() -> None:
    names = ["pfeiffer", "houlsby", *FAMILY]
    outputs = {name: output(same_weights("bert", name, activation="gelu")) for name in names}
    for i, name in enumerate(names):
        for other in names[:i]:
            assert moved(outputs[name], outputs[other]) > 0.001, (name, other)


@pytest.mark.parametrize("activation", ["gelu", "relu", "swish", "tanh"])
@every_one
def test_the_activation_is_a_field_that_is_read(method: str, activation: str) -> None:
    other = "tanh" if activation != "tanh" else "gelu"
    assert moved(
        output(shake(attach(tiny.model("bert"), parse(method, size=6, activation=activation)))),
        output(shake(attach(tiny.model("bert"), parse(method, size=6, activation=other)))),
    ) > 1e-4  # fmt: skip


def test_one_more_hidden_layer_is_another_function() -> None:
    two, three = (shake(attach(tiny.model("bert"), f"houlsby_deep(size=6, depth={n})")) for n in (2, 3))
    assert "0.attention.mid2" in three.state_dict()
    assert "0.attention.mid2" not in two.state_dict()
    three.load_state_dict({**three.state_dict(), **two.state_dict()})
    assert moved(output(three), output(two)) > 0.01


@pytest.mark.parametrize("activation", ["gelu", "relu", "swish", "tanh"])
def test_the_gradient_reaches_the_first_map_of_a_deep_adapter(activation: str) -> None:
    """At birth: the first map of four hidden layers learns about as fast as that of one, and both are near the base."""
    norms = {}
    for depth, name in ((1, "houlsby"), (4, "houlsby_deep(depth=4)")):
        tuned = attach(model := tiny.model("bert"), parse(name, size=32, activation=activation))
        assert moved(output(tuned), output(model)) < 0.05
        found = tiny.output(tuned, tiny.batch(model))
        (found * torch.randn(found.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
        first = [p.grad for key, p in tuned.named_parameters() if key.endswith(".down")]
        norms[depth] = float(torch.cat([grad.flatten() for grad in first if grad is not None]).norm())
    assert 0.3 < norms[4] / norms[1] < 3


def test_the_scale_multiplies_what_is_added() -> None:
    """s · up is all that s does: an up that is s times as large, at scale one, is the same task."""
    scaled = shake(attach(tiny.model("bert"), "scaled_parallel(size=6, scale=2)"))
    plain = attach(tiny.model("bert"), "parallel_adapter:6")
    plain.load_state_dict({k: t * 2 if ".up" in k else t for k, t in scaled.state_dict().items()})
    torch.testing.assert_close(output(plain), output(scaled), atol=1e-6, rtol=1e-6)


def test_bapnas_norm_forgets_the_scale_of_a_layer() -> None:
    """What is added is the same for z and for 10 z, up to its epsilon."""
    p = {name: torch.randn(t.shape) for name, t in (bottleneck.init(32, 6) | bottleneck.init_norm(32)).items()}
    z = torch.randn(2, 3, 32)
    added, of_ten = bottleneck.norm_first(z, p) - z, bottleneck.norm_first(10 * z, p) - 10 * z
    torch.testing.assert_close(added, of_ten, atol=1e-4, rtol=1e-4)


def test_the_norm_inside_forgets_the_scale_of_the_bottleneck() -> None:
    p = {name: torch.randn(t.shape) for name, t in (bottleneck.init(32, 6) | bottleneck.init_norm(6)).items()}
    p["down_bias"] = torch.zeros(1, 6)
    h = torch.randn(2, 3, 32)
    louder = p | {"down": 10 * p["down"]}
    torch.testing.assert_close(bottleneck.norm_inside(h, p), bottleneck.norm_inside(h, louder), atol=1e-4, rtol=1e-4)


# --- At birth ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.* is larger than the width 32")  # their default sizes are for real bases
@pytest.mark.parametrize("case", ["bert", "gpt2", "llama", "deberta-v2", "albert"])
@every_one
def test_near_identity_at_birth_and_exactly_it_where_up_is_zero(case: str, method: str) -> None:
    model = tiny.model(case)
    tuned = attach(model, method)
    bare = output(model)
    assert moved(output(tuned), bare) < 0.02
    assert torch.equal(output(tuned), bare) == (method == "scaled_parallel")
    shake(tuned)
    with torch.no_grad():
        for name, p in tuned.named_parameters():
            if ".up" in name:
                p.zero_()
            elif name.startswith("norm."):
                p.copy_(model.get_parameter(name.removeprefix("norm.")))
    assert torch.equal(output(tuned), bare)


def test_scaled_parallel_is_born_like_lora() -> None:
    born = bottleneck.init_like_lora(400, 50, generator=torch.Generator().manual_seed(0))
    assert not any(born[name].any() for name in ("up", "up_bias", "down_bias"))
    assert born["down"].abs().max() <= 1 / 20
    assert float(born["down"].std()) == pytest.approx(1 / 20 / 3**0.5, rel=0.02)
    assert "init_std" not in repr(parse("scaled_parallel"))
    with pytest.raises(MethodError, match="no field 'init_std'"):
        parse("scaled_parallel(init_std=0.1)")


# --- Training and rows -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["bert", "gpt2", "t5-encoder", "modernbert"])
@every_one
def test_a_gradient_reaches_every_tensor(case: str, method: str) -> None:
    tuned = shake(attach(tiny.model(case), parse(method, size=6))).train()
    tiny.output(tuned, tiny.batch(tuned)).square().sum().backward()
    assert [name for name, p in tuned.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_scaled_parallel_learns_from_its_birth_on() -> None:
    """up is zero, so down has no gradient in the first step, and has one in the second."""
    tuned = attach(tiny.model("bert"), "scaled_parallel:6").train()
    optimiser = torch.optim.AdamW(tuned.parameters(), lr=1e-2)
    for step in range(2):
        optimiser.zero_grad()
        tiny.output(tuned, tiny.batch(tuned)).square().sum().backward()
        still = {n.rpartition(".")[2] for n, p in tuned.named_parameters() if p.grad is not None and not p.grad.any()}
        assert still == ({"down", "down_bias"} if step == 0 else set())
        optimiser.step()


@torch.no_grad()
@pytest.mark.parametrize("case", ["bert", "gpt2", "albert"])
@every_one
def test_rows_of_two_tasks_equal_one_by_one(case: str, method: str) -> None:
    model = tiny.model(case)
    hooked, how = HookedModel(model), parse(method, size=6)
    tasks = [dict(shake(attach(model, how), seed).named_parameters()) for seed in (1, 2)]
    owners = [0, 1, 1, 0, 1]
    stacked = {name: torch.stack([tasks[owner][name] for owner in owners]) for name in tasks[0]}
    stacked = {name: t.unsqueeze(1) if t.dim() == 2 else t for name, t in stacked.items()}
    with hooked.running(how.plan(hooked.sites, stacked)):
        mixed = output(model)
    for i, owner in enumerate(owners):
        alone = []
        for task in tasks:
            with hooked.running(how.plan(hooked.sites, task)):
                alone.append(output(model, slice(i, i + 1)))
        torch.testing.assert_close(mixed[i : i + 1], alone[owner], atol=1e-5, rtol=1e-5)
        assert moved(alone[0], alone[1]) > 0.01


# --- Places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CROSSED)
@pytest.mark.parametrize("method", [name for name in FAMILY if name not in BESIDE[2:]])
def test_decoders_with_cross_attention_work(method: str, case: str) -> None:
    model = tiny.model(case)
    tuned = attach(model, parse(method, size=6))
    roles = {name.split(".")[1] for name in tuned.state_dict() if name[0].isdigit()}
    assert ("cross" in roles) == ("attention" in roles)
    shake(tuned).train()
    assert moved(output(tuned), output(model)) > 0.01
    tiny.output(tuned, tiny.batch(tuned)).square().sum().backward()
    assert [name for name, p in tuned.named_parameters() if p.grad is None or not p.grad.any()] == []


@every_one
def test_layers_restricts_it(method: str) -> None:
    model = tiny.model("bert")
    tuned = attach(model, parse(method, size=6, layers="1"))
    assert {name.split(".")[0] for name in tuned.state_dict() if not name.startswith("norm.")} == {"1"}
    plan = tuned.method.plan(find(model), dict(tuned.named_parameters()))
    assert plan
    assert all(path.startswith("encoder.layer.1") for path in plan)


def test_bapna_stands_after_the_whole_layer_and_leaves_what_else_it_gives() -> None:
    """T5's layers hand their position bias on; the adapter changes the state alone."""
    model = tiny.model("t5-encoder")
    given: list[list[Any]] = [[], []]
    tuned = shake(attach(model, "bapna(size=6, layers=0)"))
    for kept, root in zip(given, (model, tuned.base_model), strict=True):
        root.get_submodule("encoder.block.0").register_forward_hook(lambda m, a, out, kept=kept: kept.extend(out))
        output(root)
    bare, adapted = given
    assert len(bare) == len(adapted) == 3
    assert torch.equal(bare[1], adapted[1])
    p = {name.rpartition(".")[2]: t for name, t in tuned.named_parameters()}
    assert torch.equal(adapted[0], bottleneck.norm_first(bare[0], p))


@pytest.mark.parametrize("case", ["bert", "gpt2", "t5-encoder"])
def test_the_hidden_states_that_a_model_gives_are_those_after_bapna(case: str) -> None:
    """Even where the model has been asked for them before: its own hooks are on the layers already."""
    model = tiny.model(case)
    inputs = tiny.batch(model)
    bare = model(**inputs, output_hidden_states=True).hidden_states
    tuned = shake(attach(model, "bapna(size=6, layers=0)"))
    states = tuned(**inputs, output_hidden_states=True).hidden_states
    assert [torch.equal(state, was) for state, was in zip(states, bare, strict=True)] == [True, False, False, False]


# --- Bad numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "says"),
    [
        ("houlsby_deep(depth=1)", "depth must be a whole number of at least 2, not 1"),
        ("houlsby_deep(depth=2.5)", "depth must be a whole number"),
        ("houlsby_norm:1", "size must be at least 2"),
        ("scaled_parallel(scale=0)", "scale must be more than 0"),
        ("scaled_parallel(scale=-1)", "scale must be a number of at least 0, not -1"),
        ("scaled_parallel(scale=big)", "not 'big'"),
        ("bapna:0", "bapna: size must be a whole number of at least 1"),
        ("paralel_adapter:8", "Did you mean 'parallel_adapter'?"),
    ],
)
def test_a_bad_number_gets_one_clear_line(spelling: str, says: str) -> None:
    with pytest.raises(MethodError) as caught:
        parse(spelling)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@every_one
def test_it_says_what_it_is(method: str) -> None:
    how = METHODS[method]
    assert all(getattr(how, word) for word in ("paper", "trains", "choose", "main", "lr"))
    assert parse(repr(parse(method))) == parse(method)
    assert how.trains.endswith("the head")

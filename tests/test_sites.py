from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertModel

from adaptree import Architecture, attach
from adaptree.errors import UnknownArchitecture, UsageError
from adaptree.methods.layers import parse_layers
from adaptree.models.architectures import ARCHITECTURES
from adaptree.models.hooks import HookedModel
from adaptree.models.sites import find
from tests import tiny

STACK = tiny.ROFORMER.stacks[0]


def row(**changes: Any) -> Architecture:
    """BERT's row with something else in it, as a user would pass it."""
    return Architecture(stacks=(dataclasses.replace(STACK, **changes),))


def refusal(model: nn.Module, architecture: Architecture | None) -> str:
    with pytest.raises(UnknownArchitecture) as caught:
        attach(model, "houlsby:4", architecture=architecture)
    return str(caught.value)


@pytest.mark.parametrize("case", tiny.CASES)
def test_a_row_names_every_norm_of_its_model(case: str) -> None:
    model = tiny.model(case)
    by_class = {path for path, m in model.named_modules() if "norm" in type(m).__name__.lower()}
    sites = find(model, tiny.CASES[case].row)
    assert {norm.path for norm in sites.norms} == by_class
    assert len(sites.norms) == len(by_class)
    for norm in sites.norms:
        module = model.get_submodule(norm.path)
        assert norm.size == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("case", tiny.CASES)
def test_layers_are_numbered_and_every_layer_has_its_sites(case: str) -> None:
    sites = find(tiny.model(case), tiny.CASES[case].row)
    by_layer = [[site.role for site in sites.sites if site.layer == layer] for layer in range(sites.depth)]
    plain, crossed = ["attention", "feedforward"], ["attention", "cross", "feedforward"]
    depths = {"albert": (4, 0), "t5": (3, 2), "t5-generator": (3, 2), "bart": (3, 2)}
    encoder, decoder = depths.get(case, (3, 0))
    assert by_layer == [plain] * encoder + [crossed] * decoder
    assert {norm.layer for norm in sites.norms} == set(range(sites.depth))


def test_an_albert_layer_is_met_at_every_depth_of_its_group() -> None:
    assert [site.calls for site in find(tiny.model("albert")).sites] == [2] * 8
    config = tiny.albert()
    config.num_hidden_layers, config.num_hidden_groups = 5, 2  # depths 0-2 are of the first group, 3-4 of the second
    model = tiny.CASES["albert"].bare.from_config(config)
    HookedModel(model).probe()
    assert [site.calls for site in find(model).sites] == [3] * 4 + [2] * 4


def test_the_norm_of_the_embeddings_is_as_wide_as_they_are() -> None:
    for case in ("electra", "albert", "roformer"):
        sites = find(tiny.model(case), tiny.CASES[case].row)
        assert {norm.width for norm in sites.norms if norm.path == "embeddings.LayerNorm"} == {16}
        assert {site.width for site in sites.sites} == {32}


def test_an_unknown_architecture_shows_candidates_and_the_object_to_pass() -> None:
    said = refusal(tiny.model("roformer"), None)
    assert "roformer" in said
    assert "Architecture(stacks=(LayerStack(layers='encoder.layer', attention='…', feedforward='…', " in said
    assert "norms=('attention.output.LayerNorm', 'output.LayerNorm')" in said
    for candidate in ("attention.output.dense", "attention.output.dropout", "output.dense", "output.dropout"):
        assert f" {candidate} (" in said
    assert "3 × RoFormerLayer" in said
    assert "Traceback" not in said


def test_the_object_to_pass_is_python_and_works() -> None:
    """What the message shows, with its two gaps filled from its own candidates."""
    shown = next(line for line in refusal(tiny.model("roformer"), None).splitlines() if "Architecture(" in line)
    filled = shown.replace("attention='…'", "attention='attention.output.dropout'")
    filled = filled.replace("feedforward='…'", "feedforward='output.dropout'")
    names = {name: getattr(__import__("adaptree"), name) for name in ("Architecture", "LayerStack")}
    tuned = attach(tiny.model("roformer"), "houlsby:4", architecture=eval(filled.strip(), names))
    assert tuned.count()["adapters"] == 6 * (2 * 4 * 32 + 32 + 4)


def test_a_model_with_no_layers_says_so() -> None:
    model = tiny.model("bert")
    model.config.model_type = "flat"  # type: ignore[union-attr]
    model.encoder = nn.Identity()
    assert "no list of layers" in refusal(model, None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"attention": "attention.self"}, "gives tuple"),
        ({"feedforward": "intermediate.dense"}, "not a tensor 32 wide"),
        ({"attention": "attention.outptu.dropout"}, "attention.output.dropout"),  # among the candidates
        ({"attention": "output.dropout"}, "two sites"),
        ({"layers": "encoder.layers"}, "LayerStack(layers='encoder.layer'"),
        ({"norms": ("attention.output.dense",)}, "which is a Linear"),
        ({"norms": ("attention",)}, "which is a BertAttention"),
        ({"before": ("embeddings.word_embeddings",)}, "which is a Embedding"),
        ({"before": ("embeddings.LayerNrom",)}, "'embeddings.LayerNrom', which this model does not have"),
        ({"norms": ("output.LayerNrom",)}, "'output.LayerNrom', which this model does not have"),
    ],
)
def test_a_wrong_row_is_refused(changes: dict[str, Any], says: str) -> None:
    assert says in refusal(tiny.model("bert"), row(**changes))


def test_a_site_that_never_fires_is_refused() -> None:
    config = tiny.bert()
    config.is_decoder = config.add_cross_attention = True
    said = refusal(BertModel(config), row(cross="crossattention.output.dropout"))
    assert "fired 0 times in a forward pass, not 1" in said


def test_a_site_that_fires_too_often_is_refused() -> None:
    said = refusal(tiny.model("albert"), dataclasses.replace(ARCHITECTURES["albert"], calls=lambda config, layer: 1))
    assert "fired 2 times in a forward pass, not 1" in said


class Unusual(nn.LayerNorm):
    """Adds a half, which its parameters do not say."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.5


class Gated(nn.Module):
    """Keeps a second vector, which a norm has not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))
        self.gate = nn.Parameter(torch.ones(32))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * self.gate


@pytest.mark.parametrize(
    ("module", "says"), [(Unusual(32), "a task of zeros changes the base's output"), (Gated(), "is no norm")]
)
def test_a_norm_that_is_no_norm_is_refused_by_the_probe(module: nn.Module, says: str) -> None:
    model: Any = tiny.model("bert")
    model.embeddings.LayerNorm = module
    assert says in refusal(model, None)


def test_a_norm_that_never_fires_is_refused() -> None:
    model: Any = tiny.model("bert")
    model.spare = nn.LayerNorm(32)
    assert "'spare' never fired" in refusal(model, row(before=("spare",)))


def test_the_probe_leaves_no_trace() -> None:
    model: Any = tiny.model("bart")
    model.train()
    model.encoder.eval()
    modes = [module.training for module in model.modules()]
    HookedModel(model).probe()
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks for module in model.modules())


def test_layers_are_spelled_as_ranges_lists_and_tops() -> None:
    assert parse_layers(None, 3) == (0, 1, 2)
    assert parse_layers("3-5", 12) == (3, 4, 5)
    assert parse_layers("4, 0,2", 6) == (0, 2, 4)
    assert parse_layers("top:2", 6) == (4, 5)
    assert parse_layers("0,top:1", 6) == (0, 5)
    assert parse_layers("1,1-2", 6) == (1, 2)


@pytest.mark.parametrize(
    "spec", ["3", "0-3", "2-1", "top:9", "top:0", "top:", "", ",", "1-", "-1", "1.5", "all", "0,,1"]
)
def test_layers_that_do_not_exist_are_refused_with_what_there_is(spec: str) -> None:
    with pytest.raises(UsageError, match=r"0-2|3-5") as caught:
        parse_layers(spec, 3)
    assert f"layers='{spec}'" in str(caught.value)

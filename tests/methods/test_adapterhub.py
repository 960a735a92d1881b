"""The forms of the adapters library: methods that are read and run, and not trained by their name.

Their numbers are compared with the library's own in tests/peers/test_peer_interop.py.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from adaptree import attach
from adaptree.errors import MethodError
from adaptree.methods import METHODS, parse
from adaptree.methods.fusion import Fusion
from adaptree.models.hooks import HookedModel
from tests import tiny

FORMS = {"layer_adapter:3": ("bert", "gpt2", "t5", "llama"), "stream_parallel:3": ("gpt2", "t5", "llama", "modernbert"),
         "ia3_intermediate": ("bert", "gpt2", "t5", "distilbert")}  # fmt: skip
PAIRS = [(form, case) for form, cases in FORMS.items() for case in cases]


def shaken(tuned: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in tuned.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return tuned


@pytest.mark.parametrize(("form", "case"), PAIRS)
def test_they_act_count_and_learn(form: str, case: str) -> None:
    model = tiny.model(case)
    tuned = attach(model, form)
    batch = tiny.batch(model)
    if form != "layer_adapter:3":
        with torch.no_grad():
            assert torch.equal(tiny.output(tuned, batch), tiny.output(model, batch)), "at first they change nothing"
    assert tuned.count()["trained"] == sum(p.numel() for p in tuned.parameters())
    assert not torch.allclose(tiny.output(shaken(tuned), batch), tiny.output(model, batch), atol=1e-3)
    tiny.output(tuned, batch).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in tuned.parameters())


def test_they_are_not_trained_by_their_name() -> None:
    names = {"layer_adapter", "stream_parallel", "ia3_intermediate", "branch_fusion"}
    assert not names & set(METHODS)
    assert {str(parse(name)).partition("(")[0] for name in names} == names


def test_a_stream_before_a_norm_is_only_where_the_norm_is_in_front() -> None:
    with pytest.raises(MethodError, match=r"no norm in front.*scaled_parallel"):
        attach(tiny.model("bert"), "stream_parallel:3")
    with pytest.raises(MethodError, match="no norms of its own"):
        parse("stream_parallel(size=3, norms=true)")


@pytest.mark.parametrize(
    ("case", "part"), [("bert", "pfeiffer:3"), ("gpt2", "layer_adapter:3"), ("t5", "layer_adapter:3")]
)
@torch.no_grad()
def test_a_fusion_of_branches_is_the_papers_where_v_is_the_identity(case: str, part: str) -> None:
    """Σ s_n b_n + r = Σ s_n z_n; with another V the two differ by r (V − I)."""
    model = tiny.model(case)
    hooked, batch = HookedModel(model), tiny.batch(model)
    method = parse(part)
    parts = [(method, shaken(attach(model, method, seed=seed)).weights()) for seed in (1, 2)]
    fusion = parse("branch_fusion")
    assert isinstance(fusion, Fusion)
    fusion = fusion.over(parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        v = fusion.init(hooked.sites, hooked.backbone, torch.Generator().manual_seed(0))
    assert sum(t.numel() for t in v.values()) == sum(fusion.count(hooked.sites, hooked.backbone).values())
    v = {name: torch.eye(len(t)) if name.endswith("value") else t + 0.3 for name, t in v.items()}

    def run(how: Fusion, v: Any) -> Any:
        with hooked.running(how.plan(hooked.sites, v)):
            return tiny.output(model, batch)

    biased = run(fusion, v)
    plain = {name: torch.zeros_like(t) if name.endswith("query_bias") else t for name, t in v.items()}
    assert not torch.allclose(biased, run(fusion, plain), atol=1e-4), "a bias of the query counts"
    if case == "bert":  # the paper's form has no adapters on a whole layer
        paper = Fusion().over(parts)
        own = {name: t for name, t in plain.items() if not name.endswith("query_bias")}
        assert torch.allclose(run(fusion, plain), run(paper, own), atol=1e-5)
        noise = 0.1 * torch.randn(hooked.sites.sites[0].width, generator=torch.Generator().manual_seed(3)).diag()
        moved = {name: t + noise if name.endswith("value") else t for name, t in own.items()}
        assert not torch.allclose(run(fusion, plain | moved), run(paper, moved), atol=1e-3)

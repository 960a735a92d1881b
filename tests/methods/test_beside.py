"""Adapters beside a sublayer: what they keep of its input, for how long and for whom; and where they cannot go."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import adaptree.methods.bapna
import adaptree.methods.parallel  # noqa: F401
from adaptree import attach
from adaptree.errors import MethodError
from adaptree.methods import parse
from adaptree.methods.method import Before
from adaptree.models.hooks import HookedModel
from adaptree.models.sites import find
from tests import tiny
from tests.methods.test_bottleneck_family import BESIDE, CROSSED, moved, output, shake


@pytest.mark.parametrize("owners", [(0, 1), (0, 0)], ids=["two plans", "one plan"])
@pytest.mark.parametrize("method", BESIDE)
def test_two_threads_on_one_host_do_not_meet(method: str, owners: tuple[int, int]) -> None:
    """Each waits for the other between the look at a sublayer's input and its use: shared, the looks would mix."""
    model = tiny.model("bert")
    hooked, how = HookedModel(model), parse(method, size=6)
    tasks = [dict(shake(attach(model, how), seed).named_parameters()) for seed in (1, 2)]
    plans = [how.plan(hooked.sites, task) for task in tasks]
    rows = [slice(0, 2), slice(2, 4)]

    def run(i: int) -> Tensor:
        with hooked.running(plans[owners[i]]):
            return output(model, rows[i])

    alone = [run(0), run(1)]
    meet = threading.Barrier(2, timeout=30)
    for linear in hooked.sites.linears:
        if linear.role in ("output", "down"):
            model.get_submodule(linear.path).register_forward_pre_hook(lambda *_: (meet.wait(), None)[1])
    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(run, (0, 1)))
    for i in (0, 1):
        assert torch.equal(together[i], alone[i])


@pytest.mark.parametrize("method", BESIDE)
def test_nothing_of_a_batch_is_kept_after_it(method: str) -> None:
    """Between two passes a plan holds no activation: the look is used up by what follows it."""
    model = tiny.model("bert")
    hooked, how = HookedModel(model), parse(method, size=6)
    plan = how.plan(hooked.sites, dict(shake(attach(model, how)).named_parameters()))
    with hooked.running(plan):
        output(model)
    looks = [entry.look for entry in plan.values() if isinstance(entry, Before)]
    boxes = [cell.cell_contents for look in looks for cell in look.__closure__ or ()]  # type: ignore[attr-defined]
    assert len(boxes) == len(looks) == (6 if method.startswith("houlsby") else 3)
    assert all(isinstance(box, threading.local) and not vars(box) for box in boxes)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "in another thread"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
@pytest.mark.parametrize("case", ["bert", "gpt2", "llama", "modernbert"])
@pytest.mark.parametrize("method", [*BESIDE, "bapna"])
def test_checkpointing_gives_equal_gradients(method: str, case: str, reentrant: bool, elsewhere: bool) -> None:
    model = tiny.model(case, head=True)
    model.config.use_cache = False
    tuned = shake(attach(model, parse(method, size=6))).train()

    def gradients() -> dict[str, Tensor]:
        tuned.zero_grad()
        torch.manual_seed(5)
        loss = tiny.output(tuned, tiny.batch(tuned)).square().sum()
        if elsewhere:
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
        else:
            loss.backward()
        return {name: p.grad.clone() for name, p in tuned.named_parameters() if p.grad is not None}

    want = gradients()
    assert set(want) == set(dict(tuned.named_parameters()))
    runs: list[int] = []
    tuned.base_model.get_submodule(find(model).sites[0].path).register_forward_hook(lambda *_: runs.append(1))
    tiny.checkpoint(tuned, use_reentrant=reentrant)
    got = gradients()
    assert len(runs) == 2, "the layer must run again in the backward pass"
    for name, grad in want.items():
        assert torch.equal(got[name], grad), name


@pytest.mark.parametrize("case", CROSSED)
@pytest.mark.parametrize("method", ["houlsby_parallel", "houlsby_multiplicative"])
def test_beside_cross_attention_is_refused_with_the_reason_and_the_encoder_works(method: str, case: str) -> None:
    model = tiny.model(case)
    how = parse(method, size=6)
    for ask in (lambda: how.count(find(model), model), lambda: attach(model, how)):
        with pytest.raises(MethodError, match=r"layer 3 .* has cross attention") as caught:
            ask()
        assert "layers=" in caught.value.hint
    encoder = shake(attach(model, parse(how, layers="0-2")))
    assert moved(output(encoder), output(model)) > 0.01


@pytest.mark.parametrize(
    ("method", "way_in"), [("parallel_adapter", "up"), ("scaled_parallel", "up"), ("houlsby_parallel", "qkv")]
)
def test_a_row_that_does_not_name_the_way_in_is_refused(method: str, way_in: str) -> None:
    model, row = tiny.model("roformer"), tiny.CASES["roformer"].row
    how, sites = parse(method), find(model, row)
    for ask in (lambda: how.count(sites, model), lambda: attach(model, how, architecture=row)):
        with pytest.raises(MethodError, match=r"names no linear map .* of layer 0") as caught:
            ask()
        assert f"'{way_in}'" in caught.value.hint


@pytest.mark.parametrize("case", [name for name, case in tiny.CASES.items() if case.row is None])
def test_what_shows_a_sublayers_input_fires_once_a_call(case: str) -> None:
    """A map that read something else too (DeBERTa v2's query reads positions) would show the wrong thing."""
    model = tiny.model(case)
    hooked, seen = HookedModel(model), {}
    how = parse("parallel_adapter" if any(s.role == "cross" for s in hooked.sites.sites) else "houlsby_parallel")
    pairs = how._entrances(hooked.sites)  # type: ignore[attr-defined]
    for _, entrance in pairs:
        module = hooked.backbone.get_submodule(entrance.path)
        module.register_forward_hook(lambda *_, path=entrance.path: seen.update({path: seen.get(path, 0) + 1}))
    output(model)
    assert seen == {entrance.path: site.calls for site, entrance in pairs}

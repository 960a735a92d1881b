"""What every method must obey on every architecture. A new method, or a new row, is under these laws by itself."""

from __future__ import annotations

import copy
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from adaptree import attach
from adaptree.errors import AdaptreeError, MethodError
from adaptree.methods import METHODS, Method
from adaptree.models.architectures import ARCHITECTURES
from adaptree.models.hooks import HookedModel
from adaptree.models.sites import backbone_of, find
from adaptree.models.tuned import Tuned
from tests import tiny
from tests.laws.ground import (
    CUT,
    FINISHED,
    FIXED,
    LAYERED,
    REFUSED,
    SMALL,
    STAGED,
    SUBJECTS,
    advanced,
    applies,
    loss,
    method_of,
    moved,
    output,
    pairs,
    put,
    shake,
    small,
    state,
    tune,
)

# Rows of one batch may be of several tasks, but for methods that put their own tensors in the place of the base's.
MIXING = [name for name in SUBJECTS if method_of(name).weights is Method.weights and name != "head"]
# DeBERTa-v2 with shared keys runs its query and key maps over a table that is one for the whole batch.
UNMIXED = {("deberta-v2", "lora"), ("deberta-v2", "ia3")}

every_pair = pairs(SUBJECTS)
# Diff pruning goes on from the weights that it has cut: it has a law of its own, below.
born_pairs = pairs([name for name in SUBJECTS if name != "diff_pruning" + CUT])


def test_the_tiny_models_cover_the_whole_table() -> None:
    assert set(ARCHITECTURES) <= set(tiny.CASES)
    assert all(tiny.model(name).config.model_type == name for name in ARCHITECTURES)  # type: ignore[union-attr]


@pytest.mark.parametrize("method", STAGED)
def test_a_method_in_stages_is_not_attached(method: str) -> None:
    with pytest.raises(AdaptreeError, match=r"adaptree\.train"):
        attach(tiny.model("bert"), small(method))


@pytest.mark.parametrize(("method", "case"), [(method, case) for method in REFUSED for case in REFUSED[method]])
def test_a_method_without_a_place_says_why(case: str, method: str) -> None:
    with pytest.raises(MethodError, match=REFUSED[method][case]):
        tune(case, method)


@pytest.mark.filterwarnings("ignore:.* is larger than the width 32")
@born_pairs
def test_near_identity_at_birth(case: str, method: str) -> None:
    model, tuned = tune(case, method, METHODS[method.removesuffix(CUT)]())
    assert moved(output(tuned), output(model)) < 0.05


@born_pairs
def test_born_at_zero_is_exactly_the_base(case: str, method: str) -> None:
    """A method with no scale of birth is the base as it is born."""
    scaled = "init_std" in {field.name for field in fields(method_of(method))}
    model, tuned = tune(case, method, small(method, init_std=0.0) if scaled else None)
    assert torch.equal(output(tuned), output(model))
    assert not torch.equal(output(shake(tuned, 1)), output(model))
    if scaled:
        assert not torch.equal(output(tune(case, method)[1]), output(model))


@pairs([name for name in SUBJECTS if name != "head"])  # a head keeps its own dropout
def test_the_frozen_base_has_no_dropout_in_training(case: str, method: str) -> None:
    model, tuned = tune(case, method)
    _, dropping = tune(case, method, dropout=True)
    at_rest = output(tuned)
    assert not tuned.training
    tuned.train(), dropping.train()
    torch.manual_seed(0)
    assert torch.equal(output(tuned), at_rest)
    assert torch.equal(output(tuned), at_rest)
    assert moved(output(dropping), output(dropping)) > 0.1, "these settings have dropout, or the law says nothing"
    assert not any(module.training for module in model.modules())


@every_pair
def test_only_v_changes(case: str, method: str) -> None:
    model = tiny.model(case, head=True)
    model.train()
    backbone_of(model).eval()
    next(model.parameters()).requires_grad_(False)
    before = state(model)
    tuned = put(model, case, method)
    assert state(model) == before
    assert tuned.training == model.training
    tuned.train()
    v = {name: t.detach().clone() for name, t in tuned.state_dict().items()}
    torch.manual_seed(0)
    optimiser = torch.optim.AdamW(tuned.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        loss(tuned).backward()
        optimiser.step()
    assert state(model) == before
    same = {name for name, tensor in tuned.state_dict().items() if torch.equal(tensor, v[name])}
    assert same - FIXED.get(case, set()) == {name for name, _ in tuned.named_buffers()}, "positions stay"
    assert {name for name, _ in tuned.named_buffers()} <= {"sparse.positions"}
    assert list(tuned.state_dict()) == list(v)


@pairs([name for name in SUBJECTS if not method_of(name).dynamic])  # a dynamic method's sums are tensors of their own
def test_the_base_is_in_memory_once(case: str, method: str) -> None:
    model, tuned = tune(case, method, head=True)
    own = {p.data_ptr() for p in tuned.parameters()}
    base = {p.data_ptr() for p in model.parameters()}
    inside = {p.data_ptr() for p in tuned.base_model.parameters()}
    assert inside - own <= base
    assert not own & base


@every_pair
def test_every_trained_tensor_gets_a_gradient(case: str, method: str) -> None:
    model, tuned = tune(case, method, head=True)
    shake(tuned, 1).train()  # at birth a factor may be zero, and hold back the other's gradient
    torch.manual_seed(0)
    for _ in range(20 if method == "diff_pruning" else 1):  # in one draw alone a gate may be closed
        loss(tuned).backward()
    without = {name for name, p in tuned.named_parameters() if p.grad is None or not p.grad.any()}
    assert without - FIXED.get(case, set()) == set()
    assert all(p.grad is None for p in model.parameters())


@pairs(FINISHED)
def test_count_is_the_formula_and_what_is_trained(case: str, method: str) -> None:
    _, tuned = tune(case, method, head=True)
    count = tuned.count()
    trained = {name: p.numel() for name, p in tuned.named_parameters() if p.requires_grad}
    head = sum(n for name, n in trained.items() if name.startswith("head."))
    assert count["head"] == head
    assert count["trained"] == sum(trained.values())
    assert count["base"] == sum(p.numel() for p in tuned.base_model.parameters())
    if method in ("houlsby", "pfeiffer"):
        d, m = 32, SMALL[method]["size"]
        layers, cross = {"albert": (4, 0), "t5": (5, 2), "t5-generator": (5, 2), "bart": (5, 2)}.get(case, (3, 0))
        sites = 2 * layers + cross if method == "houlsby" else layers
        assert count["adapters"] == sites * (2 * m * d + d + m)
        assert count["norms"] == sum(n for name, n in trained.items() if name.startswith("norm."))


@pairs(FINISHED)
def test_save_and_load_give_the_same_bits(case: str, method: str, tmp_path: Path) -> None:
    _, tuned = tune(case, method, head=True)
    shake(tuned, 1).save(tmp_path / "task")
    model, loaded = tune(case, method, head=True, seed=3)
    assert not torch.equal(output(loaded), output(tuned))
    loaded = attach(model, tmp_path / "task", architecture=tiny.CASES[case].row)
    assert loaded.method == tuned.method
    assert torch.equal(output(loaded), output(tuned))
    assert set(load_file(tmp_path / "task" / "task.safetensors")) == set(tuned.state_dict())


@every_pair
def test_detach_gives_back_the_very_model(case: str, method: str) -> None:
    model = tiny.model(case, head=True)
    before, bare = state(model), output(model)
    tuned = shake(put(model, case, method), 1)
    inputs = tiny.batch(model)
    assert tuned.detach() is model
    assert state(model) == before
    assert torch.equal(output(model), bare)
    for call in (lambda: tuned(**inputs), tuned.count, tuned.detach, lambda: tuned.task):
        with pytest.raises(AdaptreeError, match="detached"):
            call()


def layer_paths(backbone: nn.Module, case: str) -> list[str]:
    row = tiny.CASES[case].row or ARCHITECTURES[str(backbone.config.model_type)]  # type: ignore[union-attr]
    lists = [re.escape(stack.layers).replace(r"\*", r"\d+") + r"\.\d+" for stack in row.stacks]
    return [path for pattern in lists for path, _ in backbone.named_modules() if re.fullmatch(pattern, path)]


def layer_outputs(model: nn.Module, case: str) -> list[tuple[int, Tensor]]:
    """Every layer's output, with the layer's number, in the order of computation."""
    backbone = backbone_of(model) if not isinstance(model, Tuned) else model.base_model
    seen: list[tuple[int, Tensor]] = []

    def listener(number: int) -> Callable[..., None]:
        return lambda module, args, out: seen.append((number, out[0] if isinstance(out, tuple) else out))

    paths = layer_paths(backbone, case)
    handles = [backbone.get_submodule(p).register_forward_hook(listener(i)) for i, p in enumerate(paths)]
    output(model)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("layers", ["top:1", "1"])
@pairs(LAYERED)
def test_layers_restricts_what_is_touched(case: str, method: str, layers: str) -> None:
    model, tuned = tune(case, method, small(method, layers=layers))
    backbone = backbone_of(model)
    paths = layer_paths(backbone, case)
    chosen = len(paths) - 1 if layers == "top:1" else 1
    sites = find(backbone, tiny.CASES[case].row)
    # A weight is named after its layer's number, or after a word and the module or parameter that it stands for; of
    # positions only the method can tell.
    if "sparse.positions" in tuned.state_dict():
        named = [f"at.{name}" for name in tuned.method.weights(sites, dict(backbone.named_parameters()), v_of(tuned))]
    else:
        named = [name for name in tuned.state_dict() if not name.startswith("head.")]
    assert named
    for name in named:
        word, _, path = name.partition(".")
        if word == "shared":  # between layers, however few of them
            continue
        assert (int(word) if word.isdigit() else sites.layer_of(path)) == chosen, name

    bare, with_task = layer_outputs(model, case), layer_outputs(shake(tuned, 1), case)
    assert [number for number, _ in bare] == [number for number, _ in with_task]
    first = next(i for i, (number, _) in enumerate(bare) if number == chosen)
    assert first > 0
    assert all(torch.equal(bare[i][1], with_task[i][1]) for i in range(first))
    assert not torch.equal(bare[first][1], with_task[first][1])


def beside(case: str, subject: str) -> str:
    """Another method, the next one that this architecture takes; without a head of its own `head` has no weights."""
    there = [name for name in SUBJECTS if applies(case, name) and name != "head"]
    later = [name for name in there if SUBJECTS.index(name) > SUBJECTS.index(subject)]
    return (later or there)[0]


@pytest.mark.slow
@every_pair
def test_tasks_in_threads_do_not_meet(case: str, method: str) -> None:
    """Two of one method, and one of another."""
    model = tiny.model(case, head=method == "head")
    methods = [method, method, beside(case, method)]
    tasks = [shake(put(model, case, name, seed=i), i) for i, name in enumerate(methods)]
    alone = [output(tuned) for tuned in tasks]
    assert not any(torch.equal(alone[i], alone[j]) for i, j in ((0, 1), (1, 2), (0, 2)))
    together: list[list[Tensor]] = [[], [], []]
    start = threading.Barrier(3)

    def run(i: int) -> None:
        start.wait()
        together[i].extend(output(tasks[i]) for _ in range(4))

    in_threads(run, 3)
    for i in range(3):
        assert len(together[i]) == 4
        assert all(torch.equal(out, alone[i]) for out in together[i])


@pytest.mark.parametrize("case", tiny.CASES)
def test_diff_pruning_goes_on_from_the_delta_that_it_cut(case: str) -> None:
    """What it computes then is the base with the K largest entries of δ written into its weights, bit for bit."""
    model, row = tiny.model(case), tiny.CASES[case].row
    first = Tuned(model, small("diff_pruning"), row, False, 0)
    task = advanced(first, 0)
    with torch.no_grad():
        delta = first.method.delta(v_of(first))  # type: ignore[attr-defined]
        cut = copy.deepcopy(model)
        own = dict(backbone_of(cut).named_parameters())
        k = round(0.05 * sum(p.numel() for p in own.values()))
        least = torch.cat([d.abs().flatten() for d in delta.values()]).sort(descending=True).values[k - 1]
        for name, d in delta.items():
            own[name].add_(torch.where(d.abs() >= least, d, 0.0))
    assert len(task.weights["sparse.values"]) == k
    assert torch.equal(output(attach(model, task, architecture=row)), output(cut))
    assert not torch.equal(output(cut), output(model))


def v_of(tuned: Tuned) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tuned.state_dict().items() if not name.startswith("head.")}


# DeBERTa-v2 norms its table of relative positions, which is one for the whole batch: rows cannot differ there.
NO_ROW_AXIS = {"deberta-v2": "norm.encoder.LayerNorm."}


def stack(tasks: list[dict[str, Tensor]], owners: list[int], shared: str | None) -> dict[str, Tensor]:
    """The weights of each row's owner along a leading row axis; a vector becomes (B, 1, d)."""
    out = {}
    for name, tensor in tasks[0].items():
        if shared and name.startswith(shared):
            out[name] = tensor
            continue
        rows = torch.stack([tasks[owner][name] for owner in owners])
        out[name] = rows.unsqueeze(1) if tensor.dim() == 1 else rows
    return out


@torch.no_grad()
@pairs(MIXING, without=UNMIXED)
def test_a_mixed_batch_equals_one_by_one(case: str, method: str) -> None:
    model = tiny.model(case)
    hooked, how = HookedModel(model, tiny.CASES[case].row), small(method)
    generator = torch.Generator().manual_seed(0)
    tasks = [how.init(hooked.sites, hooked.backbone, generator) for _ in range(2)]
    for task in tasks:
        for tensor in task.values():
            tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
    if shared := NO_ROW_AXIS.get(case):
        tasks[1] |= {name: tensor for name, tensor in tasks[0].items() if name.startswith(shared)}
    owners = [0, 1, 1, 0, 1]
    inputs = tiny.batch(model)
    with hooked.running(how.plan(hooked.sites, stack(tasks, owners, shared))):
        mixed = tiny.output(model, inputs)
    for i, owner in enumerate(owners):
        row = {key: value[i : i + 1] for key, value in inputs.items()}
        alone = []
        for task in tasks:
            with hooked.running(how.plan(hooked.sites, task)):
                alone.append(tiny.output(model, row))
        torch.testing.assert_close(mixed[i : i + 1], alone[owner], atol=1e-5, rtol=1e-5)
        assert moved(alone[0], alone[1]) > 0.01


@pytest.mark.parametrize("method", [name for name in MIXING if "bert" not in REFUSED.get(name, {})])
def test_two_plans_on_one_host_in_two_threads_do_not_meet(method: str) -> None:
    """Serving: one model, a plan per thread; and threads that hook the model at the same moment hook it once."""
    model = tiny.model("bert")
    hooked, how = HookedModel(model), small(method)
    tasks = [shake(attach(model, how), seed) for seed in (1, 2)]
    alone = [output(tuned) for tuned in tasks]
    plans = [how.plan(hooked.sites, dict(tuned.named_parameters())) for tuned in tasks]
    together: list[list[Tensor]] = [[], []]
    start = threading.Barrier(2)

    def run(i: int) -> None:
        start.wait()
        for _ in range(4):
            with hooked.running(plans[i]):
                together[i].append(output(model))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(run, 2)
    finally:
        sys.setswitchinterval(interval)
    hooks = [hooks for module in model.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks)]
    assert {len(each) for each in hooks} == {0, 1}
    for i in (0, 1):
        assert all(torch.equal(out, alone[i]) for out in together[i])
        assert len(together[i]) == 4


def in_threads(run: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)

"""int8: the linear maps of a copy of the base in whole numbers; the base is left alone, and what hurts is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptree as at
from adaptree.cli import main
from adaptree.core.int8 import Int8Linear, quantise
from adaptree.errors import UsageError
from adaptree.kinds.classify import Classify
from adaptree.kinds.regress import Regress
from adaptree.methods import METHODS, parse
from adaptree.tasks.task import Task
from tests import tiny
from tests.bases import tiny_base, words_csv


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("int8") / "base"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("int8data") / "words.csv", 60)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    lines = words_csv(tmp_path_factory.mktemp("int8texts") / "words.csv", 200, seed=3).read_text().splitlines()
    return [line.rsplit(",", 1)[0] for line in lines[1:]]


@pytest.fixture(scope="module")
def task(base: Any, data: Path) -> Task:
    return at.train(data, base=base, epochs=2).task


def linear(seed: int, out: int = 6, bias: bool = True) -> nn.Linear:
    torch.manual_seed(seed)
    made = nn.Linear(16, out, bias=bias)
    return made.requires_grad_(False)


def reference(x: Tensor, layer: nn.Linear) -> Tensor:
    """By the definition, in integers and doubles."""
    w = layer.weight.detach()
    by_output, by_token = w.abs().amax(1) / 127, x.abs().amax(-1, keepdim=True) / 127
    sums = (x / by_token).round().long() @ (w / by_output[:, None]).round().long().t()
    y = sums.double() * by_token.double() * by_output.double()
    return y if layer.bias is None else y + layer.bias.double()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 16), (2, 5, 16), (1, 1, 16), (16,)])
def test_a_map_in_int8_is_what_the_definition_says(shape: tuple[int, ...], bias: bool) -> None:
    layer, x = linear(0, bias=bias), torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    expected, exact = reference(x, layer), layer(x)
    assert quantise(layer) == 1
    assert isinstance(layer, Int8Linear)
    torch.testing.assert_close(layer(x).double(), expected, rtol=1e-5, atol=1e-6)
    assert (layer(x) - exact).abs().max() < 0.05


def test_a_row_has_the_same_bits_alone_and_in_any_batch() -> None:
    layer = linear(0, out=64)
    quantise(layer)
    x = torch.randn(33, 16, generator=torch.Generator().manual_seed(1))
    whole = layer(x)
    for size in (1, 2, 7, 32):
        assert torch.equal(torch.cat([layer(part) for part in x.split(size)]), whole)


def test_zeros_and_large_values_are_no_trouble() -> None:
    layer = linear(0)
    layer.weight[0] = 0
    quantise(layer)
    x = torch.zeros(3, 16)
    x[1], x[2] = 1e30, 1e-30
    y = layer(x)
    assert y.isfinite().all()
    assert torch.equal(y[0], layer.bias)
    assert torch.equal(y[:, 0], layer.bias[0].expand(3))


def test_the_base_and_its_tasks_keep_their_bits(base: Any, task: Task, texts: list[str]) -> None:
    before, weights = base.bind(task).logits(texts), {k: v.clone() for k, v in base.hooked.frozen.items()}
    quick = base.bind(task, int8=True)
    assert quick.int8
    assert not torch.equal(quick.logits(texts), before)
    assert torch.equal(base.bind(task).logits(texts), before)
    assert all(torch.equal(base.hooked.frozen[k], v) for k, v in weights.items())
    assert not any(isinstance(part, Int8Linear) for part in base.hooked.model.modules())


@pytest.mark.parametrize("name", sorted(name for name, kind in METHODS.items() if not kind.standalone))
def test_every_method_runs_in_int8_near_its_answers_in_fp32(
    name: str, base: Any, data: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaptree.models.bound.INT8_TEXTS", 0)
    changes = {"size": 12 if name == "pal" else 4} if "size" in vars(parse(name)) else {}
    trained = at.train(data, base=base, method=parse(name, **changes), epochs=1, baselines=False).task
    exact, quick = base.bind(trained).logits(texts), base.bind(trained, int8=True).logits(texts)
    off = (exact - quick).abs().max() / exact.std()
    assert 0 < off < 0.5


def test_weights_of_a_task_of_its_own_are_the_ones_in_int8(
    base: Any, data: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaptree.models.bound.INT8_TEXTS", 0)
    trained = at.train(data, base=base, method="full", epochs=2, lr=3e-3, baselines=False).task
    exact, quick = base.bind(trained).logits(texts), base.bind(trained, int8=True).logits(texts)
    head = {name: tensor for name, tensor in trained.weights.items() if name.startswith("head.")}
    frozen = torch.zeros_like(exact) + head["head.bias"]
    assert (exact - quick).abs().mean() < 0.2 * (exact - frozen).abs().mean()


def test_int8_is_refused_when_it_changes_the_answers(
    base: Any, task: Task, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that asks which side of the middle a text lies on: what int8 moves at all, it moves across."""
    exact = base.bind(task).logits(texts)
    middle = exact.median(0).values
    spread = exact.std(0)
    weights = dict(task.tensors)
    weights["head.weight"] = torch.stack([task.tensors["head.weight"][0] / spread[0]] + [torch.zeros(32)] * 2)
    weights["head.bias"] = torch.tensor([-middle[0] / spread[0], 0.0, -9.0])
    near = sorted(texts, key=lambda text: abs(float(base.bind(task).logits([text])[0, 0] - middle[0])))[:100]
    shaky = Task(task.record, weights)
    answers = [base.bind(shaky, int8=flag) for flag in (False, True)]
    monkeypatch.setattr("adaptree.models.bound.INT8_TEXTS", 0)
    plain, quick = (bound.logits(near).argmax(-1) for bound in answers)
    changed = int((plain != quick).sum())
    assert changed > 2
    monkeypatch.setattr("adaptree.models.bound.INT8_TEXTS", 256)
    with pytest.raises(UsageError, match=f"int8 changes {changed} of the first 100 predictions"):
        base.bind(shaky, int8=True).predict(near)


def test_a_number_that_moves_by_a_tenth_of_the_spread_counts_as_changed() -> None:
    kind = Regress(mean=3.0, std=2.0)
    exact = torch.zeros(4, 1)
    assert kind.changed(exact, torch.tensor([[0.05], [0.2], [-0.2], [0.0]]), []) == 2


def test_only_the_first_texts_are_answered_twice(
    base: Any, task: Task, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaptree.models.bound.INT8_TEXTS", 30)
    quick = base.bind(task, int8=True)
    seen: list[int] = []
    again = quick._exact.compute
    monkeypatch.setattr(
        quick._exact, "compute", lambda examples, size: seen.append(len(examples)) or again(examples, size)
    )
    for chunk in (texts[:20], texts[20:60], texts[60:80], []):
        quick.logits(chunk)
    assert seen == [20, 10]


def test_what_does_not_run_in_the_base_has_no_int8(base: Any, data: Path) -> None:
    trained = at.train(data, base=base, method="tfidf").task
    with pytest.raises(UsageError, match="does not run in the base"):
        base.bind(trained, int8=True)


def test_predict_and_evaluate_take_int8_from_the_command_line(
    tmp_path: Path, base: Any, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at.train(data, name="words", base=base, epochs=1, store=tmp_path / "store")
    common = ["--store", str(tmp_path / "store"), "--int8"]
    changed = iter([1, 2, 0])
    monkeypatch.setattr(Classify, "changed", lambda self, exact, out, examples: next(changed))
    assert main(["predict", "words", "--file", str(data), *common]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 61
    assert "in int8, 1 of the first 60 predictions differ from fp32" in err
    monkeypatch.setattr("adaptree.models.bound.INT8_CHANGED", 0.1)
    assert main(["evaluate", "words", str(data), "--format", "json", *common, "--quiet"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["int8"], found["int8_compared"], found["int8_changed"]) == (True, 60, 2)
    assert err == ""
    assert main(["evaluate", "words", str(data), *common]) == 0
    out, err = capsys.readouterr()
    assert "words, int8" in out
    assert "in int8, 0 of the first 60 predictions differ from fp32" in err
    assert main(["evaluate", "words", str(data), "--format", "json", *common[:2]]) == 0
    assert "int8" not in capsys.readouterr().out
    monkeypatch.setattr(Classify, "changed", lambda self, exact, out, examples: len(exact))
    assert main(["predict", "words", "--file", str(data), *common]) == 2
    out, err = capsys.readouterr()
    assert "int8 changes 60 of the first 60 predictions" in err
    assert "Leave out --int8" in err
    assert "Traceback" not in err
    assert not out


def test_a_base_without_linear_maps_is_refused(base: Any, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    assert quantise(tiny.model("gpt2")) == 0  # its maps are another class
    monkeypatch.setattr("adaptree.models.bound.quantise", lambda module: 0)
    with pytest.raises(UsageError, match="bert has no linear maps that int8 is for"):
        base.bind(task, int8=True)

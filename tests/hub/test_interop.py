"""Folders of peft and adapters that are broken, hostile or of another base, and folders that go out and come back.

What the libraries themselves save and compute is compared in tests/peers/test_peer_interop.py.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from torch import Tensor

from adaptree import Base, Store, Task, attach, load_base
from adaptree.cli import main
from adaptree.errors import AdaptreeError, InteropError, UsageError, WrongBase
from adaptree.hub.interop.read import read_foreign, recognise
from adaptree.hub.interop.write import write_adapters, write_peft
from adaptree.methods import parse
from adaptree.tasks.record import ON, Record
from tests import tiny
from tests.bases import tiny_base

TEXTS = ["the old lion", "a new hammer and a saw", "pear"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny", mask=True))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base") / "wide", hidden=48, seed=1))


def task(base: Base, spelling: str = "lora:3", kind: str = "classify", pooling: str = "first", **extra: Any) -> Task:
    """A task with random weights that show."""
    from adaptree import kinds

    labels = {"classify": ["a", "b", "c"], "multilabel": ["a", "b", "c"], "tag": ["O", "B-X", "I-X"]}.get(kind, [])
    record = Record(
        name="mine", kind=kind, labels=list(labels), method=spelling, pooling=pooling, max_length=base.limit,
        base={"name": base.name, "fingerprint": base.fingerprint, "architecture": "bert"}, extra=extra,
        columns={"text": "text", "pair": None, "label": "label"},
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    v = parse(spelling).init(base.hooked.sites, base.hooked.backbone, generator)
    v |= kinds.for_record(record, base.encoder).init(base.width, generator)
    shaken = {name: t + 0.2 * torch.randn(t.shape, generator=generator) for name, t in v.items()}
    return Task(record, {name: v[name] if name.startswith("norm.") else t for name, t in shaken.items()})


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    """Change a JSON file, or a file of tensors."""
    if path.suffix == ".json":
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    else:
        save_file(change(load_file(path)), path)


def same(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-5 * one.abs().max())


# There and back.


@pytest.mark.parametrize("spelling", ["lora:3", "lora(rank=3, targets=all, layers=1)", "ia3"])
def test_a_task_goes_to_peft_and_comes_back(base: Base, tmp_path: Path, spelling: str) -> None:
    mine = task(base, spelling, hidden="tanh")
    write_peft(mine, base, tmp_path / "out")
    assert recognise(tmp_path / "out") == "peft"
    back = read_foreign(tmp_path / "out", base, labels=["a", "b", "c"])
    assert (back.record.kind, back.record.labels, back.record.extra["hidden"]) == ("classify", ["a", "b", "c"], "tanh")
    assert torch.equal(base.bind(mine).logits(TEXTS), base.bind(back).logits(TEXTS))
    assert "PeftModel.from_pretrained" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("kind", ["classify", "multilabel", "regress"])
@pytest.mark.parametrize("spelling", ["houlsby(size=3, norms=false)", "pfeiffer:3", "scaled_parallel:3"])
def test_a_task_goes_to_adapters_and_comes_back(base: Base, tmp_path: Path, spelling: str, kind: str) -> None:
    numbers = {"mean": 2.0, "std": 3.0} if kind == "regress" else {}
    mine = task(base, spelling, kind, hidden="tanh", **numbers)
    write_adapters(mine, base, tmp_path / "out")
    assert recognise(tmp_path / "out") == "adapters"
    back = read_foreign(tmp_path / "out", base)
    assert (back.record.kind, back.record.labels) == (kind, mine.record.labels)
    assert parse(back.record.method).alike(parse(mine.record.method))
    before, after = base.bind(mine).predict(TEXTS), base.bind(back).predict(TEXTS)
    if kind == "regress":
        assert [p.value for p in after] == pytest.approx([p.value for p in before], rel=1e-4)
    else:
        assert torch.equal(base.bind(mine).logits(TEXTS), base.bind(back).logits(TEXTS))


def test_a_tagger_comes_back_with_its_tags(base: Base, tmp_path: Path) -> None:
    mine = task(base, "houlsby(size=3, norms=false)", "tag", scheme="IOB2")
    write_adapters(mine, base, tmp_path / "out")
    back = read_foreign(tmp_path / "out", base)
    assert base.bind(back).predict(TEXTS) == base.bind(mine).predict(TEXTS)


def test_what_is_written_for_a_model_is_attached_to_it_again(tmp_path: Path) -> None:
    for number, spelling in enumerate(("lora:2", "ia3", "houlsby(size=3, norms=false)")):
        model = tiny.model("bert", head=True)
        tuned = attach(model, spelling)
        with torch.no_grad():
            for p in tuned.parameters():
                p.add_(0.1)
        write = write_adapters if number == 2 else write_peft
        write(tuned.task, model, tmp_path / str(number))
        again = attach(model, str(tmp_path / str(number)))
        assert torch.equal(tiny.output(tuned, tiny.batch(model)), tiny.output(again, tiny.batch(model)))
        assert again.method.alike(tuned.method)


def test_an_adapter_without_a_head_is_put_below_another_task(base: Base, tmp_path: Path) -> None:
    language, mine = task(base, "pfeiffer(size=3, invertible=true)"), task(base, "pfeiffer:2")
    write_adapters(language, base, tmp_path / "out", head=False)
    store = Store(tmp_path / "store")
    below = store.add(read_foreign(tmp_path / "out", base, name="lang/xx"))
    assert below.record.kind == "attached"
    store.add(mine)
    stacked = base.bind("stack(lang/xx, mine)", tasks=store).logits(TEXTS)
    assert same(stacked, base.bind(mine, on=[language]).logits(TEXTS))
    with pytest.raises(UsageError, match="cannot predict here"):
        base.bind(below).predict(TEXTS)


def test_sizes_that_differ_by_layer_are_filled_up(base: Base, tmp_path: Path) -> None:
    """Zeros compute nothing: the first layer's adapter is smaller, and the second's LoRA is not there at all."""
    write_adapters(task(base, "pfeiffer:4"), base, tmp_path / "out")

    def smaller(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        cut = {"adapter_down.0.weight": (slice(2),), "adapter_down.0.bias": (slice(2),),
               "adapter_up.weight": (slice(None), slice(2))}  # fmt: skip
        return {
            name: t[next((at for end, at in cut.items() if "layer.0." in name and name.endswith(end)), ())].contiguous()
            for name, t in tensors.items()
        }

    edit(tmp_path / "out" / "adapter.safetensors", smaller)
    back = read_foreign(tmp_path / "out", base)
    assert parse(back.record.method).size == 4  # type: ignore[attr-defined]
    assert not back.weights["0.feedforward.down"][:, 2:].any()
    assert back.weights["1.feedforward.down"][:, 2:].all()

    write_peft(task(base, "lora:3"), base, tmp_path / "lora", head=False)
    edit(tmp_path / "lora" / "adapter_model.safetensors",
         lambda t: {name: x for name, x in t.items() if "layer.1.attention.self.value" not in name})  # fmt: skip
    back = read_foreign(tmp_path / "lora", base)
    assert not back.weights["1.value.A"].any()
    assert back.weights["1.query.A"].any()


def test_a_head_with_a_hidden_layer_is_kept_like_any_other(base: Base, tmp_path: Path) -> None:
    """In a store, in a mixed batch, and in no mean of outputs."""
    mine = Store(tmp_path).add(task(base, "pfeiffer:3", hidden="tanh"))
    assert torch.equal(base.bind(Store(tmp_path)["mine"]).logits(TEXTS), base.bind(mine).logits(TEXTS))
    other = Task(replace(task(base, "pfeiffer:3").record, name="other"), task(base, "pfeiffer:3").weights)
    tasks = {"mine": mine, "other": other}
    both = base.bind("rows(mine, other)", tasks=tasks)
    mixed = both.predict(TEXTS[:2], tasks=["mine", "other"])
    assert mixed[0].scores == pytest.approx(base.bind(mine).predict(TEXTS[:1])[0].scores, rel=1e-5)
    with pytest.raises(AdaptreeError, match="no linear map"):
        base.bind("average_outputs(mine, other)", tasks=tasks)
    bad = Task(replace(mine.record, extra={"hidden": "cosine"}), mine.weights)
    with pytest.raises(AdaptreeError, match="no activation 'cosine'"):
        base.bind(bad)


# Broken, hostile, and of another base.


@pytest.fixture
def peft(base: Base, tmp_path: Path) -> Path:
    write_peft(task(base, "lora:3", hidden="tanh"), base, tmp_path / "peft")
    return tmp_path / "peft"


@pytest.fixture
def adapters(base: Base, tmp_path: Path) -> Path:
    write_adapters(task(base, "pfeiffer:3", hidden="tanh"), base, tmp_path / "adapters")
    return tmp_path / "adapters"


def refused(folder: Path, base: Base, words: str, error: type[AdaptreeError] = InteropError) -> None:
    with pytest.raises(error, match=words) as raised:
        read_foreign(folder, base)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peft_type": "ADALORA"}, "ADALORA of peft, which has no counterpart"),
        ({"peft_type": None}, "NONE of peft"),
        ({"use_dora": True}, r"DoRA .* \(use_dora\)"),
        ({"lora_bias": True}, r"biases \(lora_bias\)"),
        ({"init_lora_weights": "pissa"}, "'pissa', changed the base's weights"),
        ({"lora_alpha": "much"}, "lora_alpha is 'much'"),
        ({"lora_alpha": None}, "lora_alpha is None"),
        ({"alpha_pattern": {"(q+)+y": 3}}, "regular expression in alpha_pattern"),
        ({"alpha_pattern": 3}, "do not hold what peft writes"),
        ({"task_type": None}, "do not say what its head is for.*SEQ_CLS"),
        ({"task_type": "CAUSAL_LM"}, "do not say what its head is for"),
    ],
)
def test_settings_of_peft_that_are_not_read(peft: Path, base: Base, change: dict[str, Any], words: str) -> None:
    edit(peft / "adapter_config.json", lambda config: config | change)
    refused(peft, base, words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "prefix_tuning"}, "prefix tuning puts keys and values"),
        ({"architecture": "prompt_tuning"}, "prompt tuning puts vectors"),
        ({"architecture": "union"}, "union of several"),
        ({"architecture": "magic"}, "no method here is 'magic'"),
        ({"phm_layer": True}, r"Compacter.* \(phm_layer\)"),
        ({"use_gating": True}, r"gate .* \(use_gating\)"),
        ({"ln_before": True}, r"layer norm of its own \(ln_before\)"),
        ({"original_ln_after": False}, "original_ln_after=False"),
        ({"residual_before_ln": "post_add"}, "residual_before_ln='post_add'"),
        ({"non_linearity": "leakyrelu"}, "its activation is 'leakyrelu', and ours are"),
        ({"scaling": "learned"}, "its scaling is 'learned', and no weights have it"),
    ],
)
def test_settings_of_adapters_that_are_not_read(adapters: Path, base: Base, change: dict[str, Any], words: str) -> None:
    edit(adapters / "adapter_config.json", lambda config: config | {"config": config["config"] | change})
    refused(adapters, base, words)


def test_a_broken_config(peft: Path, adapters: Path, base: Base) -> None:
    (peft / "adapter_config.json").write_text("{")
    refused(peft, base, "adapter_config.json is broken")
    (peft / "adapter_config.json").write_text("[1]")
    refused(peft, base, "it holds no object")
    whole = json.loads((adapters / "adapter_config.json").read_text())
    edit(adapters / "adapter_config.json", lambda _: {**whole, "config": None})
    refused(adapters, base, "it has no 'config'")
    edit(adapters / "adapter_config.json", lambda _: {**whole, "config": {**whole["config"], "invertible_adapter": 3}})
    refused(adapters, base, "do not hold what adapters writes")


def test_missing_files(peft: Path, adapters: Path, base: Base, tmp_path: Path) -> None:
    (adapters / "adapter.safetensors").unlink()
    refused(adapters, base, "neither adapter.safetensors nor pytorch_adapter.bin")
    (peft / "adapter_model.safetensors").unlink()
    refused(peft, base, "neither adapter_model.safetensors nor adapter_model.bin")
    refused(tmp_path / "nowhere", base, "there is no folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", base, "no folder that peft or adapters saved")
    assert recognise(tmp_path / "empty") is None


def test_a_missing_or_odd_tensor(peft: Path, adapters: Path, base: Base) -> None:
    whole = load_file(adapters / "adapter.safetensors")
    first = next(name for name in whole if name.endswith("adapter_up.weight"))
    edit(adapters / "adapter.safetensors", lambda t: {name: x for name, x in t.items() if name != first})
    refused(adapters, base, "layer 0 has no adapter_up.weight")
    edit(adapters / "adapter.safetensors", lambda _: {**whole, "who.knows": torch.zeros(1)})
    refused(adapters, base, "'who.knows' is not of the adapter 'mine'")
    edit(adapters / "adapter.safetensors", lambda _: {**whole, first: torch.full_like(whole[first], float("nan"))})
    refused(adapters, base, "NaN or infinity")
    (adapters / "adapter.safetensors").write_bytes(b"\xff" * 100)
    refused(adapters, base, "adapter.safetensors is broken")

    whole = load_file(peft / "adapter_model.safetensors")
    a = next(name for name in whole if "lora_A" in name)
    edit(peft / "adapter_model.safetensors", lambda t: {name: x for name, x in t.items() if name != a})
    refused(peft, base, "no A and B of one rank")
    edit(
        peft / "adapter_model.safetensors",
        lambda _: {**whole, a.replace("lora_A.weight", "lora_magnitude_vector"): torch.ones(3)},
    )
    refused(peft, base, "no part of LoRA")
    elsewhere = {name.replace("attention.self.query", "pooler.dense"): x for name, x in whole.items()}
    edit(peft / "adapter_model.safetensors", lambda _: elsewhere)
    refused(peft, base, "pooler.dense', which has no place", WrongBase)


def test_weights_of_the_base_itself_are_not_replaced(peft: Path, base: Base) -> None:
    name, own = (
        "encoder.layer.0.attention.self.query.bias",
        base.hooked.frozen["encoder.layer.0.attention.self.query.bias"],
    )
    key = f"base_model.model.bert.{name}"
    edit(peft / "adapter_model.safetensors", lambda t: {**t, key: own.detach().clone()})
    assert read_foreign(peft, base).record.kind == "classify", "the base's own values change nothing"
    edit(peft / "adapter_model.safetensors", lambda t: {**t, key: own.detach() + 1})
    refused(peft, base, "trains biases of the base")


class Bomb:
    """What runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        import os

        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("as_torch", [True, False])
def test_a_pickle_with_code_is_refused_and_does_not_run(
    peft: Path, adapters: Path, base: Base, tmp_path: Path, as_torch: bool
) -> None:
    for folder, safe, pickled in (
        (peft, "adapter_model.safetensors", "adapter_model.bin"),
        (adapters, "adapter.safetensors", "pytorch_adapter.bin"),
    ):
        mark = tmp_path / "ran"
        (folder / safe).unlink()
        if as_torch:
            torch.save({"x": Bomb(mark)}, folder / pickled)
        else:
            (folder / pickled).write_bytes(pickle.dumps({"x": Bomb(mark)}))
        refused(folder, base, "is refused: it is broken, or holds more than tensors")
        assert not mark.exists()


def test_a_pickle_of_tensors_is_read_and_one_of_other_things_is_not(peft: Path, base: Base) -> None:
    tensors = load_file(peft / "adapter_model.safetensors")
    before = base.bind(read_foreign(peft, base)).logits(TEXTS)
    (peft / "adapter_model.safetensors").unlink()
    torch.save(tensors, peft / "adapter_model.bin")
    assert torch.equal(base.bind(read_foreign(peft, base)).logits(TEXTS), before)
    for odd in ([1, 2], {"x": "a text"}, {1: torch.zeros(1)}):
        torch.save(odd, peft / "adapter_model.bin")
        refused(peft, base, "more than named tensors")


def test_another_base_is_refused(peft: Path, adapters: Path, wide: Base, base: Base) -> None:
    refused(peft, wide, "fits this base", WrongBase)
    refused(adapters, wide, "hidden_size 32, and this one has 48", WrongBase)
    edit(adapters / "adapter_config.json", lambda config: config | {"model_type": "gpt2"})
    refused(adapters, base, "model_type 'gpt2', and this one has 'bert'", WrongBase)
    edit(adapters / "adapter_config.json", lambda config: config | {"model_type": None, "hidden_size": None})
    refused(adapters, wide, r"\(3, 48\) fits this base", WrongBase)


def test_a_setup_that_leads_elsewhere_or_is_no_fusion(base: Base, tmp_path: Path) -> None:
    folder = tmp_path / "setup"
    folder.mkdir()
    for name in ("../x", "/etc", ".."):
        shape = {"type": "Fuse", "children": [{"type": "single", "children": [name]}]}
        (folder / "adapter_setup.json").write_text(json.dumps({"adapter_setup": shape}))
        refused(folder, base, "cannot be the name of an adapter's folder")
    (folder / "adapter_setup.json").write_text(json.dumps({"adapter_setup": {"type": "Fuse", "children": [3]}}))
    refused(folder, base, "do not hold what adapters writes")
    (folder / "adapter_setup.json").write_text(json.dumps({"adapter_setup": {"type": "Stack", "children": []}}))
    refused(folder, base, "a setup of type 'Stack'.*compose them")


def test_heads_that_are_not_ours(adapters: Path, base: Base) -> None:
    whole = json.loads((adapters / "head_config.json").read_text())
    for change, words in (
        ({"head_type": "dependency_parsing"}, "of type 'dependency_parsing', and we have none such"),
        ({"layers": 3}, "its head has 3 layers"),
        ({"activation_function": "mish"}, "has the activation 'mish'"),
        ({"head_type": "tagging"}, "of type 'tagging' has a hidden layer"),
    ):
        edit(adapters / "head_config.json", lambda _, change=change: whole | {"config": whole["config"] | change})
        refused(adapters, base, words)
    edit(adapters / "head_config.json", lambda _: whole)
    with pytest.raises(InteropError, match="3 outputs, and 2 labels are given"):
        read_foreign(adapters, base, labels=["a", "b"])
    (adapters / "adapter_config.json").unlink()
    alone = read_foreign(adapters, base)
    assert (alone.record.method, alone.record.kind) == ("head", "classify")


def test_a_head_that_was_saved_in_part_is_refused(base: Base, peft: Path) -> None:
    """peft saves DistilBERT's classifier by default, and not the layer before it; here it is BERT's pooler."""
    edit(peft / "adapter_model.safetensors", lambda t: {name: x for name, x in t.items() if "pooler" not in name})
    assert read_foreign(peft, base).record.kind == "classify", "the base's own pooler is there"
    edit(
        peft / "adapter_model.safetensors",
        lambda t: {name: x for name, x in t.items() if "classifier.weight" not in name},
    )
    refused(peft, base, "'classifier' of its head was not saved")


# What they have no form for.


@pytest.mark.parametrize(
    ("spelling", "kind", "words"),
    [
        ("houlsby:3", "classify", "peft has no houlsby"),
        ("lora:3", "mlm", "no Hugging Face class has the head of a task of kind mlm"),
    ],
)
def test_what_peft_has_no_form_for(base: Base, tmp_path: Path, spelling: str, kind: str, words: str) -> None:
    with pytest.raises(InteropError, match=words):
        write_peft(task(base, spelling, kind), base, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_adapters_has_no_form_for(base: Base, tmp_path: Path) -> None:
    trained = task(base, "houlsby:3")
    write_adapters(trained, base, tmp_path / "untouched")  # its norms are still the base's
    moved = {name: t + 0.1 if name.startswith("norm.") else t for name, t in trained.weights.items()}
    for mine, words in (
        (Task(trained.record, moved), r"trained the base's norms.*houlsby\(norms=false\)"),
        (task(base, "bapna:3"), "nothing that computes bapna in a base whose layers end with a norm"),
        (task(base, "lora:3"), "nothing that computes lora.*--to peft"),
        (task(base, "pfeiffer:3", pooling="mean", hidden="tanh"), "no head like that of 'mine'"),
        (
            Task(replace(task(base, "pfeiffer:3").record, extra={ON: "other"}), task(base, "pfeiffer:3").weights),
            "other",
        ),
    ):
        with pytest.raises(AdaptreeError, match=words):
            write_adapters(mine, base, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_not_overwritten(base: Base, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write_peft(task(base), base, tmp_path / "out", head=False)
    with pytest.raises(InteropError, match="is not empty"):
        write_peft(task(base), base, tmp_path / "out", head=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"], "nothing half-written is left"


# attach


def test_attach_says_what_does_not_fit(peft: Path, adapters: Path, base: Base) -> None:
    folder = base.files("config.json")[0].parent
    bare = tf.AutoModel.from_pretrained(folder)
    attach(bare, adapters)  # the head of adapters' own class is left out
    with pytest.raises(UsageError, match="a pooler of its own"):
        attach(bare, peft)
    edit(peft / "adapter_model.safetensors", lambda t: {n: x for n, x in t.items() if "pooler" not in n})
    with pytest.raises(UsageError, match=r"'classifier\.\w+' of .* has none such"):
        attach(bare, peft)
    four = tf.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=4)
    with pytest.raises(UsageError, match="number of labels"):
        attach(four, peft)
    with pytest.raises(UsageError, match="a head of adapters' own classes"):
        attach(four, adapters)


# The command.


def test_the_command_keeps_a_folder_as_a_task(
    base: Base, peft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", str(tmp_path / "store")]
    command = ["import", str(peft), "--as", "theirs", "--base", base.location, "--labels", "x, y, z", *store]
    assert main([*command, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["task"], shown["version"], shown["kind"]) == ("theirs", 1, "classify")
    assert main(["predict", "theirs", TEXTS[0], "--format", "jsonl", *store]) == 0
    assert json.loads(capsys.readouterr().out)["label"] in ("x", "y", "z")
    assert main(["list", *store]) == 0
    assert main(["show", "theirs", *store]) == 0
    capsys.readouterr()
    (peft / "adapter_config.json").write_text("{")
    assert main(command) == 1
    assert capsys.readouterr().err.count("\n") == 1

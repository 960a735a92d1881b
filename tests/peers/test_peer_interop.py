"""Tasks of peft and adapters 1.3, read and written: the same outputs to 1e-5 in both directions.

What they saved, and computed, was written down by make_interop.py. What ours writes is loaded by them in their own
environment (check_interop.py), which a test calls.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from torch import Tensor

from adaptree import Base, Task, attach, load_base
from adaptree.errors import AdaptreeError
from adaptree.hub.interop.adapterhub_write import reading
from adaptree.hub.interop.heads import for_model
from adaptree.hub.interop.read import read_foreign
from adaptree.hub.interop.write import write_adapters, write_peft
from adaptree.kinds.mlm import _predict
from adaptree.methods import parse
from adaptree.methods.fusion import Fusion
from adaptree.tasks.record import FUSES, NEEDS, Record

ROOT = Path(os.environ.get("ADAPTREE_PEERS", "")) / "interop"
THEIRS = Path(os.environ.get("ADAPTREE_PEERS", "")).parent / "bin" / "python"
pytestmark = pytest.mark.skipif(
    not os.environ.get("ADAPTREE_PEERS"), reason="ADAPTREE_PEERS names no folder with the peers' numbers: make peers"
)
KINDS = ("bert", "roberta", "xlm-roberta", "distilbert", "gpt2", "llama", "t5")
PRE_NORM = ("gpt2", "llama", "t5")
CASES = sorted(path.name for path in ROOT.glob("*.*")) if os.environ.get("ADAPTREE_PEERS") else []

# What has no counterpart here, and the words that say why.
REFUSED = {
    "peft.bert.biases": "trains biases of the base",
    "peft.bert.dora": "DoRA",
    "peft.bert.prompt": "PROMPT_TUNING",
    "adapters.bert.compacter": "Compacter",
    "adapters.bert.prefix": "prefix tuning",
    "adapters.bert.prompt": "prompt tuning",
    "adapters.bert.mam": "union",
    "adapters.bert.fusion_before": "residual_before",
    "adapters.distilbert.fusion_before": "residual_before",
    "adapters.llama.ia3": "scales the output of down",
    **{f"adapters.{kind}.language": "invertible adapters go with seq_bn" for kind in PRE_NORM},
}


@cache
def base_of(kind: str) -> Base:
    return load_base(ROOT / "bases" / kind)


def expected(case: str) -> tuple[dict[str, Tensor], Tensor, str]:
    numbers = load_file(ROOT / case / "expected.safetensors")
    return numbers, numbers.pop("output"), json.loads((ROOT / case / "facts.json").read_text())["class"]


def real(output: Tensor, given: dict[str, Tensor]) -> Tensor:
    """What is at real positions: padding may hold anything."""
    mask = given["attention_mask"].bool()
    return output[mask] if output.dim() == 3 and output.shape[:2] == mask.shape else output


def difference(theirs: Tensor, ours: Tensor) -> float:
    return float((theirs - ours).abs().max() / theirs.abs().max())


def outputs(model: Any, given: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        out = model(**given)
    return out.logits if getattr(out, "logits", None) is not None else out.last_hidden_state


def model_of(kind: str, of: str) -> Any:
    labels = {} if of.endswith("Model") else {"num_labels": 3}
    return getattr(tf, of).from_pretrained(ROOT / "bases" / kind, **labels).eval()


@dataclasses.dataclass
class Row:
    ids: Tensor


@torch.no_grad()
def logits(task: Task, base: Base, given: dict[str, Tensor]) -> Tensor:
    """The head's output of a task on a base, for tokens instead of texts; of a tagger, that of the real tokens."""
    bound = base.bind(task)
    assert bound._plan is not None
    with base.hooked.running(bound._plan):
        hidden = base.hooked.backbone(input_ids=given["input_ids"], attention_mask=given["attention_mask"])[0]
    if task.record.kind == "mlm":
        mask = given["attention_mask"].bool()
        return _predict(hidden[mask], given["input_ids"][mask], bound._v, base.embeddings)[1]
    rows: Any = [
        Row(ids[: int(mask.sum())]) for ids, mask in zip(given["input_ids"], given["attention_mask"], strict=True)
    ]
    out = bound.kind.run(hidden, given["attention_mask"], rows, bound._v, task.record.pooling, base.embeddings)
    return torch.cat(out) if isinstance(out, list) else out


@pytest.mark.parametrize("case", [case for case in CASES if case not in REFUSED])
def test_what_they_saved_gives_their_outputs(case: str) -> None:
    _, kind, name = case.split(".")
    given, theirs, of = expected(case)
    read = False
    if "Adapter" not in of and case != "peft.bert.pooler":
        model = model_of(kind, of)
        bare, ours = outputs(model, given), outputs(attach(model, ROOT / case / "saved"), given)
        assert difference(real(theirs, given), real(bare, given)) > 0.05, "a task that changes nothing proves nothing"
        assert difference(real(theirs, given), real(ours, given)) < 1e-5
        read = True
    if kind == "t5" and name != "tagger":
        return  # our base is T5's encoder, and these change the decoder too
    base = base_of(kind)
    task = read_foreign(ROOT / case / "saved", base, name="theirs")
    if task.record.kind == "attached":
        assert read
        return
    theirs = real(theirs, given) if task.record.kind in ("tag", "mlm") else theirs
    if name == "tagger" and case.startswith("adapters"):
        assert task.record.labels == ["O", "B-PER", "I-PER"]
        theirs = theirs[:, [1, 2, 0]]  # theirs are in the order in which they were given
    assert difference(theirs, logits(task, base, given)) < 1e-5


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_counterpart_is_refused_with_the_reason(case: str) -> None:
    _, kind, _ = case.split(".")
    _, _, of = expected(case)
    folder = ROOT / case / "saved"
    read = partial(attach, model_of(kind, of), folder) if kind == "t5" else partial(read_foreign, folder, base_of(kind))
    with pytest.raises(AdaptreeError, match=REFUSED[case]) as raised:
        read()
    assert "\n" not in str(raised.value)


def test_labels_and_heads_are_kept_as_they_are() -> None:
    read = {name: read_foreign(ROOT / f"adapters.bert.{name}" / "saved", base_of("bert")) for name in
            ("two_layers", "one_layer", "number", "multilabel", "tagger", "words", "language")}  # fmt: skip
    assert {name: task.record.kind for name, task in read.items()} == {
        "two_layers": "classify", "one_layer": "classify", "number": "regress", "multilabel": "multilabel",
        "tagger": "tag", "words": "mlm", "language": "attached",
    }  # fmt: skip
    assert read["two_layers"].record.labels == ["bad", "fair", "good"]
    assert read["two_layers"].record.extra["hidden"] == "tanh"
    assert "hidden" not in read["one_layer"].record.extra


def test_a_fusion_is_stored_with_its_parts(tmp_path: Path) -> None:
    from adaptree import Store

    base, store = base_of("bert"), Store(tmp_path)
    task = read_foreign(ROOT / "adapters.bert.fusion" / "saved", base, name="both")
    given, theirs, _ = expected("adapters.bert.fusion")
    kept = store.add(task)
    assert set(store.names()) == {"both", "both-one", "both-two"}
    assert difference(theirs, logits(store.get(kept.record.reference), base, given)) < 1e-5


# Written by ours.


def shaken(v: dict[str, Tensor], seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: t if name.startswith("norm.") else t + 0.2 * torch.randn(t.shape, generator=generator)
        for name, t in v.items()
    }


def task_of(base: Base, spelling: str, kind: str, pooling: str, **extra: Any) -> Task:
    """A task with random weights."""
    from adaptree import kinds

    labels = ["O", "B-X", "I-X"] if kind == "tag" else [] if kind == "regress" else ["a", "b", "c"]
    record = Record(
        name="mine", kind=kind, labels=labels, method=spelling, pooling=pooling, max_length=base.limit,
        base={"name": base.name, "fingerprint": base.fingerprint, "architecture": base.hooked.sites.architecture},
        extra=extra,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    v = parse(spelling).init(base.hooked.sites, base.hooked.backbone, generator)
    return Task(record, shaken(v | kinds.for_record(record, base.encoder).init(base.width, generator)))


def fused(base: Base, form: str, part: str, identity: bool, pooling: str) -> Task:
    parts = {name: task_of(base, part, "classify", pooling) for name in ("one", "two")}
    for seed, (name, one) in enumerate(parts.items()):
        parts[name] = Task(dataclasses.replace(one.record, name=name), shaken(one.weights, seed))
    method = parse(form)
    assert isinstance(method, Fusion)
    method = method.over([(parse(part), one.weights) for one in parts.values()])
    v = shaken(method.init(base.hooked.sites, base.hooked.backbone, torch.Generator().manual_seed(0)))
    if identity:
        v |= {name: torch.eye(len(t)) for name, t in v.items() if name.endswith(".value")}
    record = task_of(base, part, "classify", pooling).record
    record = dataclasses.replace(
        record, name="both", method=form, extra={FUSES: "fuse(one, two)", NEEDS: dict.fromkeys(parts, "")}
    )
    head = {name: t for name, t in parts["one"].weights.items() if name.startswith("head.")}
    return Task(record, v | head, parts)


def batch() -> dict[str, Tensor]:
    given, _, _ = expected("peft.bert.lora")
    return given


class Written:
    """Cases for their libraries, collected in a folder and compared there in one go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, library: str, kind: str, of: str, output: Tensor, reading: str = "", labels: int = 0,
            given: dict[str, Tensor] | None = None) -> None:  # fmt: skip
        place = self.folder / name
        given = batch() if given is None else given
        save_file(
            {key: t.contiguous().clone() for key, t in {**given, "output": output}.items()},
            place / "expected.safetensors",
        )
        facts = {
            "library": library,
            "base": str(ROOT / "bases" / kind),
            "class": of,
            "reading": reading,
            "labels": labels,
        }
        (place / "facts.json").write_text(json.dumps(facts))

    def place(self, name: str) -> Path:
        (self.folder / name).mkdir(parents=True)
        return self.folder / name / "written"

    def compare(self) -> dict[str, Any]:
        script = Path(__file__).parent / "check_interop.py"
        done = subprocess.run(
            [THEIRS, script, self.folder], capture_output=True, text=True, timeout=600, cwd=script.parent,
            env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return dict(json.loads(done.stdout.splitlines()[-1]))


needs_them = pytest.mark.skipif(
    not THEIRS.exists(), reason="the peers' environment is not beside their numbers: make peers"
)


def attached(kind: str, of: str, spelling: str) -> tuple[Any, Task, dict[str, Tensor], Tensor]:
    """A task on a Hugging Face model, and what it computes there."""
    torch.manual_seed(0)  # the model's own head
    model, given = model_of(kind, of), batch()
    if kind == "t5" and of == "T5Model":
        given["decoder_input_ids"] = given["input_ids"][:, :4].contiguous()
    tuned = attach(model, spelling)
    tuned.load_state_dict(shaken(tuned.weights()))
    return model, tuned.task, given, outputs(tuned, given)


@needs_them
@pytest.mark.slow
def test_what_we_write_for_peft_gives_our_outputs(tmp_path: Path) -> None:
    written = Written(tmp_path)
    for kind in KINDS:
        base = base_of(kind)
        of = tf.AutoModelForSequenceClassification._model_mapping[
            tf.AutoConfig.from_pretrained(ROOT / "bases" / kind).__class__
        ]
        for spelling in ("lora(rank=3, targets=all, layers='0,2')", "ia3"):
            model, task, given, out = attached(kind, of.__name__, spelling)
            name = f"{kind}.attached.{spelling[:3]}"
            write_peft(task, model, written.place(name))
            written.add(name, "peft", kind, of.__name__, out, labels=3, given=given)
        last = "last" if kind in ("gpt2", "llama") else "first"
        tasks = {
            "mean": task_of(base, "lora:3", "classify", "mean"),
            "pooled": task_of(base, "ia3", "classify", last),
            "number": task_of(base, "lora:3", "regress", last, mean=3.0, std=0.5),
            "tagger": task_of(base, "lora:3", "tag", "first", scheme="IOB2"),
        }
        if kind in ("bert", "roberta", "xlm-roberta"):
            tasks["hidden"] = task_of(base, "lora:3", "classify", "first", hidden="tanh")
        if kind == "distilbert":
            tasks["hidden"] = task_of(base, "lora:3", "classify", "first", hidden="relu")
        for word, task in tasks.items():
            name = f"{kind}.{word}"
            write_peft(task, base, written.place(name))
            head = for_model(task.record, task.weights, base.hooked.sites)
            out = logits(task, base, batch())
            if word == "number":
                out = out * 0.5 + 3.0
            if word == "tagger":
                whole = torch.zeros(*batch()["input_ids"].shape, 3)
                whole[batch()["attention_mask"].bool()] = out
                out = whole
            labels = 1 if word == "number" else 3
            written.add(name, "peft", kind, f"AutoModelFor{head.ending}", out, head.reading, labels)
    found = written.compare()
    assert len(found) > 40
    assert {name: how for name, how in found.items() if not isinstance(how, float) or how > 1e-5} == {}


@needs_them
@pytest.mark.slow
def test_what_we_write_for_adapters_gives_our_outputs(tmp_path: Path) -> None:
    written = Written(tmp_path)
    for kind in KINDS:
        bare = type(model_of(kind, "AutoModel")).__name__
        forms = [
            "houlsby(size=7, norms=false, activation=gelu)",
            "houlsby_feedforward(size=7, norms=false, layers='0,2')",
        ]
        if kind in PRE_NORM:
            forms += ["layer_adapter:5", "stream_parallel(size=5, scale=2.0)", "pfeiffer:5"]
        else:
            forms += ["pfeiffer:5", "pfeiffer(size=5, invertible=true)", "scaled_parallel:5", "parallel_adapter:5",
                      "houlsby_parallel(size=5, norms=false)", "houlsby_attention(size=5, norms=false)"]  # fmt: skip
        for number, spelling in enumerate(forms):
            model, task, given, out = attached(kind, bare, spelling)
            name = f"{kind}.{number}.{spelling.partition('(')[0].partition(':')[0]}"
            write_adapters(task, model, written.place(name))
            written.add(name, "adapters", kind, bare, out, given=given)
        if kind == "t5":
            continue
        base, last = base_of(kind), "last" if kind in ("gpt2", "llama") else "first"
        houlsby = "houlsby(size=7, norms=false)"
        tasks = {
            "classify": task_of(base, houlsby, "classify", last),
            "mean": task_of(base, houlsby, "classify", "mean"),
            "hidden": task_of(base, houlsby, "classify", last, hidden="tanh"),
            "untouched_norms": task_of(base, "houlsby:7", "classify", last),
            "branches": fused(
                base, "branch_fusion", "layer_adapter:5" if kind in PRE_NORM else "pfeiffer:5", False, last
            ),
            "fusion": fused(base, "fusion", "pfeiffer:5", kind not in PRE_NORM, last),
        }
        for word, task in tasks.items():
            name = f"{kind}.{word}"
            write_adapters(task, base, written.place(name))
            how = reading(task.record, kind)
            written.add(name, "adapters", kind, "AutoAdapterModel", logits(task, base, batch()), how)
        model, task, given, out = attached(
            kind, type(model_of(kind, "AutoModelForSequenceClassification")).__name__, houlsby
        )
        write_adapters(task, model, written.place(f"{kind}.static"))
        written.add(f"{kind}.static", "adapters", kind, type(model).__name__, out, labels=3, given=given)
    found = written.compare()
    assert len(found) > 60
    assert {name: how for name, how in found.items() if not isinstance(how, float) or how > 1e-5} == {}

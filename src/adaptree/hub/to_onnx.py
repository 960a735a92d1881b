"""A task as one ONNX graph, encoder, adapters and head together, with a short script that runs it without adaptree.

The graph is traced from the base as it runs here, hooks and all: any method and any composition goes in.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.data.batch import collate
from adaptree.errors import AdaptreeError, UsageError
from adaptree.hub.exporting import (
    CARD,
    PREDICT,
    ExportedModel,
    check_leaves,
    compare,
    finished,
    new_folder,
    output_scale,
    probes,
)
from adaptree.kinds.kind import Kind
from adaptree.kinds.mlm import Mlm
from adaptree.models.bound import INT8_CHANGED
from adaptree.reports import card
from adaptree.reports.markdown import block, quoted

if TYPE_CHECKING:
    from torch import Tensor, nn

    from adaptree.data.encode import Encoding
    from adaptree.data.read import Source
    from adaptree.kinds import Example
    from adaptree.models.bound import Bound

GRAPH, LABELS, TOKENIZER = "model.onnx", "labels.json", "tokenizer.json"
SCRIPTS = {"classify": "classify", "tag": "tag", "answer": "answer", "choose": "choose", "mlm": "mlm"}
"""The script of a kind of task in `scripts/`; of several labels or numbers it is texts.py."""
SECONDS = 1.0
"""How long each of two graphs is timed."""
TIMED = 64
"""Rows that are timed at most."""
LARGEST = 1_800_000_000
"""Bytes of weights that one file can hold: protobuf's limit is 2 GiB."""


def to_onnx(bound: Bound, folder: str | Path, *, int8: bool = False, data: Source | None = None) -> ExportedModel:
    """Write a task as an ONNX graph with tokenizer, labels and a script that runs them; return what was written.

    `int8` computes the linear maps in int8. What that changes is measured on the labelled rows in `data`, or on the
    inputs in the task's record; raise UsageError if it changes too many predictions.
    """
    bound = bound.exact
    check_leaves(bound)
    _check_installed()
    with new_folder(folder) as staging:
        _write_graph(bound, staging / GRAPH)
        session = _open(staging / GRAPH)
        compared, far = compare(bound, lambda rows: _run(session, bound, rows), scaled=False)
        found = None
        if int8:
            whole = staging / GRAPH
            whole.rename(staging / "fp32.onnx")
            _quantise(staging / "fp32.onnx", whole)
            found = _measure(bound, session, _open(whole), data)
            found |= {"fp32_bytes": (staging / "fp32.onnx").stat().st_size, "int8_bytes": whole.stat().st_size}
            (staging / "fp32.onnx").unlink()
        _write_tokenizer(bound, staging / TOKENIZER)
        (staging / LABELS).write_text(json.dumps(_labels(bound), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        script = SCRIPTS.get(bound.kind.name, "texts")
        shutil.copyfile(Path(__file__).parent / "scripts" / f"{script}.py", staging / PREDICT)
        _write_card(bound, staging, int8)
        return finished(
            Path(folder), staging, to="onnx", form="one graph" + (", int8" if int8 else ""), compared=compared,
            difference=far, int8=found,
        )  # fmt: skip


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed.", hint="pip install 'adaptree[onnx]'") from error


def _graph(bound: Bound) -> nn.Module:
    """Return the base with the task in it and its head, as a module from tokens to logits."""
    import torch.nn.functional as F
    from torch import nn

    from adaptree import compose
    from adaptree.core import invertible
    from adaptree.methods.pfeiffer import coupling

    kind, hooked, v = bound.kind, bound.base.hooked, bound.weights
    words = isinstance(kind, Mlm)
    if not words and (type(kind).run is not Kind.run or set(bound.head) != {"head.weight", "head.bias"}):
        raise UsageError(f"the head of kind {kind.name} is not known to the export.", hint="Predict with adaptree.")
    plan, weights = compose.together(hooked.sites, hooked.frozen, bound.composition.parts)
    copy = hooked.copy(weights)
    copy.bind(plan)

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = copy.backbone
            self.v = nn.ParameterDict({name.replace(".", "_"): t.clone() for name, t in bound.head.items()})

        def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
            more = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **more).last_hidden_state
            if words:
                return self.words(hidden)
            x = hidden if kind.reads_tokens else _pooled(hidden, attention_mask, bound.task.record.pooling)
            return F.linear(x, self.v["head_weight"], self.v["head_bias"])

        def words(self, hidden: Tensor) -> Tensor:
            x = F.gelu(F.linear(hidden, self.v["head_dense_weight"], self.v["head_dense_bias"]))
            x = F.layer_norm(x, x.shape[-1:], self.v["head_norm_weight"], self.v["head_norm_bias"], 1e-12)
            x = invertible.invert(x, coupled) if (coupled := coupling(v)) else x
            return F.linear(x, bound.base.embeddings, self.v["head_bias"])

    return Graph().eval().requires_grad_(False)


def _pooled(hidden: Tensor, mask: Tensor, how: str) -> Tensor:
    """Return what `kinds.kind.pool` does, without a Python number for the batch: (B, T, d), (B, T) -> (B, d)."""
    if how == "mean":
        m = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * m).sum(1) / m.sum(1)
    if how == "first":
        return hidden[:, 0]
    at = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, hidden.shape[-1])
    return hidden.gather(1, at).squeeze(1)


def _write_graph(bound: Bound, path: Path) -> None:
    """Trace the task over a batch of two rows of different lengths, with batch and length free."""
    import torch
    from torch.export import Dim

    graph = _graph(bound)
    room = min(11, bound.task.record.max_length)
    ids = torch.randint(0, bound.base.encoder.vocabulary, (2, room), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, room - 1 :] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if bound.base.encoder.types:
        inputs["token_type_ids"] = torch.zeros_like(ids)
    free = {0: Dim("batch"), 1: Dim("length")}
    size = sum(p.nbytes for p in graph.parameters())
    try:
        with _quietly(), torch.no_grad():
            program = torch.onnx.export(
                graph, (), kwargs=inputs, dynamo=True, dynamic_shapes=dict.fromkeys(inputs, free),
                input_names=list(inputs), output_names=["logits"], verbose=False,
            )  # fmt: skip
            assert program is not None
            _forget_traces(program.model)
            program.save(path, external_data=size > LARGEST)
    except Exception as error:  # whatever torch's exporter makes of an architecture
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise AdaptreeError(
            f"torch cannot export {bound.base.hooked.sites.architecture} with {bound.spelling} to ONNX: {why}",
            hint="Try --to transformers.",
        ) from error


def _forget_traces(model: Any) -> None:
    """Remove what the exporter notes at every node: the lines of code that it comes from, with this machine's paths."""
    for part in (model, model.graph, *model.functions.values()):
        part.metadata_props.clear()
        part.doc_string = None
    for graph in (model.graph, *model.functions.values()):
        for node in graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
                value.doc_string = None


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep the exporter's own words and warnings away from the terminal."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _open(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _run(session: Any, bound: Bound, rows: Sequence[Encoding]) -> list[Tensor]:
    """Return a graph's logits for encoded rows, one by one."""
    import torch

    found = []
    for row in rows:
        inputs = {name: x[:, : len(row.ids)].numpy() for name, x in collate([row], bound.base.encoder.pad_id).items()}
        found.append(torch.from_numpy(session.run(None, inputs)[0][0]))
    return found


# int8


def _quantise(source: Path, target: Path) -> None:
    """Write a graph whose linear maps compute in int8."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    del model.graph.value_info[:]  # shapes of values between, which the quantiser infers again, and finds other ones
    with _quietly():
        # Linear maps alone: embeddings in int8 would save more bytes, and change more predictions. Weights of 7 bits,
        # because sums of 8-bit products overflow on processors without VNNI.
        quantize_dynamic(
            model, target, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True,
            op_types_to_quantize=["MatMul", "Gemm"],
        )  # fmt: skip


def _measure(bound: Bound, whole: Any, int8: Any, data: Source | None) -> dict[str, Any]:
    """Return what int8 changes and how much faster it is; raise UsageError if it changes too many predictions."""
    from adaptree.models.evaluate import open_labelled

    targets = None
    if data is None:
        inputs = probes(bound)
    else:
        dataset = open_labelled(bound, data)
        rows = np.arange(len(dataset))
        inputs, targets = bound.kind.inputs(dataset.inputs(rows), bound.task.record), dataset.targets(rows)
    if not inputs:
        raise UsageError(
            f"'{bound.task.record.name}' has no inputs in its record to measure int8 on.",
            hint="Name a labelled file: --data FILE",
        )
    examples = bound.read(inputs)
    ours, theirs = _out(whole, bound, examples), _out(int8, bound, examples)
    changed = int(bound.kind.changed(ours, theirs, examples))
    if changed > max(1.0, INT8_CHANGED * len(inputs)):
        raise UsageError(
            f"int8 changes {changed:,} of {len(inputs):,} predictions of '{bound.task.record.name}'.",
            hint="Leave out --int8: this task needs fp32.",
        )
    found: dict[str, Any] = {"compared": len(inputs), "changed": changed}
    if targets is not None:
        for name, out in (("fp32", ours), ("int8", theirs)):
            found[name] = bound.kind.score(targets, bound.kind.decode(out, examples))
    some = [row for example in examples for row in example][:TIMED]
    seconds = [_seconds(session, bound, some) for session in (whole, int8)]
    return found | {"milliseconds": [1000 * each for each in seconds], "speedup": seconds[0] / seconds[1]}


def _out(session: Any, bound: Bound, examples: Sequence[Example]) -> Any:
    """Return a graph's output in the form that `Kind.decode` takes."""
    import torch

    rows = [row for example in examples for row in example]
    logits = _run(session, bound, rows)
    if isinstance(bound.kind, Mlm):
        return [_words(each[row.at.places], row) for each, row in zip(logits, rows, strict=True)]
    return logits if bound.kind.reads_tokens else torch.stack(logits)


def _words(logits: Tensor, row: Encoding) -> Tensor:
    """Return what `Mlm.run` gives for a row's hidden places: loss, whether it is right, and the likeliest piece."""
    import torch
    import torch.nn.functional as F

    target = torch.from_numpy(row.at.pieces.astype(np.int64))
    loss, best = F.cross_entropy(logits, target, reduction="none"), logits.argmax(-1)
    return torch.stack([loss, (best == target).float(), best.float()], -1)


def _seconds(session: Any, bound: Bound, rows: Sequence[Encoding]) -> float:
    """Return the seconds that one row takes."""
    _run(session, bound, rows[:1])
    start, count = time.perf_counter(), 0
    while not count or time.perf_counter() - start < SECONDS:
        _run(session, bound, rows)
        count += len(rows)
    return (time.perf_counter() - start) / count


# What lies beside the graph.


def _write_tokenizer(bound: Bound, path: Path) -> None:
    """Write the tokenizer so that it cuts and pads by itself."""
    encoder = bound.base.encoder
    tokenizer = encoder.tokenizer()
    cut = "only_second" if bound.kind.name == "answer" else "longest_first"
    tokenizer.enable_truncation(bound.task.record.max_length, strategy=cut)
    tokenizer.enable_padding(pad_id=encoder.pad_id, pad_token=tokenizer.id_to_token(encoder.pad_id) or "")
    tokenizer.save(str(path))


def _labels(bound: Bound) -> dict[str, Any]:
    """Return what a script needs to make predictions of the graph's outputs."""
    kind, record = bound.kind, bound.task.record
    mean, unit = ([float(x) for x in np.atleast_1d(np.asarray(each))] for each in output_scale(bound))
    names = list(getattr(kind, "labels", ())) or list(getattr(kind, "targets", ()))
    found: dict[str, Any] = {
        "task": record.reference,
        "kind": kind.name,
        "labels": ["value"] if kind.name == "regress" else names,
        "mean": mean,
        "unit": unit,
        "max_length": record.max_length,
    }
    if kind.name == "multilabel":
        own: Any = kind
        found["thresholds"] = list(own.thresholds or (own.threshold,) * len(names))
    if kind.name == "answer":
        found |= {name: getattr(kind, name) for name in ("impossible", "threshold", "longest")}
    if isinstance(kind, Mlm):
        found["mask_id"] = kind.mask_id
    return found


def _write_card(bound: Bound, folder: Path, int8: bool) -> None:
    record = bound.task.record
    title, _, rest = card.body(record).partition("\n\n")
    front = ["---", "library_name: onnx", "tags:", *(f"- {quoted(tag)}" for tag in ("adaptree", record.kind)), "---"]
    usage = ["pip install onnxruntime tokenizers numpy", f"python {PREDICT} {_words_of(bound)}"]
    about = (
        f"An ONNX graph{' in int8' if int8 else ''}, exported from an adaptree task: {bound.spelling} on "
        f"{record.base.get('name', '?')}. It runs without adaptree and without PyTorch:"
    )
    text = "\n".join(front) + f"\n\n{title}\n\n{about}\n\n{block('sh', usage)}\n\n{rest}"
    (folder / CARD).write_text(text, encoding="utf-8")


def _words_of(bound: Bound) -> str:
    """Return example arguments of the script."""
    if bound.kind.name == "answer":
        return '"a question?" "the text with the answer"'
    if bound.kind.name == "choose":
        return '"a text" "one choice" "another"'
    if isinstance(bound.kind, Mlm):
        return f'"a {bound.base.encoder.words()[bound.kind.mask_id]} text"'
    return '"a text"'

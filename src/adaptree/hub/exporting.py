"""What every export of a task to another library has in common: its folder, its inputs, and a comparison with ours."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.errors import AdaptreeError, StoreError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.data.encode import Encoding
    from adaptree.data.read import Source
    from adaptree.kinds import Example, Out
    from adaptree.models.bound import Bound

TOLERANCE = 1e-4
"""By how much a logit may differ from ours, relative to the largest where that is more than 1."""
LIBRARIES = ("transformers", "onnx", "peft", "adapters")
MODELLING, PREDICT, CARD = "modeling_adaptree.py", "predict.py", "README.md"

Run = Callable[[Sequence["Encoding"]], "list[Tensor]"]
"""A model's logits for some encoded rows: (width,) for each, or (tokens, width)."""


@dataclass(frozen=True)
class ExportedModel:
    """A task that left: where it lies, how it is written, and how far its logits are from ours."""

    folder: str
    to: str
    form: str
    """In words: merged into the base's weights, with a modelling file, a graph."""
    files: list[str]
    bytes: int
    compared: int = 0
    """How many inputs were computed both ways; none where the other library is needed for it."""
    difference: float | None = None
    """The largest difference of a logit."""
    int8: dict[str, Any] | None = None
    """What int8 changes, and how much faster it is, where it was asked for."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def int8_lines(self) -> list[str]:
        """Return what int8 changes and saves, in words; nothing where it was not asked for."""
        if (found := self.int8) is None:
            return []
        lines = [
            f"int8 changes {found['changed']:,} of {found['compared']:,} predictions, takes "
            f"{100 * found['int8_bytes'] / found['fp32_bytes']:.0f} % of the bytes, and a row takes "
            f"{found['milliseconds'][1]:.2f} ms instead of {found['milliseconds'][0]:.2f}"
        ]
        for name, score in found.get("fp32", {}).items():
            lines.append(f"{name}: {score:.4f} in fp32, {found['int8'][name]:.4f} in int8")
        return lines


def export_model(
    bound: Bound, folder: str | Path, *, to: str, int8: bool = False, data: Source | None = None, head: bool = True
) -> ExportedModel:
    """Write a task as a model of another library, `to` one of LIBRARIES; return what was written."""
    from adaptree.hub.interop.write import write_adapters, write_peft
    from adaptree.hub.to_onnx import to_onnx
    from adaptree.hub.to_transformers import to_transformers

    if to == "gguf":
        raise UsageError(
            "gguf is for models that generate text: llama.cpp has no place for adapters, pooling or a task's head.",
            hint="--to onnx runs anywhere without PyTorch.",
        )
    if to not in LIBRARIES:
        raise UsageError(f"a task cannot be exported to '{to}'.", hint=f"There are: --to {', '.join(LIBRARIES)}.")
    if (int8 or data is not None) and to != "onnx":
        raise UsageError(f"--{'int8' if int8 else 'data'} is for --to onnx.", hint="Leave it out.")
    if not head and to in ("transformers", "onnx"):
        raise UsageError("--no-head is for --to peft and --to adapters.", hint="Leave it out.")
    if to == "transformers":
        return to_transformers(bound, folder)
    if to == "onnx":
        return to_onnx(bound, folder, int8=int8, data=data)
    if bound.composition.expression.depth:
        raise UsageError(
            f"{to} takes one task, and {bound.composition.expression!r} is a composition.",
            hint="Keep it under a name first (adaptree compose), or --to transformers",
        )
    (write_peft if to == "peft" else write_adapters)(bound.task, bound.base, folder, head=head)
    return finished(Path(folder), Path(folder).expanduser(), to=to, form=f"as {to} saves it")


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes this one, whole or not at all; raise StoreError if there is one already."""
    target = Path(folder).expanduser()
    staging = target.parent / f".{target.name}-{uuid.uuid4().hex}"
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise StoreError(f"{target} is there already.", hint="Choose another folder, or remove it.")
        staging.mkdir(parents=True)
        yield staging
        os.replace(staging, target)
    except OSError as error:
        if error.errno is None:  # another library's, and not the disk's
            raise
        raise StoreError(
            f"cannot write {target}: {error.strerror or error}. Nothing was changed.", hint="Choose another folder."
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_leaves(bound: Bound) -> None:
    """Raise UsageError for a task that no other library can run as it is."""
    name, kind = bound.task.record.name, bound.kind
    if bound.method.standalone:
        raise UsageError(
            f"'{name}' is {bound.method.name}, which does not run in a Transformer.", hint="Export another task."
        )
    if getattr(kind, "as_text", False):
        raise UsageError(
            f"'{name}' reads its labels as text, which no other library does for kind {kind.name}.",
            hint="Train it without --as-text.",
        )
    if getattr(kind, "windows", False):
        raise UsageError(
            f"'{name}' reads long texts in windows, which no other library does for kind {kind.name}.",
            hint="Train it without --windows.",
        )


def probes(bound: Bound) -> list[Any]:
    """Return the inputs that a task's record has: those of its probe, and its examples."""
    record = bound.task.record
    found = list(record.probe.get("inputs") or [])
    for example in record.examples:
        given = example.get("input")
        if given is None:
            given = [example.get("text", ""), example["pair"]] if "pair" in example else example.get("text", "")
        found.append(given)
    distinct = [given for i, given in enumerate(found) if given not in found[:i]]
    return bound.kind.inputs(distinct, record) if distinct else []


def compare(bound: Bound, run: Run, *, scaled: bool) -> tuple[int, float]:
    """Return how many inputs were computed both ways, and the largest difference; raise AdaptreeError if it is large.

    `scaled`: the other model's outputs are the probabilities' logits and the numbers themselves (`output_scale`).
    """
    inputs = probes(bound)
    examples = bound.read(inputs)
    ours, theirs = bound.compute(examples), run([row for example in examples for row in example])
    far, size = difference(bound, examples, ours, theirs, scaled=scaled)
    if not far <= TOLERANCE * max(1.0, size):
        raise AdaptreeError(
            f"'{bound.task.record.name}' gives other logits there than here: they differ by {far:.2g}.",
            hint="Nothing was written. Please report this base and this method.",
        )
    return len(inputs), far


def difference(
    bound: Bound, examples: Sequence[Example], ours: Out, theirs: Sequence[Tensor], *, scaled: bool
) -> tuple[float, float]:
    """Return the largest difference between our outputs and another model's logits, and the largest of ours."""
    far = size = 0.0
    rows = [row for example in examples for row in example]
    mean, unit = output_scale(bound) if scaled else (0.0, 1.0)
    for row, mine, other in zip(rows, ours, theirs, strict=True):
        if bound.kind.name == "mlm":
            top = (mine.shape[-1] - 2) // 2
            other = other[row.at.places].log_softmax(-1).gather(-1, mine[:, 2 : 2 + top].long())
            mine = mine[:, 2 + top :]
        else:
            mine = mine * unit + mean
        if mine.numel():
            far = max(far, float((mine - other).abs().max()))
            size = max(size, float(mine.abs().max()))
    return far, size


def output_scale(bound: Bound) -> tuple[Any, Any]:
    """Return what the head's outputs are shifted and multiplied by before they are logits of probabilities, or numbers.

    That is 1 / temperature, or the mean and the standard deviation of a regression's targets.
    """
    import torch

    found = bound.kind.scale(bound.task.record)
    if found is None:
        return 0.0, 1.0
    return torch.tensor(found[0]), torch.tensor(found[1])


def finished(folder: Path, staging: Path, **values: Any) -> ExportedModel:
    """Return what was written to a folder that is about to get its place."""
    files = sorted(path for path in staging.rglob("*") if path.is_file())
    return ExportedModel(
        folder=str(folder),
        files=[str(path.relative_to(staging)) for path in files],
        bytes=sum(path.stat().st_size for path in files),
        **values,
    )

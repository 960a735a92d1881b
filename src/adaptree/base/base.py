"""A frozen pretrained base: load it, know it again, run tasks over it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from adaptree import cache, compose, kinds
from adaptree.architectures import Architecture
from adaptree.compose import Composition, Expression, Parallel, Parts, Rows, Tasks
from adaptree.compose.blocks import Dropped
from adaptree.core.int8 import quantise
from adaptree.data.batch import collate, group
from adaptree.data.encode import Encoder, Row
from adaptree.data.source import Reader, reader_for
from adaptree.errors import BaseError, CompositionError, TaskCorrupt, UsageError, WrongBase
from adaptree.fingerprint import SETTINGS, fingerprint
from adaptree.host import Host, share
from adaptree.kinds import Kind, Out, Unit
from adaptree.kinds.kind import as_texts, pool
from adaptree.kinds.pretrained import words_head
from adaptree.methods import Params, Plan
from adaptree.models import config_of, limit_of, locate
from adaptree.several import ByRow, InParallel

if TYPE_CHECKING:
    from adaptree.task import Task


os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
"""oneDNN keeps its last 1,024 kernels, one for each shape that it has met in bf16: some 60 MB that save no time here.

It reads this once, when the first base is loaded."""

INT8_TEXTS, INT8_CHANGED = 256, 0.02
"""How many texts are answered in fp32 too, and which share of the answers int8 may change."""


class Base:
    """One frozen model with its tokenizer. Tasks are bound to it as data; it holds none of them."""

    def __init__(
        self,
        name: str,
        host: Host,
        encoder: Encoder,
        *,
        location: str,
        pooling: str,
        limit: int,
        digest: str,
        device: str = "cpu",
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self.location = location
        """What `load_base` finds it by on this machine."""
        self.host = host
        self.encoder = encoder
        self.pooling = pooling
        self.limit = limit
        """The longest input, in tokens."""
        self.fingerprint = digest
        self.device = device
        self._folder = folder

    @property
    def width(self) -> int:
        return self.host.sites.sites[0].width

    def head_for(self, kind: Kind) -> dict[str, Tensor]:
        """The head that this base was pretrained with for a kind of task, if it was."""
        if kind.name != "mlm" or self._folder is None:
            return {}
        found = words_head(self._folder)
        fits = found and found["head.dense.weight"].shape[1] == self.width and len(found["head.bias"]) == kind.width
        return found if fits else {}

    @property
    def embeddings(self) -> Tensor:
        """(words, width), of the frozen base."""
        backbone: Any = self.host.backbone
        return backbone.get_input_embeddings().weight  # type: ignore[no-any-return]

    def hidden(self, rows: Sequence[Row], host: Host | None = None) -> tuple[Tensor, Tensor]:
        """Last hidden states and mask of some encoded rows, in this base or in a tree of it."""
        inputs = collate(rows, self.encoder.pad_id, self.device)
        host = host or self.host
        if host.feed is not None:
            host.feed(rows)
        return host.backbone(**inputs).last_hidden_state, inputs["attention_mask"]

    def features(self, inputs: Any, *, batch_size: int = 64) -> Tensor:
        """(n, width): the vector of each text or pair under no task."""
        texts = as_texts([inputs] if isinstance(inputs, str) else inputs)
        with self.host.running({}):
            return _vectors(self, texts, self.limit, self.pooling, batch_size, None)

    @overload
    def bind(self, task: Task, *, on: Sequence[Task] | None = None, int8: bool = False) -> Bound: ...
    @overload
    def bind(self, task: str | Expression, *, tasks: Tasks | None = None, int8: bool = False) -> Any: ...
    def bind(
        self,
        task: Task | str | Expression,
        *,
        tasks: Tasks | None = None,
        on: Sequence[Task] | None = None,
        int8: bool = False,
    ) -> Any:
        """The base with this task, or with a composition of some in `tasks`: predicts, and leaves all as they are.

        A `Bound`; for parallel(…) an `InParallel`, for rows(…) a `ByRow`, which have several answers. `on` puts others
        below the task, the lowest first, whatever it was trained on. `int8` computes the linear maps in whole numbers,
        in a copy of the base: quicker on a processor, and refused when it changes the answers.
        """
        if isinstance(task, str | Expression):
            expression, tasks = compose.parse(task), tasks if tasks is not None else {}
            if isinstance(expression, Parallel | Rows):
                parts = {repr(part): self.bind(part, tasks=tasks, int8=int8) for part in expression.parts}
                several = InParallel if isinstance(expression, Parallel) else ByRow
                return several(expression, self, parts)
            return Bound(self, compose.compile_(expression, tasks, self.device), int8=int8)
        return Bound(self, compose.of_task(task, on=on, device=self.device), int8=int8)

    def __repr__(self) -> str:
        return f"Base({self.name}: {self.host.sites.architecture}, {self.host.sites.depth} layers, {self.width} wide)"


class Bound:
    """A base and a composition of tasks on it, of which one answers."""

    def __init__(self, base: Base, composition: Composition, *, int8: bool = False) -> None:
        if composition.task is None:
            raise CompositionError(
                f"{composition.expression!r} is the bare base: it has no task to answer with.",
                hint="Its vectors are base.features(texts).",
            )
        self.base = base
        self.composition = composition
        self.task = composition.task
        for task in composition.tasks:
            self._check_base(task)
        self._exact = self._check_int8() if int8 else None
        self._compared = self._changed = 0
        self.kind = kinds.for_record(self.task.record, base.encoder)
        self.truncated = 0
        """How many texts were longer than the task takes, and cut."""
        self.method = composition.parts[-1][0]
        self._v = composition.v
        if isinstance(self.method, Dropped):
            self._v = self.method.left(base.host.sites, self._v)
        try:
            self._plan, self._host = self._place(composition.parts)
        except KeyError as error:
            names = " or ".join(f"'{each.record.name}'" for each in composition.tasks)
            raise TaskCorrupt(f"the task {names} lacks the weight {error}.", hint="Train it again.") from error

    def _check_base(self, task: Task) -> None:
        record = task.record
        if record.base.get("fingerprint") != self.base.fingerprint:
            raise WrongBase(
                f"the task '{record.name}' was trained on another base, {record.base.get('name')}, "
                f"not on {self.base.name}.",
                hint=f"Load that one: --base {record.base.get('name')}",
            )

    def _place(self, parts: Parts) -> tuple[Plan | None, Host | None]:
        """The plan to run on the base itself; or, for methods with weights of their own, a tree that has them."""
        host = self.base.host
        plan, weights = compose.together(host.sites, host.frozen, parts)
        if not weights and self._exact is None:
            return host.hook(plan), None
        tree = Host(share(host.model), host.architecture)
        tree.swap(weights)
        if self._exact is not None:
            quantise(tree.backbone)
        tree.bind(plan)
        return None, tree

    @property
    def guest(self) -> tuple[Plan, Params] | None:
        """What it does on the base itself; none where it replaces the base's weights, or leaves it alone."""
        return None if self._plan is None or self.method.outside else (self._plan, self._v)

    @property
    def spelled(self) -> str:
        """Its methods, from the lowest to the topmost."""
        return ", ".join(str(method) for method, _ in self.composition.parts)

    @property
    def int8(self) -> bool:
        return self._exact is not None

    def _check_int8(self) -> Bound:
        """The same task in fp32, which the first answers in int8 are compared with."""
        if self.base.device != "cpu":
            raise UsageError("int8 is for processors.", hint="Leave it out, or --device cpu.")
        exact = Bound(self.base, self.composition)
        if exact.method.outside:
            raise UsageError(f"{exact.method.name} does not run in the base.", hint="Leave out int8.")
        return exact

    def _compare(self, units: Sequence[Unit], out: Out, batch_size: int) -> None:
        """Answer the first inputs in fp32 too; too many other answers, and int8 is refused."""
        if self._exact is None or self._compared >= INT8_TEXTS or not units:
            return
        some = units[: INT8_TEXTS - self._compared]
        exact = self._exact._compute(some, batch_size)
        self._compared += len(some)
        self._changed += self.kind.changed(exact, out[: sum(map(len, some))], some)
        if self._changed > max(1.0, INT8_CHANGED * self._compared):
            raise UsageError(
                f"int8 changes {self._changed:,} of the first {self._compared:,} answers of '{self.task.record.name}'.",
                hint="Leave it out; this task needs fp32.",
            )

    def predict(self, inputs: Any, *, min_score: float | None = None, batch_size: int = 64) -> list[Any]:
        """An answer for each input, in order: a `Prediction` for texts and pairs."""
        asked = self.kind.inputs(inputs, self.task.record)
        units, out = self.run(asked, batch_size)
        return self.kind.predictions(out, units, asked, min_score)

    def answer(self, asked: Any, min_score: float | None = None) -> list[Any]:
        """The same for what `line` and `reader` give."""
        return self.predict(asked, min_score=min_score)

    def line(self, line: str) -> Any:
        """One line that a user typed, as an input."""
        return self.kind.line(line, self.task.record)

    def reader(self, first: Mapping[str, Any], asked: Mapping[str, str | None]) -> Reader:
        """How the rows of a file become inputs."""
        return reader_for(self.task.record, first, asked)

    def answers(self, inputs: Any, *, batch_size: int = 64) -> Any:
        """What is scored against what is right, for each input."""
        units, out = self.run(self.kind.inputs(inputs, self.task.record), batch_size)
        return self.kind.answers(out, units)

    def logits(self, inputs: Any, *, batch_size: int = 64) -> Tensor:
        """The head's numbers, (n, labels) where it reads one vector for each input; else all of them end to end.

        The bits do not depend on what else is in the batch.
        """
        out = self.run(self.kind.inputs(inputs, self.task.record), batch_size)[1]
        return out if isinstance(out, Tensor) else torch.cat([part.flatten() for part in (*out, torch.zeros(0))])

    def features(self, inputs: Any, *, batch_size: int = 64) -> Tensor:
        """(n, width): the vector of each text or pair under this task, as the base pools it."""
        texts = as_texts([inputs] if isinstance(inputs, str) else inputs)
        if self.method.outside:
            raise UsageError(f"{self.method.name} has no vectors in the base.")
        pooling = self.task.record.pooling or self.base.pooling
        with nullcontext() if self._plan is None else self.base.host.running(self._plan):
            return _vectors(self.base, texts, self.task.record.max_length, pooling, batch_size, self._host)

    def run(self, inputs: list[Any], batch_size: int = 64) -> tuple[list[Unit], Out]:
        """The units of inputs, as the kind reads them from a file, and what the head gives for each of their rows."""
        if self.method.outside:
            return [], self.method.logits(self._v, inputs) if inputs else torch.empty(0, self.kind.width)
        units = self.read(inputs)
        out = self._compute(units, batch_size)
        self._compare(units, out, batch_size)
        return units, out

    def read(self, inputs: list[Any]) -> list[Unit]:
        """The units of inputs, before anything is computed."""
        units = self.kind.units(self.base.encoder, inputs, self.task.record.max_length) if inputs else []
        self.truncated += sum(any(row.truncated for row in unit) for unit in units)
        return list(self.kind.drawn(units, None))

    def _compute(self, units: Sequence[Unit], batch_size: int) -> Out:
        pooling = self.task.record.pooling
        return infer(self.base, units, self.kind, self._v, self._plan, pooling, batch_size, self._host)

    def __repr__(self) -> str:
        return f"Bound({self.task!r} on {self.base!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.task._repr_html_()


def _vectors(base: Base, texts: list[Any], max_length: int, pooling: str, batch_size: int, host: Host | None) -> Tensor:
    rows = base.encoder.encode(texts, max_length) if texts else []
    out = torch.empty(len(rows), base.width)
    with torch.inference_mode():
        for at in group([len(row.ids) for row in rows], batch_size):
            hidden, mask = base.hidden([rows[i] for i in at], host)
            out[torch.from_numpy(at)] = pool(hidden, mask, pooling).float().cpu()
    return out


def forward(
    base: Base, units: Sequence[Unit], kind: Kind, v: Params, pooling: str, *, batch_size: int, host: Host | None = None
) -> Out:
    """The head's output for each row of some units, in their order."""
    rows = [row for unit in units for row in unit]
    parts: list[Any] = []
    order: list[np.ndarray[Any, Any]] = []
    for at in group([len(row.ids) for row in rows], batch_size):
        some = [rows[i] for i in at]
        hidden, mask = base.hidden(some, host)
        found = kind.run(hidden, mask, some, v, pooling, base.embeddings)
        if not torch.is_grad_enabled():
            found = found.cpu() if isinstance(found, Tensor) else [part.cpu() for part in found]
        parts.append(found)
        order.append(at)
    if not parts:
        return [] if kind.reads_tokens else torch.empty(0, kind.width)
    back = np.argsort(np.concatenate(order))
    if kind.reads_tokens:
        flat = [part for found in parts for part in found]
        return [flat[i] for i in back]
    return parts[0] if len(parts) == 1 else torch.cat(parts)[torch.from_numpy(back).to(parts[0].device)]


def infer(
    base: Base,
    units: Sequence[Unit],
    kind: Kind,
    v: Params,
    plan: Plan | None,
    pooling: str,
    batch_size: int = 64,
    host: Host | None = None,
) -> Out:
    """The same without gradients; with no plan, the one that `host` is bound to."""
    with torch.inference_mode(), nullcontext() if plan is None else base.host.running(plan):
        return forward(base, units, kind, v, pooling, batch_size=batch_size, host=host)


def load_base(
    name: str | Path = "minilm",
    *,
    architecture: Architecture | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    device: str = "cpu",
) -> Base:
    """Load a base, frozen: 'minilm' (embedded), 'mpnet', a folder, or a name on the Hugging Face hub."""
    import transformers
    from safetensors import SafetensorError
    from transformers.utils import logging

    folder = locate(name, allow_pickle=allow_pickle)
    says = config_of(folder)
    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), **options)
        loader: Any = transformers.T5EncoderModel if config.model_type == "t5" else transformers.AutoModel
        model, info = loader.from_pretrained(
            str(folder),
            dtype=torch.float32,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError) as error:
        raise BaseError(_reason(name, error), hint=_way_out(error)) from error
    finally:
        logging.set_verbosity(verbosity)
    missing = sorted(key for key in info["missing_keys"] if not key.startswith("pooler"))
    if missing:
        raise BaseError(f"the weights in '{folder.name}' lack {len(missing)} of the model's, such as {missing[0]}.")
    model.requires_grad_(False).eval().to(device)
    host = Host(model, architecture)
    host.probe()
    files = [path for path in folder.iterdir() if path.suffix in (".safetensors", ".json", ".bin")]
    encoder = Encoder.load(folder, says, trust_remote_code=trust_remote_code)
    here = Path(name).expanduser()
    return Base(
        here.resolve().name if folder == here else str(name),
        host,
        encoder,
        location=str(here.resolve()) if folder == here else str(name),
        pooling=_pooling(folder) or host.sites.pooling,
        limit=limit_of(says),
        digest=cache.digest_of(
            files, f"fingerprint 2 of {torch.float32} {SETTINGS}", lambda: fingerprint(host.backbone)
        ),
        device=device,
        folder=folder,
    )


def _reason(name: str | Path, error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"the model in '{name}' cannot be loaded: {first}"


def _way_out(error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return "It brings code of its own: pass --trust-remote-code if you trust it."
    if "safetensors" in text:
        return "Only safetensors is read by default: pass --allow-pickle if you trust the file."
    return "A folder needs config.json, model.safetensors and tokenizer.json."


def _pooling(folder: Path) -> str | None:
    """What a sentence-embedding model says of itself."""
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return None
    try:
        says = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise BaseError(
            f"'{folder.name}/1_Pooling/config.json' cannot be read.", hint="Fetch it again, or remove it."
        ) from error
    for key, how in (("pooling_mode_mean_tokens", "mean"), ("pooling_mode_cls_token", "first")):
        if says.get(key):
            return how
    return None

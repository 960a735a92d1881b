"""The training loop: one task's weights over a frozen base, the same bits for the same seed, also across kills."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptree.data.batch import epoch as batches_of
from adaptree.data.encode import Encoding
from adaptree.errors import Diverged, TrainingError
from adaptree.kinds import Example, Kind, Out, metrics
from adaptree.kinds.encoded import Encoded
from adaptree.methods import Method
from adaptree.models import activation_cache
from adaptree.models.base import Base
from adaptree.models.cache_files import NotCacheable
from adaptree.models.forward import forward, infer
from adaptree.models.hooks import HookedModel, share, without_dropout
from adaptree.training import checkpoint
from adaptree.training.distributed import ProcessGroup
from adaptree.training.interrupt import ctrl_c
from adaptree.training.optimiser import adamw, set_rate
from adaptree.training.precision import computing_in
from adaptree.training.result import Event, Fit, scored
from adaptree.training.settings import Settings, learning_rate
from adaptree.training.standalone import learn
from adaptree.training.state import BEST, NOW, State, pack, restore_moments, weights

Array = np.ndarray[Any, Any]
CHECKPOINT_SECONDS = 20.0
"""How much work a kill can cost at most; twice that where saving takes two seconds."""


def fit(
    base: Base,
    method: Method,
    kind: Kind,
    training: tuple[Encoded, Array],
    validation: tuple[Encoded, Array],
    settings: Settings,
    *,
    folder: Path | None = None,
    resume: bool = False,
    cover: Sequence[tuple[Encoded, Array]] = (),
    on_event: Callable[[Event], None] = lambda event: None,
) -> Fit:
    """Train a task. `folder` keeps checkpoints; with `resume` the run goes on from the last one, bit for bit.

    `cover` are rows that the trunk is to hold beyond those of this run, so that runs on parts of them share it.
    """
    if method.standalone:
        return learn(method, kind, training, validation, settings, on_event)
    run = _Run(base, method, kind, training, validation, settings, folder, (training, validation, *cover), on_event)
    if resume and folder is not None:
        run.restore()
    with ctrl_c() as pressed:
        return run.go(pressed)


class _Run:
    """A run: a tree of the base with the weights in it, what trains them, and where it is."""

    def __init__(
        self,
        base: Base,
        method: Method,
        kind: Kind,
        training: tuple[Encoded, Array],
        validation: tuple[Encoded, Array],
        settings: Settings,
        folder: Path | None,
        cover: Sequence[tuple[Encoded, Array]],
        on_event: Callable[[Event], None],
    ) -> None:
        self.base, self.method, self.kind, self.settings = base, method, kind, settings
        self.device_type = torch.device(base.device).type
        self.folder, self.cover, self.on_event = folder, cover, on_event
        if settings.epochs is None or settings.lr is None or settings.metric is None or settings.pooling is None:
            raise ValueError("settings must be resolved before a run")
        self.epochs, self.lr = settings.epochs, settings.lr
        self.metric, self.pooling = settings.metric, settings.pooling
        self.precision = settings.precision or "fp32"
        self.source, self.train_rows = training
        self.checker, self.validation_rows = validation
        torch.manual_seed(settings.seed)
        self.hooked = HookedModel(share(base.hooked.model), base.hooked.architecture)
        if settings.dropout:
            self.hooked.model.train()
        else:
            without_dropout(self.hooked.backbone)
        self._take(self._birth())
        self.class_weights: Tensor | None = None
        if settings.class_weights:
            self.class_weights = kind.class_weights(self.source.targets(self.train_rows)).to(base.device)
        self.state = State()
        self.saving = 0.0
        self.stop = False
        self.group = ProcessGroup(base.device)
        self.identity = hashlib.sha256(
            repr(
                (settings.to_dict(), repr(method), base.fingerprint, kind, self.source.dataset.digest,
                 self.checker.dataset.digest, self.train_rows.tobytes(), self.validation_rows.tobytes())
            ).encode()
        ).hexdigest()  # fmt: skip

    def _birth(self) -> dict[str, Tensor]:
        """The weights at the very beginning, a function of the seed."""
        generator = torch.Generator().manual_seed(self.settings.seed)
        born = self.method.init(self.hooked.sites, self.base.hooked.backbone, generator)
        return born | self.kind.init(self.base.width, generator) | self.base.head_for(self.kind)

    def _take(self, v: Mapping[str, Tensor]) -> None:
        """Train these weights from here on; whole numbers among them, such as positions, stay as they are."""
        self.v: dict[str, Tensor] = {}
        for name, tensor in sorted(v.items()):  # a checkpoint's order: the gradient's norm is summed in it
            here = tensor.detach().to(self.base.device, copy=True)
            self.v[name] = nn.Parameter(here) if here.is_floating_point() else here
        self.trained = {name: p for name, p in self.v.items() if p.requires_grad}
        self.best_v = {name: p.detach().clone() for name, p in self.v.items()}
        self.best_out: Out | None = None
        self.best_kind = self.kind
        self.hooked.bind(self.method.plan(self.hooked.sites, self.v))
        self._put()
        self.optimiser = adamw(self.method, self.trained, self.settings.weight_decay, self.device_type)

    def _put(self) -> None:
        self.hooked.swap(self.method.weights(self.hooked.sites, self.hooked.frozen, self.v))

    def go(self, pressed: Callable[[], bool]) -> Fit:
        """Train to the end, or until it is asked to stop."""
        settings, state = self.settings, self.state
        self.pressed = pressed
        self.clock = time.monotonic() - state.seconds
        alone = self.group.size == 1  # several processes stop together, in a step
        self._open_trunk(pressed if alone else lambda: False)
        self.saved = time.monotonic()
        while True:
            if not state.batch and self._enough():  # an epoch that was begun is closed
                if state.stage + 1 >= self.method.stages:
                    return self._fit(finished=True)
                self._advance()
            skip = state.batch
            seed = (settings.seed, state.epoch, state.stage)[: 3 if state.stage else 2]
            rows = self.source.sampled(self.train_rows, seed)
            for indices, examples in batches_of(rows, self.source.examples, settings.batch_size, seed):
                if skip:
                    skip -= 1
                    continue
                if settings.max_steps and state.step >= settings.max_steps:
                    break
                self._step(indices, examples)
                if self.stop or (alone and pressed()):
                    self.save()
                    return self._fit(finished=False)
                self._save_if_due()
            self._close_epoch()
            self._save_if_due()
            last = state.stage + 1 >= self.method.stages and self._enough()
            if alone and pressed() and not last:
                self.save()
                return self._fit(finished=False)

    def _open_trunk(self, stopped: Callable[[], bool]) -> None:
        """Have the layers that never change computed once; where that cannot be, say why."""
        before, begun = self.state.trunk, self.state.step or self.state.epoch or self.state.stage
        try:
            swapped = self.method.weights(self.hooked.sites, self.hooked.frozen, self.v)
            touched = [*self.hooked.plan, *swapped]
            precision, dropout = self.settings.trunk, self.settings.dropout
            depth = activation_cache.depth_for(self.method, self.hooked, touched, precision=precision, dropout=dropout)
            if self.kind.resamples:
                raise NotCacheable(f"kind {self.kind.name} draws its inputs anew in every step")
            if any(len(source.dataset) > Encoded.KEEP for source, _ in self.cover):
                raise NotCacheable(f"the data has more than {Encoded.KEEP:,} rows")
            activation_cache.open_cache(
                self.base, self.hooked, depth, self._inputs, self.settings.trunk, self._note, stopped
            )
            self.state.trunk = depth
        except NotCacheable as why:
            self.state.trunk = 0
            self._note(f"every layer runs in every epoch: {why}.")
        exact = self.settings.trunk != "fp16" and self.precision == "fp32"
        if begun and not exact and self.state.trunk != before:
            raise TrainingError(
                "the states of the lower layers cannot be kept as when this run began: it would not be the same run.",
                hint="Make room in the cache folder, or train without --resume.",
            )

    def _inputs(self) -> list[Encoding]:
        return [row for source, rows in self.cover for example in source.examples(rows) for row in example]

    def _note(self, text: str) -> None:
        self.on_event({"event": "note", "text": text})

    def _advance(self) -> None:
        """Begin the next stage."""
        state = self.state
        now = {name: p.detach() for name, p in self.v.items()}
        kept = {name: p for name, p in now.items() if name.startswith("head.")}
        self._take(kept | self.method.advance(self.hooked.sites, self.hooked.frozen, now, self._birth()))
        state.stage += 1
        state.epoch = state.batch = state.step = state.seen = state.best = 0

    def _course(self) -> list[dict[str, Any]]:
        """The epochs of this stage."""
        return [h for h in self.state.history if h.get("stage", 0) == self.state.stage]

    def _enough(self) -> bool:
        """Whether this stage is over: by its epochs, its patience or its steps."""
        state, settings = self.state, self.settings
        tired = state.epoch - state.best >= settings.patience
        stepped = settings.max_steps is not None and state.step >= settings.max_steps
        return state.epoch >= self.epochs or tired or stepped

    def _step(self, indices: Array, examples: list[Example]) -> None:
        """One batch: its gradient, a step of the optimiser, and word of it."""
        settings, state = self.settings, self.state
        # Progress counts rows, in the middle of the batch, so that no step has a learning rate of zero.
        progress = (state.seen + len(examples) / 2) / (self.epochs * len(self.train_rows))
        if settings.max_steps:
            progress = max(progress, (state.step + 0.5) / settings.max_steps)
        lr = learning_rate(progress, self.lr, settings.warmup)
        set_rate(self.optimiser, lr)
        loss = self._backward(indices, examples)
        for name, p in self.trained.items():
            if p.grad is None and name.startswith("head."):  # of a task that has no row in this batch
                p.grad = torch.zeros_like(p)
        value, stop = self.group.add_up(self.trained.values(), [loss, float(self.pressed())])
        self.stop = bool(stop)
        if not math.isfinite(value):
            raise Diverged(
                f"the loss is not a number any more at step {state.step + 1} of epoch {state.epoch + 1}.",
                hint=f"Try a smaller learning rate: --lr {self.lr / 10:g}",
            )
        torch.nn.utils.clip_grad_norm_(self.trained.values(), settings.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()
        state.batch += 1
        state.step += 1
        state.seen += len(examples)
        state.tokens += sum(len(row.ids) for example in examples for row in example)
        state.loss += value
        state.seconds = time.monotonic() - self.clock
        total = self.epochs * len(self.train_rows)
        self.on_event({
            "event": "step", "epoch": state.epoch + 1, "epochs": self.epochs, "step": state.step, "lr": lr,
            "loss": value / len(examples), "seen": state.seen, "total": total,
            "tokens_per_second": state.tokens / max(state.seconds, 1e-9), "seconds": state.seconds,
        })  # fmt: skip

    def _backward(self, indices: Array, examples: list[Example]) -> float:
        """Add this process's share of a batch to the gradients, in parts if asked for; the sum of its losses."""
        value, settings = 0.0, self.settings
        most = -(-len(examples) // self.group.size)  # of any process: all of them take the same number of parts
        each = self._at_once(examples, most)
        share = self.group.share(len(examples))
        indices, examples = indices[share], examples[share]
        for part, start in enumerate(range(0, most, each)):
            self._chance(part)
            if self.method.dynamic:
                self._put()
            if self.group.rank:
                self._chance(part, self.group.rank)  # gates are drawn alike by all, dropout is each one's own
            here = slice(start, start + each)
            if not (some := examples[here]):
                continue
            targets = self.source.targets(indices[here])
            some = [self.kind.for_training(example, gold) for example, gold in zip(some, targets, strict=True)]
            some = list(self.kind.resampled(some, self._number()))
            with computing_in(self.precision, self.device_type):
                rows = sum(map(len, some))
                out = forward(self.base, some, self.kind, self.v, self.pooling, batch_size=rows, hooked=self.hooked)
            # Every input weighs the same, also in a batch that is not full.
            loss = self.kind.loss(out, some, targets, self.class_weights).sum()
            penalty = self.method.penalty(self.v) if part == 0 and self.group.rank == 0 else None
            whole = loss / settings.batch_size if penalty is None else loss / settings.batch_size + penalty
            whole.backward()  # type: ignore[no-untyped-call]
            value += float(loss.detach())
        return value

    def _at_once(self, examples: list[Example], most: int) -> int:
        """How many of a batch's inputs are computed at once, of a process's share of `most`."""
        each = -(-most // self.settings.accumulate)
        if self.settings.most_tokens is None:
            return each
        longest = max(sum(len(row.ids) for row in example) for example in examples)
        return min(each, max(1, self.settings.most_tokens // longest))

    def _chance(self, *more: int) -> None:
        """What is drawn in a step is a function of the seed and the step: a resumed run draws the same."""
        torch.manual_seed(self._number(*more))

    def _number(self, *more: int) -> int:
        words = repr((self.settings.seed, self.state.stage, self.state.step, *more)).encode()
        return int.from_bytes(hashlib.sha256(words).digest()[:7], "little")

    def _close_epoch(self) -> None:
        """Score the weights on validation, and keep them where they are the best so far."""
        state = self.state
        out, examples = self.evaluate(self.precision)
        scores, loss, settled = scored(self.kind, self.checker.targets(self.validation_rows), out, examples)
        seen = state.seen - sum(h["rows"] for h in self._course())
        state.epoch += 1
        state.seconds = time.monotonic() - self.clock
        entry = {
            "epoch": state.epoch, "rows": seen, "train_loss": state.loss / max(seen, 1),
            "validation_loss": loss, **scores, "seconds": round(state.seconds, 3), **self.method.report(self.v),
        }  # fmt: skip
        if self.method.stages > 1:
            entry["stage"] = state.stage
        state.history.append(entry)
        state.batch, state.loss = 0, 0.0
        if state.best == 0 or self._is_better(entry, self._course()[state.best - 1]):
            state.best = state.epoch
            self.best_out, self.best_kind = out, settled
            state.kind = settled.state()
            self.best_v = {name: p.detach().clone() for name, p in self.v.items()}
        self.on_event({"event": "epoch", "epochs": self.epochs, "best": state.best, "metric": self.metric, **entry})

    def _is_better(self, new: dict[str, Any], old: dict[str, Any]) -> bool:
        """By the metric; where that is the same, by the loss."""
        if new[self.metric] == old[self.metric]:
            return bool(new["validation_loss"] < old["validation_loss"])
        return metrics.better(self.metric, new[self.metric], old[self.metric])

    def evaluate(self, precision: str) -> tuple[Out, list[Example]]:
        """The head's output for the validation inputs, with the weights as they are now."""
        v = {name: p.detach() for name, p in self.v.items()}
        if self.method.dynamic:
            with torch.no_grad():
                self._put()
        training = self.hooked.model.training
        self.hooked.model.eval()
        mine = self.validation_rows
        if self.kind.single:  # what has no fixed shape is computed by every process
            mine = mine[self.group.share(len(mine))]
        examples = list(self.kind.resampled(self.checker.examples(mine), None))
        parts: list[Any] = []
        for start in range(0, len(examples), 4096):
            some = examples[start : start + 4096]
            with computing_in(precision, self.device_type):
                parts.append(infer(self.base, some, self.kind, v, None, self.pooling, hooked=self.hooked))
        self.hooked.model.train(training)
        if self.kind.reads_tokens:
            return [part for found in parts for part in found], examples
        own = torch.cat(parts) if parts else torch.zeros(0, self.kind.width)
        return self.group.gather(own, len(self.validation_rows)) if self.kind.single else own, examples

    def _fit(self, *, finished: bool) -> Fit:
        """What has come of it until now."""
        v = {name: tensor.cpu() for name, tensor in self.best_v.items()}
        best = self.state.best if self.state.stage + 1 == self.method.stages else 0  # before that there is no task
        if best and self.precision != "fp32":
            self._answer_in_fp32()
        exact = self.settings.trunk != "fp16" or not self.state.trunk
        used = {"trunk_depth": self.state.trunk, "processes": self.group.size, "device": self.base.device}
        out = self.best_out if exact and self.kind.single else None
        return Fit(v, self.best_kind, self.state.history, best, self.state.seconds, finished, used, out)

    def _answer_in_fp32(self) -> None:
        """What the best weights give in fp32, as the task will; its epoch was scored in less."""
        self._take(self.best_v)
        self.best_out, examples = self.evaluate("fp32")
        self.best_kind = self.kind.calibrated(self.best_out, examples, self.checker.targets(self.validation_rows))

    def _save_if_due(self) -> None:
        if (began := time.monotonic()) - self.saved > CHECKPOINT_SECONDS * max(1.0, self.saving):
            self.save()
            self.saved = time.monotonic()
            self.saving = self.saved - began

    def save(self) -> None:
        """Write a checkpoint."""
        if self.folder is None or self.group.rank:
            return
        self.state.seconds = time.monotonic() - self.clock
        tensors = pack(self.v, self.best_v, self.optimiser)
        if self.kind.single and isinstance(self.best_out, Tensor):
            tensors["logits"] = self.best_out
        checkpoint.write(self.folder, tensors, {"identity": self.identity, **vars(self.state)})

    def restore(self) -> None:
        """Go on from the last checkpoint, which must be of this very run."""
        assert self.folder is not None
        found = checkpoint.read(self.folder)
        if found is None:
            raise TrainingError("there is no run to resume under this name.", hint="Train without --resume.")
        tensors, state = found
        if state.pop("identity") != self.identity:
            raise TrainingError(
                "the run to resume had other data or settings.",
                hint="Repeat its command exactly, or leave out --resume.",
            )
        self.state = State(**state)
        self._take(weights(tensors, NOW))
        best = weights(tensors, BEST)
        self.best_v = {name: best[name].to(p.device) for name, p in self.v.items()}
        self.best_out = tensors.get("logits")
        self.best_kind = self.kind.with_state(self.state.kind) if self.state.best else self.kind
        restore_moments(self.optimiser, self.v, tensors)

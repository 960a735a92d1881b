"""The training loop: a task's weights over a frozen base. The same seed gives the same bits, resumed or not."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptree.compose.blocks import Dropped
from adaptree.data.batch import epoch as batches_of
from adaptree.data.encode import Encoding
from adaptree.data.events import Listener, note, silent
from adaptree.errors import CannotResume, Diverged, StoreError
from adaptree.kinds import Example, Kind, Out, metrics
from adaptree.methods import Method
from adaptree.methods.method import digest_of
from adaptree.models import activation_cache
from adaptree.models.base import Base
from adaptree.models.cache_files import NotCacheable
from adaptree.models.forward import forward, infer, states, vectors
from adaptree.models.hooks import without_dropout
from adaptree.training import checkpoint, sharded
from adaptree.training.distributed import ProcessGroup
from adaptree.training.encoded import EncodedDataset
from adaptree.training.estimate import Estimate, lengths, steps_of
from adaptree.training.optimiser import adamw, clip, set_rate
from adaptree.training.precision import computing_in
from adaptree.training.result import Fit, evaluate_output
from adaptree.training.settings import CONTRASTIVE, HEAD_FIRST, Settings, learning_rate
from adaptree.training.solve import MOST_BYTES, Problem, solve_head
from adaptree.training.standalone import fit_standalone
from adaptree.training.state import BEST, NOW, State, pack, restore_moments, weights
from adaptree.training.warn import FELL, FIRST_STEPS, not_learned
from adaptree.training.work.interrupt import ctrl_c, interruptible, shielded

Array = np.ndarray[Any, Any]
CHECKPOINT_SECONDS = 20.0
"""Between two checkpoints; longer where saving one takes more than a second."""
IN_PARTS = ("accumulate", "most_tokens")
"""Settings that a resumed run may change: they say in how many parts a step is computed, not which step it is."""


def fit(
    base: Base,
    method: Method,
    kind: Kind,
    training: tuple[EncodedDataset, Array],
    validation: tuple[EncodedDataset, Array],
    settings: Settings,
    *,
    folder: Path | None = None,
    resume: bool = False,
    cover: Sequence[tuple[EncodedDataset, Array]] = (),
    start: Mapping[str, Tensor] | None = None,
    head: Mapping[str, Tensor] | None = None,
    on_event: Listener = silent,
) -> Fit:
    """Train a task and return the best epoch's weights. `training` and `validation` are datasets, each with some rows.

    `folder` keeps checkpoints; with `resume` the run goes on from the last one, bit for bit. `cover` are further rows
    that the activation cache is to hold, so that several runs on parts of them share one. `start` are weights to begin
    with in the place of the method's initial ones; where they have no head, it is initial. `head` is one that stays as
    it is.
    """
    if method.standalone:
        return fit_standalone(method, kind, training, validation, settings, on_event)
    from adaptree.training.contrastive import ContrastiveTrainer

    cover = (training, validation, *cover)
    trained_by = ContrastiveTrainer if settings.objective == CONTRASTIVE else Trainer
    trainer = trained_by(base, method, kind, training, validation, settings, folder, cover, on_event, start, head)
    if trainer.only_head and trainer.solvable:
        with ctrl_c() as pressed:
            return trainer.solve(pressed)
    if resume and folder is not None:
        trainer.restore()
    with ctrl_c() as pressed:
        try:
            with shielded():
                fitted = trainer.train(pressed)
            with interruptible():
                return fitted
        except Diverged:
            raise
        except BaseException:  # also Ctrl-C, pressed twice: what was trained is kept
            trainer.keep()
            raise


class Trainer:
    """One training run: a copy of the base's modules with the weights in it, their optimiser, and the run's state."""

    def __init__(
        self,
        base: Base,
        method: Method,
        kind: Kind,
        training: tuple[EncodedDataset, Array],
        validation: tuple[EncodedDataset, Array],
        settings: Settings,
        folder: Path | None,
        cover: Sequence[tuple[EncodedDataset, Array]],
        on_event: Listener,
        start: Mapping[str, Tensor] | None = None,
        head: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.given_head = dict(head or {})
        """A head that is not trained."""
        self.base, self.method, self.kind, self.settings = base, method.for_kind(kind.name), kind, settings
        self.device_type = torch.device(base.device).type
        self.folder, self.cover, self.on_event = folder, cover, on_event
        if settings.epochs is None or settings.lr is None or settings.metric is None or settings.pooling is None:
            raise ValueError("settings must be resolved before a run")
        self.epochs, self.lr = settings.epochs, settings.lr
        self.metric, self.pooling = settings.metric, settings.pooling
        self.precision = settings.precision or "fp32"
        self.source, self.train_rows = training
        self.validation, self.validation_rows = validation
        self.group = ProcessGroup(base.device)
        self.sharded = sharded.wanted(self.method, kind, base)
        """Whether each process keeps only a shard of the weights (FSDP)."""
        torch.manual_seed(settings.seed)
        self._copy_base()
        first = self._initial()
        own_head = {name: tensor for name, tensor in first.items() if name.startswith("head.")}
        self.continues = start is not None and own_head.keys() <= start.keys()
        """Whether this goes on with the same task: a start without a head is another task's."""
        self._load(first if start is None else {**own_head, **start})
        self.class_weights: Tensor | None = None
        if settings.class_weights:
            self.class_weights = kind.class_weights(self.source.targets(self.train_rows)).to(base.device)
        self.dropped: Dropped | None = None
        """The method without its lowest layers, in a step that leaves them out (`Settings.adapter_drop`)."""
        self.state = State()
        self.saving = 0.0
        self.exact = True
        """Whether the states of the lower layers are those that the task will compute, not rounded to fp16."""
        self.stop = False
        self.between_steps = False
        """Whether weights and state belong together, so that they can be saved; not within a step."""
        self.first_losses: list[float] = []
        self.estimate = self._estimate()
        same = {name: value for name, value in settings.to_dict().items() if name not in IN_PARTS}
        self.identity = hashlib.sha256(
            repr(
                (same, repr(method), base.fingerprint, kind, self.source.digest,
                 self.validation.digest, self.train_rows.tobytes(), self.validation_rows.tobytes(),
                 *([digest_of([(method, head)])] if head else []))
            ).encode()
        ).hexdigest()  # fmt: skip
        self.group.check_same(self.identity)

    def _copy_base(self) -> None:
        """Make this run's own copy of the modules, over the base's tensors."""
        self.hooked = self.base.hooked.copy()
        if self.settings.dropout:
            self.hooked.model.train()
        else:
            without_dropout(self.hooked.backbone)

    def _initial(self) -> dict[str, Tensor]:
        """Return the initial weights, a function of the seed."""
        generator = torch.Generator().manual_seed(self.settings.seed)
        v = self.method.init(self.hooked.sites, self.base.hooked.backbone, generator)
        own = self.kind.init(self.base.width, generator) | self.base.head_for(self.kind)
        return v | own | self.given_head

    def _load(self, v: Mapping[str, Tensor]) -> None:
        """Train these weights from here on, but for whole numbers, such as positions, and what the method freezes."""
        self.v: dict[str, Tensor] = {}
        for name, tensor in sorted(v.items()):  # a checkpoint's order: the gradient's norm is summed in it
            here = tensor.detach().to(self.base.device, copy=True)
            trained = here.is_floating_point() and name not in self.given_head and not self.method.freezes(name)
            self.v[name] = nn.Parameter(here) if trained else here
        if self.sharded:
            self._shard()
        self.trained = {name: p for name, p in self.v.items() if p.requires_grad}
        self.best_v = {name: p.detach().clone() for name, p in self.v.items()}
        self.best_out: Out | None = None
        self.best_kind = self.kind
        self._act(self.method)
        self.optimiser = adamw(self.method, self.trained, self.settings.weight_decay, self.device_type)

    def _shard(self) -> None:
        """Put the weights into a new copy of the modules, and keep a shard of each in their place."""
        self._copy_base()
        self._act(self.method)
        names = [name.removeprefix("weight.") for name in self.v if name.startswith("weight.")]
        found = sharded.shard(self.hooked, names, self.device_type)
        self.v |= {f"weight.{name}": p for name, p in found.items()}

    def _swap_weights(self) -> None:
        self.hooked.swap(self.method.weights(self.hooked.sites, self.hooked.frozen, self.v))

    def _swap_now(self) -> None:
        """Put in the weights that a dynamic method makes of v as it is now, without gradients."""
        if self.method.dynamic:
            with torch.no_grad():
                self._swap_weights()

    @property
    def only_head(self) -> bool:
        """Whether nothing but the head is trained."""
        return all(name.startswith("head.") for name in self.trained)

    @property
    def chooses_nothing(self) -> bool:
        """Whether nothing is chosen on the validation rows: neither an epoch nor when to stop."""
        return self.only_head and self.solvable

    @property
    def solvable(self) -> bool:
        """Whether the head can be solved: it is linear, and what it reads for all training rows fits in memory."""
        if not self.kind.linear_head or self.kind.resamples or self.group.size > 1 or self.given_head:
            return False
        if len(self.source) > EncodedDataset.KEEP:
            return False
        examples = self.source.examples(self.train_rows)
        counts = (len(row.ids) if self.kind.reads_tokens else 1 for example in examples for row in example)
        return sum(counts) * self.base.width * 8 <= MOST_BYTES

    def solve_head(self) -> float:
        """Put the head that is solved on the training rows into the weights; return the strength of its penalty."""
        rows = self.train_rows
        examples = self.source.examples(rows)
        problem = Problem(
            self.kind, examples, self._read(examples), self.source.targets(rows), self.class_weights,
            self.source.weights(rows),
        )  # fmt: skip
        head, strength = solve_head(problem, self.source.strata(rows), self.settings.seed)
        with torch.no_grad():
            for name, tensor in head.items():
                self.v[name].copy_(tensor)
        return strength

    def _read(self, examples: Sequence[Example]) -> list[Tensor]:
        """Return what the head reads of each example with the current weights: its rows' vectors, or all its tokens."""
        self._swap_now()
        training = self.hooked.model.training
        self.hooked.model.eval()
        tokens = self.kind.reads_tokens
        with computing_in(self.precision, self.device_type):
            read = states if tokens else vectors
            found = list(
                read(self.base, [row for example in examples for row in example], self.pooling, hooked=self.hooked)
            )
        self.hooked.model.train(training)
        ends = np.cumsum([len(example) for example in examples]).tolist()
        join = torch.cat if tokens else torch.stack
        return [join(found[end - len(example) : end]) for example, end in zip(examples, ends, strict=True)]

    def solve(self, pressed: Callable[[], bool]) -> Fit:
        """Solve the head, where nothing else is trained; the history has one epoch."""
        self.clock = time.monotonic()
        self._open_cache(pressed)
        strength = self.solve_head()
        self.state.seen = len(self.train_rows)
        self._close_epoch(penalty=strength)
        return self._fit(finished=True)

    def train(self, pressed: Callable[[], bool]) -> Fit:
        """Train to the end, or until `pressed()` is true: Ctrl-C was pressed."""
        settings, state = self.settings, self.state
        self.pressed = pressed
        self.clock = time.monotonic() - state.seconds
        alone = self.group.size == 1  # several processes stop together, in a step
        self._open_cache(pressed if alone else lambda: False)
        if settings.objective == HEAD_FIRST and self.solvable and not (state.step or state.epoch or state.stage):
            self.solve_head()
        self.saved = time.monotonic()
        self.between_steps = True
        while True:
            if not state.batch and self._stage_over():  # not within an epoch: that is finished first
                if state.stage + 1 >= self.method.stages:
                    return self._fit(finished=True)
                self._advance()
            skip = state.batch
            seed = (settings.seed, state.epoch, state.stage)[: 3 if state.stage else 2]
            for indices, examples in self.batches(seed):
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
            last = state.stage + 1 >= self.method.stages and self._stage_over()
            if alone and pressed() and not last:
                self.save()
                return self._fit(finished=False)

    def batches(self, seed: Sequence[int]) -> Iterator[tuple[Array, list[Example]]]:
        """Yield the rows and examples of each batch of an epoch, in an order that depends on `seed` alone."""
        rows = self.source.sampled(self.train_rows, seed)
        return batches_of(rows, self.source.examples, self.settings.batch_size, seed)

    @property
    def total(self) -> int:
        """How many rows a stage shows in all, if it is not stopped early."""
        return self.epochs * len(self.train_rows)

    def _open_cache(self, stopped: Callable[[], bool]) -> None:
        """Compute the layers that never change once, in the activation cache; send a note if that cannot be."""
        precision, depth = self.settings.activation_cache, 0
        self.state.cached_layers, self.exact = 0, True
        try:
            swapped = self.method.weights(self.hooked.sites, self.hooked.frozen, self.v)
            touched = [*self.hooked.plan, *swapped]
            lowest = activation_cache.depth_for(self.method, self.hooked, touched, dropout=bool(self.settings.dropout))
            if self.kind.resamples:
                raise NotCacheable(f"kind {self.kind.name} samples its inputs anew in every step")
            depth = lowest
            if any(len(source) > EncodedDataset.KEEP for source, _ in self.cover):
                raise NotCacheable(f"the data has more than {EncodedDataset.KEEP:,} rows")
            activation_cache.open_cache(
                self.base, self.hooked, depth, self._encodings, precision, partial(note, self.on_event), stopped
            )
            self.state.cached_layers, self.exact = depth, precision != "fp16"
        except NotCacheable as why:
            note(self.on_event, f"every layer runs in every epoch: {why}.")
            if depth and (precision == "fp16" or self.precision != "fp32"):
                with suppress(NotCacheable):  # never cached, then: all runs compute it as a whole
                    activation_cache.compute_below(self.base, self.hooked, depth, precision)
                    self.exact = precision != "fp16"

    def _encodings(self) -> list[Encoding]:
        return [row for source, rows in self.cover for example in source.examples(rows) for row in example]

    def _advance(self) -> None:
        """Begin the method's next stage, from the weights as they are now."""
        state = self.state
        self.between_steps = False
        now = {name: p.detach() for name, p in self.v.items()}
        kept = {name: p for name, p in now.items() if name.startswith("head.")}
        self._load(kept | self.method.advance(self.hooked.sites, self.hooked.frozen, now, self._initial()))
        state.stage += 1
        state.epoch = state.batch = state.step = state.seen = state.best = 0
        self.between_steps = True

    def _stage_history(self) -> list[dict[str, Any]]:
        """Return the epochs of this stage."""
        return [h for h in self.state.history if h.get("stage", 0) == self.state.stage]

    def _stage_over(self) -> bool:
        """Return whether this stage has had all its epochs or steps, or stops early."""
        state, settings = self.state, self.settings
        stepped = settings.max_steps is not None and state.step >= settings.max_steps
        return state.epoch >= self.epochs or stepped or (self.method.stops_early(self.v) and self._stagnates())

    def _stagnates(self) -> bool:
        """Return whether the last epochs, as many as the patience, brought nothing.

        A perfect score cannot get better, though the loss may. A run that never got better than its first epoch may be
        starting slowly: it has half of its epochs to do so.
        """
        state, patience = self.state, self.settings.patience or 1
        if state.best <= 1 and state.epoch < self.epochs / 2:
            return False
        perfect = [h["epoch"] for h in self._stage_history() if metrics.perfect(self.metric, h[self.metric])]
        return bool(state.epoch - min([state.best, *perfect]) >= patience)

    def _step(self, indices: Array, examples: list[Example]) -> None:
        """Compute the gradient of one batch, take a step of the optimiser, and report it."""
        settings, state = self.settings, self.state
        # Progress counts rows, in the middle of the batch, so that no step has a learning rate of zero.
        progress = (state.seen + len(examples) / 2) / self.total
        if settings.max_steps:
            progress = max(progress, (state.step + 0.5) / settings.max_steps)
        lr = learning_rate(progress, self.lr, settings.warmup)
        set_rate(self.optimiser, lr)
        with interruptible(), self._without_lowest():
            loss = self._backward(indices, examples)
            for name, p in self.trained.items():
                # Of a task that has no row in this batch, or of layers that this step leaves out.
                if p.grad is None and (name.startswith("head.") or self.dropped):
                    p.grad = torch.zeros_like(p)
        own = [p for p in self.trained.values() if not sharded.is_sharded(p)]  # FSDP has added up the others
        value, stop = self.group.all_reduce(own, [loss, float(self.pressed())])
        self.stop = bool(stop)
        if not math.isfinite(value):
            raise Diverged(
                f"the loss is not a number any more at step {state.step + 1} of epoch {state.epoch + 1}.",
                hint=f"Try a smaller learning rate: --lr {self.lr / 10:g}",
            )
        self.between_steps = False
        clip(self.method, self.trained, settings.clip, self.group)
        self.optimiser.step()
        self.optimiser.zero_grad()
        state.batch += 1
        state.step += 1
        state.seen += len(examples)
        state.tokens += sum(len(row.ids) for example in examples for row in example)
        state.loss += value
        state.seconds = time.monotonic() - self.clock
        self.between_steps = True
        if len(self.first_losses) < FIRST_STEPS:
            self.first_losses.append(value / len(examples))
        self.estimate.after_step(state)
        self.on_event({
            "event": "step", "epoch": state.epoch + 1, "epochs": self.epochs, "step": state.step, "lr": lr,
            "loss": value / len(examples), "seen": state.seen, "total": self.total,
            "tokens_per_second": state.tokens / max(state.seconds, 1e-9), "seconds": state.seconds,
        })  # fmt: skip

    @contextlib.contextmanager
    def _without_lowest(self) -> Iterator[None]:
        """Leave out what `drop` would remove of the lowest layers, as many of them as are drawn for this step."""
        if not (count := self._step_seed("adapter_drop") % (self.settings.adapter_drop + 1)):
            yield
            return
        self.dropped = Dropped([(self.method, self.v)], f"0-{count - 1}")
        self._act(self.dropped)
        try:
            yield
        finally:
            self.dropped = None
            self._act(self.method)

    def _act(self, method: Method) -> None:
        """Let a method over the weights act in the model from now on."""
        self.hooked.bind(method.plan(self.hooked.sites, self.v))
        self.hooked.swap(method.weights(self.hooked.sites, self.hooked.frozen, self.v))

    def _backward(self, indices: Array, examples: list[Example]) -> float:
        """Add the gradients of this process's shard of a batch, computed in parts; return the sum of its losses."""
        value, settings = 0.0, self.settings
        v = self.v if self.dropped is None else self.dropped.left(self.hooked.sites, self.v)
        most = -(-len(examples) // self.group.size)  # of any process: all of them take the same number of parts
        each = self._part_size(examples, most)
        share = len(examples) / settings.batch_size
        shard = self.group.shard(len(examples))
        first = indices[:1], examples[:1]
        indices, examples = indices[shard], examples[shard]
        for part, start in enumerate(range(0, most, each)):
            self._seed_step(part)
            if self.method.dynamic:
                self._swap_weights()
            if self.group.rank:
                self._seed_step(part, self.group.rank)  # gates are the same in all processes, dropout is not
            here = slice(start, start + each)
            at, some = indices[here], examples[here]
            if idle := not some:
                if not self.sharded:
                    continue
                at, some = first  # every process gathers the weights of each part, and this one computes for nothing
            targets = self.source.targets(at)
            some = [self.kind.for_training(example, target) for example, target in zip(some, targets, strict=True)]
            some = list(self.kind.resampled(some, self._step_seed()))
            with computing_in(self.precision, self.device_type):
                rows = sum(map(len, some))
                out = forward(self.base, some, self.kind, v, self.pooling, batch_size=rows, hooked=self.hooked)
            # Every example weighs the same, also in a batch that is not full.
            losses = self.kind.loss(out, some, targets, self.class_weights)
            loss = self.source.weighted(losses, at).sum() * (0.0 if idle else 1.0)
            penalty = self.method.penalty(self.v) if part == 0 and self.group.rank == 0 else None
            whole = loss / settings.batch_size
            if penalty is not None:  # once a step, and of a batch that is not full its share, as of the loss
                whole = whole + share * penalty
            whole.backward()  # type: ignore[no-untyped-call]
            value += float(loss.detach())
        return value

    def _part_size(self, examples: list[Example], most: int) -> int:
        """Return how many of the at most `most` examples of a shard are computed at once."""
        each = -(-most // self.settings.accumulate)
        if self.settings.most_tokens is None:
            return each
        longest = max(sum(len(row.ids) for row in example) for example in examples)
        return min(each, max(1, self.settings.most_tokens // longest))

    def _seed_step(self, *more: int) -> None:
        """Seed torch for this step, so that a resumed run draws the same random numbers."""
        torch.manual_seed(self._step_seed(*more))

    def _step_seed(self, *more: int | str) -> int:
        words = repr((self.settings.seed, self.state.stage, self.state.step, *more)).encode()
        return int.from_bytes(hashlib.sha256(words).digest()[:7], "little")

    def _close_epoch(self, **more: float) -> None:
        """Score the weights on validation, and keep them if they are the best so far; `more` goes into the history."""
        state = self.state
        out: Out | None = None
        scores: dict[str, float] = {}
        loss, calibrated = math.nan, self.kind
        if len(self.validation_rows):
            with interruptible():
                out, examples = self.evaluate()
            targets = self.validation.targets(self.validation_rows)
            scores, loss, calibrated = evaluate_output(self.kind, targets, out, examples)
        seen = state.seen - sum(h["rows"] for h in self._stage_history())
        self.between_steps = False
        state.epoch += 1
        state.seconds = time.monotonic() - self.clock
        entry = {
            "epoch": state.epoch, "rows": seen, "train_loss": state.loss / max(seen, 1),
            "validation_loss": loss, **scores, "seconds": round(state.seconds, 3), **self.method.report(self.v), **more,
        }  # fmt: skip
        if self.method.stages > 1:
            entry["stage"] = state.stage
        state.history.append(entry)
        state.batch, state.loss = 0, 0.0
        if state.best == 0 or self._is_better(entry, self._stage_history()[state.best - 1]):
            state.best = state.epoch
            self.best_out, self.best_kind = out, calibrated
            state.kind = calibrated.state()
            self.best_v = {name: p.detach().clone() for name, p in self.v.items()}
        self.between_steps = True
        if scores:
            self.on_event({
                "event": "epoch", "epochs": self.epochs, "best": state.best, "metric": self.metric, **entry,
                "left": self.estimate.left(state),
            })  # fmt: skip

    def _is_better(self, new: dict[str, Any], old: dict[str, Any]) -> bool:
        """Return whether an epoch has a better metric than another, or at the same metric a lower loss."""
        if new[self.metric] == old[self.metric]:
            return bool(new["validation_loss"] < old["validation_loss"])
        return metrics.better(self.metric, new[self.metric], old[self.metric])

    def evaluate(self) -> tuple[Out, list[Example]]:
        """Return the head's output for the validation examples with the current weights, and the examples.

        It is computed in fp32, as the task will: an epoch's scores and the task's are the same numbers.
        """
        v = {name: p.detach() for name, p in self.v.items()}
        self._swap_now()
        training = self.hooked.model.training
        self.hooked.model.eval()
        mine = self.validation_rows
        if self.kind.single:  # outputs without a fixed shape are computed by every process
            mine = mine[self.group.shard(len(mine))]
        examples = list(self.kind.resampled(self.validation.examples(mine), None))
        parts: list[Any] = []
        with sharded.gathered(self.hooked) if self.sharded else contextlib.nullcontext():
            for start in range(0, len(examples), 4096):
                some = examples[start : start + 4096]
                parts.append(infer(self.base, some, self.kind, v, None, self.pooling, hooked=self.hooked))
        self.hooked.model.train(training)
        if self.kind.reads_tokens:
            return [part for found in parts for part in found], examples
        own = torch.cat(parts) if parts else torch.zeros(0, self.kind.width)
        return self.group.gather(own, len(self.validation_rows)) if self.kind.single else own, examples

    def _fit(self, *, finished: bool) -> Fit:
        """Return the best weights so far as the result."""
        v = {name: sharded.whole(tensor) for name, tensor in self.best_v.items()}
        best = self.state.best if self.state.stage + 1 == self.method.stages else 0  # before that there is no task
        used = {
            "cached_layers": self.state.cached_layers,
            "processes": self.group.size,
            "device": self.base.device,
            **({"sharded": True} if self.sharded else {}),
        }
        out = self.best_out if self.exact and self.kind.single else None
        return Fit(
            v, self.best_kind, self.state.history, best, self.state.seconds, finished, self.chooses_nothing, used, out,
            self.warnings if finished else list, self.keep,
        )  # fmt: skip

    def warnings(self) -> list[str]:
        """Return a warning if the loss never fell; the loss at the start is computed only where that is likely."""
        if not self.state.step or not len(self.validation_rows):
            return []
        if min(h["train_loss"] for h in self.state.history) < FELL * min(self.first_losses, default=0.0):
            return []
        return not_learned(self.state.history, self._loss_at_start(), self.lr, self.method)

    def _loss_at_start(self) -> float:
        """Return the loss on validation of the weights that the run began with."""
        first = copy.copy(self)
        with warnings.catch_warnings():  # what is odd about the method was said when training began
            warnings.simplefilter("ignore")
            first._load(self._initial())
        out, examples = first.evaluate()
        targets = self.validation.targets(self.validation_rows)
        return float(self.kind.loss(out, examples, targets).double().mean())

    def _estimate(self) -> Estimate:
        rows, (tokens, longest) = len(self.train_rows), lengths(self.source, self.train_rows)
        scored, _ = lengths(self.validation, self.validation_rows)
        steps = steps_of(longest, rows, self.settings.batch_size)
        return Estimate(self.settings, self.method.stages, self.total, rows, steps, tokens, scored, self.on_event)

    def _save_if_due(self) -> None:
        due = (began := time.monotonic()) - self.saved > CHECKPOINT_SECONDS * max(1.0, self.saving)
        if self.group.broadcast(due) if self.sharded else due:
            self.save()
            self.saved = time.monotonic()
            self.saving = self.saved - began

    def save(self) -> None:
        """Write a checkpoint: of several processes the first does, and with FSDP the others send their shards."""
        if self.folder is None or (self.group.rank and not self.sharded):
            return
        self.state.seconds = time.monotonic() - self.clock
        tensors: dict[str, Tensor] = {}
        for name, tensor in pack(self.v, self.best_v, self.optimiser):
            if self.group.rank == 0:
                tensors[name] = tensor
        if self.group.rank:
            return
        if self.kind.single and isinstance(self.best_out, Tensor):
            tensors["logits"] = self.best_out
        checkpoint.write(self.folder, tensors, {"identity": self.identity, **vars(self.state)})

    def keep(self) -> None:
        """Write a checkpoint of the last finished step, if the run has one and ends within the next."""
        state = self.state
        if self.sharded:  # the other processes may be gone, and their shards with them: the last checkpoint counts
            return
        if self.between_steps and (state.step or state.epoch or state.stage):
            with contextlib.suppress(StoreError), shielded():
                self.save()

    def restore(self) -> None:
        """Load the last checkpoint, if there is one; raise CannotResume unless it is of this very run.

        Of several processes the first one reads it, for all: the folder may be on a disk of its machine alone.
        """
        folder = self.folder
        assert folder is not None
        read: list[dict[str, Tensor]] = []

        def state_of() -> dict[str, Any] | None:
            if (found := checkpoint.read(folder)) is None:
                return None
            read.append(found[0])
            return found[1]

        if (state := self.group.by_first(state_of)) is None:
            return
        tensors = self.group.broadcast_tensors(read[0] if read else {})
        if state.pop("identity") != self.identity:
            raise CannotResume(
                "the run to resume had other data or settings.",
                hint="Repeat its command exactly, or leave out --resume.",
            )
        self.state = State(**state)
        self._load(weights(tensors, NOW))
        best = weights(tensors, BEST)
        self.best_v = {name: sharded.like(p.detach(), best[name]) for name, p in self.v.items()}
        self.best_out = tensors.get("logits")
        if self.state.best:
            self.best_kind = self.kind.with_state(self.state.kind)
        restore_moments(self.optimiser, self.v, tensors)

"""The base: a frozen model with its tokenizer, which tasks are bound to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor

from adaptree import compose
from adaptree.compose import Expression, Parallel, Rows, Tasks
from adaptree.data.batch import collate
from adaptree.data.encode import Encoder, Encoding
from adaptree.kinds import Kind
from adaptree.kinds.kind import as_texts
from adaptree.methods.method import Shapes
from adaptree.models import encoder_decoder
from adaptree.models.bound import Bound
from adaptree.models.fit import check_fit
from adaptree.models.forward import vectors
from adaptree.models.hooks import HookedModel
from adaptree.models.several import ParallelTasks, RowTasks

if TYPE_CHECKING:
    from adaptree.tasks.task import Task


class Base:
    """One frozen model with its tokenizer. Tasks are bound to it as data; it holds none of them."""

    def __init__(
        self,
        name: str,
        hooked: HookedModel,
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
        """The name or path that `load_base` finds it by on this machine."""
        self.hooked = hooked
        self.encoder = encoder
        self.pooling = pooling
        self.limit = limit
        """The longest input, in tokens."""
        self.fingerprint = digest
        self.device = device
        self._folder = folder
        self._shapes: dict[Any, Shapes] = {}

    @property
    def width(self) -> int:
        return self.hooked.sites.sites[0].width

    def head_for(self, kind: Kind) -> dict[str, Tensor]:
        """Return the head that this base was pretrained with for a kind of task; empty if it has none."""
        return {} if self._folder is None else kind.pretrained_head(self._folder, self.width)

    def files(self, pattern: str) -> list[Path]:
        """Return its files on this machine whose names match a pattern."""
        return [] if self._folder is None else sorted(self._folder.glob(pattern))

    @property
    def embeddings(self) -> Tensor:
        """The input embeddings, (words, width)."""
        backbone: Any = self.hooked.backbone
        return backbone.get_input_embeddings().weight  # type: ignore[no-any-return]

    def words(self, hooked: HookedModel | None = None) -> Tensor:
        """Return the output embeddings, (words, width), of this base or a copy of it; the input's, if it writes none.

        A copy may have embeddings of its own, which are then those of its output, too.
        """
        if self.encoder.writer is None:
            return self.embeddings
        model: Any = (hooked or self.hooked).model
        return model.get_output_embeddings().weight  # type: ignore[no-any-return]

    def hidden(self, rows: Sequence[Encoding], hooked: HookedModel | None = None) -> tuple[Tensor, Tensor]:
        """Return last hidden states and mask of some encoded rows, in this base or in a copy of it."""
        hooked, writer = hooked or self.hooked, self.encoder.writer
        if writer is not None and writer.start is not None:
            return encoder_decoder.hidden(rows, hooked, writer.start, self.encoder.pad_id, self.device)
        inputs = collate(rows, self.encoder.pad_id, self.device)
        if hooked.feed is not None:
            hooked.feed(rows)
        return hooked.backbone(**inputs).last_hidden_state, inputs["attention_mask"]

    def features(self, inputs: Any, *, batch_size: int = 64) -> Tensor:
        """Return the pooled vector of each text or pair under no task, (n, width)."""
        texts = as_texts([inputs] if isinstance(inputs, str) else inputs)
        rows = self.encoder.encode(texts, self.limit) if texts else []
        with self.hooked.running({}):
            return vectors(self, rows, self.pooling, batch_size)

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
        """Return the base with this task, or with a composition of some in `tasks`, ready to predict.

        That is a `Bound`; for parallel(…) a `ParallelTasks`, for rows(…) a `RowTasks`. `on` puts other tasks below this
        one, the lowest first, instead of those it was trained on. `int8` computes the linear maps of a copy of the base
        in int8: faster on a CPU, and refused when it changes the predictions.
        """
        if isinstance(task, str | Expression):
            expression, tasks = compose.parse(task), tasks if tasks is not None else {}
            if isinstance(expression, Parallel | Rows):
                parts = {repr(part): self.bind(part, tasks=tasks, int8=int8) for part in expression.parts}
                several = ParallelTasks if isinstance(expression, Parallel) else RowTasks
                return several(expression, self, parts)
            return Bound(self, compose.compile_(expression, tasks, self.device, self.check), int8=int8)
        return Bound(self, compose.of_task(task, on=on, device=self.device, check=self.check), int8=int8)

    def check(self, task: Task) -> None:
        """Raise WrongBase for a task of another base, TaskCorrupt if its record or its weights do not fit this one."""
        check_fit(task, self, self._shapes)

    def __reduce__(self) -> tuple[Any, ...]:
        """A base is pickled as the place where it is: another process opens it there, once."""
        from adaptree.models.loading import reopened

        where, writer = Path(self.location), self.encoder.writer
        writes = writer is not None and writer.start is not None
        return reopened, (where if where.is_dir() else self.location, self.device, self.fingerprint, writes)

    def __repr__(self) -> str:
        return (
            f"Base({self.name}: {self.hooked.sites.architecture}, {self.hooked.sites.depth} layers, {self.width} wide)"
        )

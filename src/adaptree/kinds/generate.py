"""Writing a text for each input: a language model learns the outputs of some prompts, token by token.

The output layer is the base's own and is not trained, so a task has no head. The loss is that of the output's tokens,
and of the token that ends it; the prompt is only read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from adaptree.data.cells import as_text, is_absent, is_empty
from adaptree.data.columns import find_column, must_have, plain_name
from adaptree.data.encode import Encoder, Encoding
from adaptree.data.form import Form, Row
from adaptree.data.writer import CHAT, Writer
from adaptree.errors import BaseError, DataError, UsageError
from adaptree.kinds import bootstrap, findings
from adaptree.kinds.findings import Evaluated, Section, Table
from adaptree.kinds.kind import Aim, Example, Kind, Out, by_example
from adaptree.methods import Params

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from adaptree.data.dataset import Dataset
    from adaptree.tasks.record import Record

Array = np.ndarray[Any, Any]
TOP = 5
CUTS = ("left", "right")
"""The end of a prompt that is too long at which it is cut."""
SHORTEST_OUTPUT = 16
"""Tokens of an output that a long prompt leaves room for."""
NAMES = {
    "text": ("prompt", "instruction", "input", "source", "src"),
    "context": ("input", "context"),
    "label": ("completion", "output", "response", "target", "tgt"),
}
CERTAIN = ("prompt", "instruction")
"""Columns of which it is plain that something is to be written for them."""
MESSAGES = ("messages", "conversations", "conversation")
SPEAKERS = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
"""What other files call the roles of a chat."""


class Output(NamedTuple):
    """Where in a row the output begins; at its end where there is none."""

    start: int


@dataclass(frozen=True)
class GenerateForm(Form):
    """Inputs are {"prompt": text} or {"messages": [{"role", "content"}]}, targets the text that comes next."""

    needs: ClassVar[str] = "A column of prompts and one of outputs (prompt and completion), or one of messages."
    input_columns: ClassVar[tuple[str, ...]] = ("text", "context")

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], columns: Mapping[str, str | None]) -> Form | None:
        must_have(names, columns.values())
        if columns.get("text") is None and (found := find_column(MESSAGES, names)) and _has_messages(sample, found):
            return cls({"messages": found}, f"'{found}' holds the messages of chats")
        text = columns.get("text") or find_column(NAMES["text"], names)
        label = columns.get("label") or find_column(NAMES["label"], [name for name in names if name != text])
        if not text or not label or text == label:
            return None
        if plain_name(text) in CERTAIN or _are_texts(row.get(label) for row in sample):
            rest = [name for name in names if name not in (text, label)]
            context = columns.get("pair") or find_column(NAMES["context"], rest)
            parts = {"text": text, "context": context, "label": label}
            return cls(parts, f"'{label}' holds what is to be written for '{text}'")
        return None

    def input(self, row: Row, number: int, name: str) -> dict[str, Any] | None:
        if column := self.columns.get("messages"):
            read = _messages(row.get(column), f"row {number} of '{name}'")
            if read and read[-1]["role"] == "assistant":
                read = read[:-1]
            return {"messages": read} if read else None
        texts = [
            as_text(row.get(column), number, column, name)
            for key in self.input_columns
            if (column := self.columns.get(key))
        ]
        return None if all(map(is_empty, texts)) else {"prompt": "\n\n".join(text for text in texts if text.strip())}

    def target(self, row: Row, given: Any, number: int, name: str) -> str | None:
        if column := self.columns.get("messages"):
            read = _messages(row.get(column), f"row {number} of '{name}'")
            return read[-1]["content"] if read and read[-1]["role"] == "assistant" else None
        column = self.columns.get("label") or ""
        if column not in row or is_absent(row[column]):
            return None
        text = as_text(row[column], number, column, name)
        return None if is_empty(text) else text

    def text(self, given: Any) -> str:
        if "prompt" in given:
            return str(given["prompt"])
        return "\n".join(f"{each['role']}: {each['content']}" for each in given["messages"])


def _are_texts(values: Iterable[Any]) -> bool:
    """Return whether these are texts that somebody wrote, and not labels: most differ, and have several words."""
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    words = sum(len(text.split()) for text in texts)
    return bool(texts) and len(set(texts)) > len(texts) / 2 and words >= 3 * len(texts)


def _messages(value: Any, where: str) -> list[dict[str, str]]:
    """Return the messages of a chat; raise DataError for what are none."""
    if is_absent(value):
        return []
    wrong = DataError(
        f"{where} holds no messages: {str(value)[:60]}",
        hint='Give a list: [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]',
    )
    if not isinstance(value, list):
        raise wrong
    found = []
    for each in value:
        if not isinstance(each, Mapping):
            raise wrong
        role, content = each.get("role", each.get("from")), each.get("content", each.get("value"))
        if not isinstance(role, str) or not isinstance(content, str):
            raise wrong
        found.append({"role": SPEAKERS.get(role, role), "content": content})
    return found


def _has_messages(sample: Sequence[Row], column: str) -> bool:
    try:
        return any(_messages(row.get(column), "") for row in sample)
    except DataError:
        return False


@dataclass(frozen=True)
class TextPrediction:
    """A text that was written; `finished` unless it was cut off at the most tokens that were allowed."""

    text: str
    finished: bool = True
    tokens: int = 0
    scores: dict[str, float] | None = None
    """Where it was to be one of some texts: the probability of each."""

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"text": self.text, "finished": self.finished, "tokens": self.tokens}
        return found if self.scores is None else {**found, "scores": self.scores}

    def columns(self) -> dict[str, Any]:
        return {"prediction": self.text}


@dataclass(frozen=True)
class Generate(Kind):
    """Prompts go into a `template`; those that are too long are cut at the `cut` end."""

    name: ClassVar[str] = "generate"
    form: ClassVar[type[Form]] = GenerateForm
    metrics: ClassVar[tuple[str, ...]] = ("perplexity", "accuracy")
    lower_is_better: ClassVar[tuple[str, ...]] = ("perplexity",)
    priority: ClassVar[int | None] = 20
    linear_head: ClassVar[bool] = False
    target_name: ClassVar[str] = "output"
    reads_tokens: ClassVar[bool] = True
    generates: ClassVar[bool] = True
    vocabulary: int
    template: str = CHAT
    cut: str = CUTS[0]

    @classmethod
    def _of(cls, encoder: Encoder, options: Mapping[str, Any]) -> Self:
        own = {name: options[name] for name in ("template", "cut") if options.get(name)}
        template = writer_of(encoder).check(own.pop("template", ""))
        if own.get("cut", CUTS[0]) not in CUTS:
            raise UsageError(f"a prompt cannot be cut at '{own['cut']}'.", hint="--cut left, or --cut right")
        return cls(encoder.vocabulary, template, **own)

    @classmethod
    def from_data(cls, dataset: Dataset, rows: Array, encoder: Encoder, **options: Any) -> Self:
        return cls._of(encoder, options)

    @classmethod
    def from_record(cls, record: Record, encoder: Encoder) -> Self:
        return cls._of(encoder, record.extra)

    def extra(self) -> dict[str, Any]:
        return {"template": self.template, "cut": self.cut}

    @property
    def width(self) -> int:
        return self.vocabulary

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        return self.taught(encoder, inputs, None, max_length)

    def taught(self, encoder: Encoder, inputs: Sequence[Any], targets: Any, max_length: int) -> list[Example]:
        writer = writer_of(encoder)
        texts = [writer.prompt(self.template, given.get("messages") or given.get("prompt", "")) for given in inputs]
        prompts = [pieces.ids for pieces in encoder.pieces(texts)]
        outputs: Sequence[Array | None] = [None] * len(prompts)
        if targets is not None:
            outputs = outputs_of(encoder, targets)
        frame = encoder.frame(pair=False)
        # A template of chats has the first token in it, where there is one; others get it from the tokenizer.
        before = () if self.template == CHAT else frame.before
        after = () if writer.start is None else frame.after
        found = []
        for prompt, output in zip(prompts, outputs, strict=True):
            most, told = self._room(len(prompt), output, max_length, max_length - len(before) - len(after), writer)
            kept = prompt[max(len(prompt) - most, 0) :] if self.cut == CUTS[0] else prompt[:most]
            row = np.concatenate([np.asarray(part, dtype=np.int32) for part in (before, kept, after)])
            if not len(row):
                raise UsageError(
                    "a prompt without a token cannot be continued.", hint="Give a text, or a template with one."
                )
            longer = len(kept) < len(prompt) or (output is not None and told < len(output))
            ids = row if output is None else np.concatenate([row, output[:told]]).astype(np.int32)
            found.append([Encoding(ids, None, longer, Output(len(row)))])
        return found

    @staticmethod
    def _room(prompt: int, output: Array | None, most: int, own: int, writer: Writer) -> tuple[int, int]:
        """Return how many tokens of a prompt, and of an output, a row takes; of a long one the prompt is cut first.

        A row has `most` tokens, `own` of them for these; where a decoder writes, prompt and output have as many each.
        """
        if output is None:
            return own, 0
        if writer.start is not None:
            return own, most
        room = min(max(own - len(output), min(prompt, SHORTEST_OUTPUT)), own - 1)
        return room, own - min(room, prompt)

    def init(self, d: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def run(
        self, hidden: Tensor, mask: Tensor, rows: Sequence[Encoding], v: Params, pooling: str, words: Tensor
    ) -> Out:
        """Return by token of the output its loss and whether it is the likeliest.

        Of a row without an output: the TOP tokens that come next and their log-probabilities.
        """
        import torch
        import torch.nn.functional as F

        sizes = [len(row.ids) - row.at.start for row in rows]
        if torch.is_grad_enabled():
            batch = torch.from_numpy(np.repeat(np.arange(len(rows)), sizes)).to(hidden.device)
            place = np.concatenate([np.arange(row.at.start - 1, len(row.ids) - 1) for row in rows])
            logits = F.linear(hidden[batch, torch.from_numpy(place).to(hidden.device)], words).float()
            target = torch.from_numpy(np.concatenate([row.ids[row.at.start :] for row in rows]).astype(np.int64))
            losses = F.cross_entropy(logits, target.to(hidden.device), reduction="none")
            return [part[:, None] for part in torch.split(losses, sizes)]
        found = []
        for i, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            # A row by itself: the bits of a product depend on how many states are in it.
            if not size:
                likely = F.linear(hidden[i, len(row.ids) - 1 : len(row.ids)], words).float().log_softmax(-1)
                top = likely.topk(min(TOP, likely.shape[-1]), -1)
                found.append(torch.cat([top.indices.float(), top.values], -1))
                continue
            logits = F.linear(hidden[i, row.at.start - 1 : len(row.ids) - 1], words).float()
            target = torch.from_numpy(row.ids[row.at.start :].astype(np.int64)).to(hidden.device)
            right = (logits.argmax(-1) == target).float()
            found.append(torch.stack([F.cross_entropy(logits, target, reduction="none"), right], -1))
        return found

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        import torch

        return torch.stack([torch.cat(list(part))[:, 0].mean() for part in by_example(out, examples)])

    def decode(self, out: Out, examples: Sequence[Example]) -> list[tuple[float, int, int]]:
        """Return of each input the sum of its losses, how many tokens are right, and how many there are."""
        found = []
        for part in by_example(out, examples):
            rows = part[0][:, :2].double()
            found.append((float(rows[:, 0].sum()), int(rows[:, 1].sum()), len(rows)))
        return found

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Any]:
        raise NotImplementedError("texts are written by adaptree.models.generation")

    def is_blank(self, given: Any) -> bool:
        return False

    def aims(self, out: Out, example: Example, given: Any, target: str | None) -> list[Aim]:
        raise UsageError("a text that was written has no one answer to explain.")

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        return bootstrap.score(_sums(answers), _ratios)

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        return bootstrap.intervals(_sums(answers), _ratios)

    def inputs(self, inputs: Any, record: Record) -> list[Any]:
        several = [inputs] if isinstance(inputs, str | Mapping) else list(inputs)
        if several and all(isinstance(each, Mapping) and "role" in each for each in several):
            several = [several]  # one chat
        return [_as_input(given, record.name) for given in several]

    @classmethod
    def describe(cls, record: Record) -> str:
        return f"Writes a text for each input, after {shown(record)}."

    @classmethod
    def usage(cls, record: Record) -> tuple[str, str]:
        return '"a prompt"', '"a prompt"'

    @classmethod
    def show(cls, given: Any, target: Any) -> tuple[Sequence[str], str]:
        if "prompt" in given:
            return [given["prompt"]], str(target)
        return [f"{each['role']}: {each['content']}" for each in given["messages"]], str(target)

    def findings(self, on: Evaluated) -> dict[str, Any]:
        """Return the outputs that the task finds hardest: those with the highest perplexity."""
        sums = _sums(on.answers)
        mean = sums[:, 0] / np.maximum(sums[:, 2], 1)
        order = findings.worst(sums[:, 2] > 0, mean)[: findings.MOST_WRONG]
        return {
            "tokens": float(sums[:, 2].mean()) if len(sums) else 0.0,
            "hardest": [
                {
                    "prompt": findings.cut(self.show(on.inputs[i], "")[0][-1]),
                    "output": findings.cut(str(on.targets[i])),
                    "perplexity": math.exp(min(float(mean[i]), 700)),
                }
                for i in order
            ],
        }

    @classmethod
    def sections(cls, found: Mapping[str, Any], record: Record) -> list[Section]:
        rows = [(row["prompt"], row["output"], row["perplexity"]) for row in found.get("hardest") or []]
        said = [(row["prompt"], row["reference"], row["text"]) for row in found.get("written") or []]
        beside = Section("What it writes", [Table(("prompt", "reference", "what it writes"), said)])
        return [beside, Section("Hardest outputs", [Table(("prompt", "output", "perplexity"), rows)])]

    @classmethod
    def outputs(cls, record: Record) -> Any:
        return "text"


def shown(record: Record) -> str:
    """Return the template of a task's record in words."""
    template = record.extra.get("template", CHAT)
    return "the base's own template of chats" if template == CHAT else f"the template {json.dumps(template)}"


def writer_of(encoder: Encoder) -> Writer:
    """Return how a base writes; raise BaseError for one that does not."""
    if encoder.writer is None:
        raise BaseError(
            "this base reads texts and does not write any.",
            hint="Choose a language model: --base smollm   (adaptree bases get smollm); in Python, an encoder-decoder "
            "writes that was loaded for it: load_base(…, writes=True)",
        )
    return encoder.writer


def outputs_of(encoder: Encoder, texts: Sequence[str]) -> list[Array]:
    """Return the tokens of texts that a base learns to write, each with the token that ends it."""
    writer, frame = writer_of(encoder), encoder.frame(pair=False)
    before, after = ((), ()) if writer.start is None else (frame.before, frame.after)
    after = after or writer.ends[:1]
    return [
        np.concatenate([np.asarray(part, dtype=np.int32) for part in (before, pieces.ids, after)])
        for pieces in encoder.pieces(list(texts))
    ]


def _as_input(given: Any, task: str) -> dict[str, Any]:
    if isinstance(given, str):
        return {"prompt": given}
    if isinstance(given, Mapping) and isinstance(given.get("prompt"), str):
        return {"prompt": given["prompt"]}
    messages = given.get("messages") if isinstance(given, Mapping) else given
    try:
        read = _messages(messages, "the input")
    except DataError as error:
        raise UsageError(f"the task '{task}' takes texts or messages, not {given!r:.60}.", hint=error.hint) from None
    if not read:
        raise UsageError(f"the task '{task}' takes texts or messages, not {given!r:.60}.")
    return {"messages": read}


def _sums(answers: Sequence[tuple[float, int, int]]) -> Array:
    return np.asarray(answers, dtype=np.float64).reshape(-1, 3)


def _ratios(sums: Array) -> dict[str, Array]:
    loss, right, count = sums[:, 0], sums[:, 1], np.maximum(sums[:, 2], 1)
    return {"perplexity": np.exp(loss / count), "accuracy": right / count}

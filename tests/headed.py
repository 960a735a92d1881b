"""Tiny models with heads, and what is asked of them: labels, a training loop, all that can be seen of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as tf
from torch import Tensor

from tests import tiny

METHOD = "houlsby(size=4, init_std=0.1)"
CLASSIFIER = "classifier.weight classifier.bias"
TRANSFORM = "cls.predictions.transform"


@dataclass(frozen=True)
class Kind:
    """A class with a head: its config, the head's parameters by the model's own names, and its sort of labels."""

    model: Any
    config: Callable[[], Any]
    head: str
    labels: str = "row"

    def make(self) -> Any:
        config = self.config()
        if self.labels == "span":
            config.num_labels = 2  # a start and an end
        return tiny.roughen(self.model(config))


KINDS = {
    kind.model.__name__: kind
    for kind in (
        Kind(
            tf.BertForSequenceClassification, tiny.bert,
            CLASSIFIER,
        ),
        Kind(
            tf.RobertaForSequenceClassification, tiny.roberta,
            "classifier.dense.weight classifier.dense.bias classifier.out_proj.weight classifier.out_proj.bias",
        ),
        Kind(
            tf.DistilBertForSequenceClassification, tiny.distilbert,
            f"pre_classifier.weight pre_classifier.bias {CLASSIFIER}",
        ),
        Kind(tf.GPT2ForSequenceClassification, tiny.gpt2, "score.weight"),
        Kind(tf.BertForTokenClassification, tiny.bert, CLASSIFIER, "tags"),
        Kind(tf.BertForQuestionAnswering, tiny.bert, "qa_outputs.weight qa_outputs.bias", "span"),
        Kind(tf.T5ForConditionalGeneration, tiny.t5, "", "words"),
        Kind(tf.LlamaForCausalLM, tiny.llama, "", "words"),
        Kind(
            tf.BertForMaskedLM, tiny.bert,
            f"{TRANSFORM}.dense.weight {TRANSFORM}.dense.bias {TRANSFORM}.LayerNorm.weight {TRANSFORM}.LayerNorm.bias",
            "words",
        ),
    )
}  # fmt: skip
CLASSIFIERS = [name for name, kind in KINDS.items() if kind.labels == "row"]


def bert() -> Any:
    return tiny.model("bert", head=True)


def batch(made: Any, labels: str = "row") -> dict[str, Tensor]:
    """A padded batch with labels of a sort."""
    inputs = tiny.batch(made)
    inputs.pop("decoder_input_ids", None)  # made from the labels
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    given: dict[str, Callable[[], dict[str, Tensor]]] = {
        "row": lambda: {"labels": ids[:, 0] % tiny.LABELS},
        "tags": lambda: {"labels": (ids % tiny.LABELS).masked_fill(mask == 0, -100)},
        "words": lambda: {"labels": ids.masked_fill(mask == 0, -100)},
        "span": lambda: {"start_positions": torch.zeros(len(ids)).long(), "end_positions": mask.sum(1) - 1},
    }
    return {**inputs, **given[labels]()}


def outputs(made: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Everything that the model gives in evaluation mode."""
    was = made.training
    with torch.no_grad():
        given = made.eval()(**inputs, return_dict=True)
    made.train(was)
    return [value for value in given.values() if isinstance(value, Tensor)]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) > 0 and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def train(tuned: Any, inputs: dict[str, Tensor], steps: int = 3, lr: float = 1e-2, seed: int = 0) -> list[float]:
    optimiser = torch.optim.AdamW(tuned.parameters(), lr=lr)
    tuned.train()
    losses = []
    for step in range(steps):
        torch.manual_seed(1000 * seed + step)  # the head's dropout
        loss = tuned(**inputs).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def state(model: Any) -> dict[str, Any]:
    """All that a user could see of a model: objects, places in memory, bits, flags, modes, hooks and settings."""
    seen: dict[str, Any] = {"config": model.config.to_dict(), "keys": list(model.state_dict())}
    if getattr(model, "generation_config", None) is not None:
        seen["generation"] = model.generation_config.to_dict()
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        bits = p.detach().contiguous().view(torch.uint8) if p.numel() else p
        seen[name] = (
            id(p),
            p.data_ptr(),
            p.dtype,
            p.requires_grad,
            p.grad,
            bits.sum().item(),
            hash(bits.numpy().tobytes()),
        )
    for path, part in model.named_modules():
        plain = {k: v for k, v in vars(part).items() if isinstance(v, (int, float, str, bool))}
        hooks = [len(value) for name, value in vars(part).items() if name.endswith("_hooks") and value is not None]
        seen[f"module {path}"] = (id(part), type(part), plain, hooks, sorted(vars(part)))
    return seen

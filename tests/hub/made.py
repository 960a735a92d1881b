"""Tasks of every method and kind with random weights, over tiny bases of every architecture: made in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from adaptree import kinds
from adaptree.methods import parse
from adaptree.models.base import Base
from adaptree.models.loading import load_base
from adaptree.tasks.record import Record
from adaptree.tasks.task import Task
from tests import tiny
from tests.bases import FILLER, WORDS

TEXTS = ["the old apple", "a hammer and a saw near the very big lion", "wolf", "pear plum drill bear seen today there"]
LABELS = ["fruit", "tool", "beast"]
INPUTS: dict[str, list[Any]] = {
    "tag": [text.split() for text in TEXTS],
    "answer": [{"question": "apple or pear", "context": text} for text in TEXTS],
    "choose": [{"text": text, "choices": ["apple", "saw drill", "bear"]} for text in TEXTS],
}
EXTRA: dict[str, dict[str, Any]] = {
    "classify": {"temperature": 1.7},
    "multilabel": {"temperature": 0.6, "threshold": 0.4},
    "regress": {"mean": 3.0, "std": 2.0},
    "multioutput": {"targets": ["warmth", "fear"], "means": [1.0, -2.0], "stds": [0.5, 3.0]},
    "tag": {"scheme": "IOB2"},
    "choose": {"temperature": 2.5},
}
UNLABELLED = ("regress", "multioutput", "answer", "choose", "mlm")
TAGS = ["O", "B-fruit", "I-fruit", "B-tool"]


def save_base(folder: Path, architecture: str) -> Path:
    """Save one of the tiny models with a word-level tokenizer."""
    model: Any = tiny.model(architecture)
    if model.config.model_type == "t5":  # a base is its encoder
        import transformers

        encoder = transformers.T5EncoderModel(model.config)
        encoder.load_state_dict({k: v for k, v in model.state_dict().items() if k in encoder.state_dict()})
        model = encoder
    model.save_pretrained(folder)
    words = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", *FILLER, *" ".join(WORDS.values()).split()]
    words += [f"w{i}" for i in range(tiny.VOCABULARY - len(words))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(words[:5])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def base(folder: Path, architecture: str = "bert") -> Base:
    return load_base(save_base(folder, architecture))


def task(
    base: Base, method: str, kind: str = "classify", *, name: str = "words", seed: int = 0, **changes: Any
) -> Task:
    """A task with weights far enough from their start that a mistake shows."""
    way, generator = parse(method), torch.Generator().manual_seed(seed)
    v = way.init(base.hooked.sites, base.hooked.backbone, generator)
    record = Record(
        name=name,
        kind=kind,
        labels=[] if kind in UNLABELLED else TAGS if kind == "tag" else LABELS,
        method=str(way),
        base={"name": base.name, "fingerprint": base.fingerprint, "architecture": base.hooked.sites.architecture},
        pooling=base.pooling,
        max_length=24,
        columns={"text": "text", "pair": None, "label": "label"},
        probe={"inputs": INPUTS.get(kind, TEXTS)},
        extra=EXTRA.get(kind, {}),
        **changes,
    )
    v |= kinds.for_record(record, base.encoder).init(base.width, generator)
    moved = {}
    for key, tensor in v.items():
        noise = torch.randn(tensor.shape, generator=generator) * (0.2 if tensor.dim() < 2 else 0.15)
        moved[key] = tensor + noise if tensor.is_floating_point() else tensor
    return Task(record, moved)

"""A tiny real base on disk, and small data that it can learn."""

from __future__ import annotations

import csv
import random
from pathlib import Path

WORDS = {"fruit": "apple pear plum", "tool": "hammer saw drill", "beast": "lion wolf bear"}
FILLER = """the a old new very big small near under with and or seen today there""".split()  # noqa: SIM905


def tiny_base(folder: Path, *, seed: int = 0, hidden: int = 32, layers: int = 2, mask: bool = False) -> Path:
    """A BERT with random weights and a word-level tokenizer, with or without a mask token, as a Hugging Face folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *FILLER, *" ".join(WORDS.values()).split(), *["[MASK]"] * mask]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if mask:
        tokenizer.add_special_tokens(["[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * hidden,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    model = BertModel(config)
    model.embeddings.word_embeddings.weight.data *= 4  # words must count for more than their places
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def words_csv(path: Path, rows: int = 90, *, seed: int = 0) -> Path:
    """Sentences with words that tell the label, as a csv with columns text and label."""
    rng = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for i in range(rows):
            label = list(WORDS)[i % 3]
            words = rng.choices(FILLER, k=rng.randint(1, 12)) + rng.choices(WORDS[label].split(), k=rng.randint(2, 6))
            rng.shuffle(words)
            writer.writerow([" ".join(words), label])
    return path

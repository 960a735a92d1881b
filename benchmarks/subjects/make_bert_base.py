"""Write a model of BERT-base's shape with random weights, and the base's tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from measured import arguments
from transformers import BertConfig, BertModel


def main() -> None:
    options = arguments()
    torch.manual_seed(0)
    BertModel(BertConfig()).save_pretrained(options.out)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (Path(options.base) / name).is_file():
            shutil.copy(Path(options.base) / name, options.out)


if __name__ == "__main__":
    main()

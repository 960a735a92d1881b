"""What the peers are given: two small models with weights that show, and a padded batch.

Nothing of ours is imported here: this runs in the peers' environment.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

WIDTH, DEPTH = 32, 3
SHAPE = {"vocab_size": 60, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


def base(kind: str) -> Any:
    """A BERT or a GPT-2, in evaluation mode; always the same weights."""
    if kind == "bert":
        config = tf.BertConfig(
            **SHAPE, hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=40,
        )  # fmt: skip
    else:
        config = tf.GPT2Config(**SHAPE, n_embd=WIDTH, n_layer=DEPTH, n_head=4, n_inner=48, n_positions=40)
    model = tf.AutoModel.from_config(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(0.15 * noise if p.dim() > 1 else p + 0.2 * noise)
    return model.eval()


def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 60, (4, 7), generator=torch.Generator().manual_seed(2))
    mask = (torch.arange(7) < torch.tensor([7, 6, 4, 3])[:, None]).long()
    return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}

"""What the peers are given: small models with weights that show, and a padded batch.

Nothing of ours is imported here: this runs in the peers' environment.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

WIDTH, DEPTH = 32, 3
SHAPE = {"vocab_size": 60, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


def config(kind: str) -> Any:
    """The settings of a small model; widths that must not be equal are not."""
    wide = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": 4, "intermediate_size": 48}
    bert = {**SHAPE, **wide, "max_position_embeddings": 40}
    made: dict[str, Any] = {
        "bert": lambda: tf.BertConfig(**bert),
        "roberta": lambda: tf.RobertaConfig(**bert),
        "xlm-roberta": lambda: tf.XLMRobertaConfig(**bert),
        "distilbert": lambda: tf.DistilBertConfig(
            **SHAPE, dim=WIDTH, n_layers=DEPTH, n_heads=4, hidden_dim=48, max_position_embeddings=40
        ),
        "gpt2": lambda: tf.GPT2Config(**SHAPE, n_embd=WIDTH, n_layer=DEPTH, n_head=4, n_inner=48, n_positions=40),
        "llama": lambda: tf.LlamaConfig(**SHAPE, **wide, num_key_value_heads=2, max_position_embeddings=40),
        "t5": lambda: tf.T5Config(
            **SHAPE, d_model=WIDTH, d_kv=6, d_ff=48, num_layers=DEPTH, num_decoder_layers=2, num_heads=4,
            decoder_start_token_id=0, relative_attention_num_buckets=4, relative_attention_max_distance=8,
        ),
    }  # fmt: skip
    return made[kind]()


KINDS = ("bert", "roberta", "xlm-roberta", "distilbert", "gpt2", "llama", "t5")


def base(kind: str) -> Any:
    """A model in evaluation mode; always the same weights."""
    model = tf.AutoModel.from_config(config(kind))
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

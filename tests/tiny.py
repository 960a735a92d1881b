"""Tiny random models with awkward settings, one function per architecture, and padded batches for them.

Widths that must not be equal are not, depths of encoder and decoder differ, dropout is 0.3 wherever a config has one,
and no weight is at its usual start (a norm of ones or a bias of zeros would hide mistakes).
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as tf
from torch import Tensor, nn

from adaptree.models.architectures import Architecture, LayerStack

VOCABULARY, PAD, EOS, LABELS = 60, 1, 2, 3
_TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": EOS, "num_labels": LABELS}
_SHAPE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
_DROP = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
_BERT = {**_TOKENS, **_SHAPE, **_DROP, "max_position_embeddings": 40}
_LLAMA = {**_TOKENS, **_SHAPE, "max_position_embeddings": 40, "num_key_value_heads": 2, "attention_dropout": 0.3}


def bert() -> Any:
    return tf.BertConfig(**_BERT)


def roberta() -> Any:
    return tf.RobertaConfig(**_BERT)


def xlm_roberta() -> Any:
    return tf.XLMRobertaConfig(**_BERT)


def electra() -> Any:
    return tf.ElectraConfig(**_BERT, embedding_size=16, summary_last_dropout=0.3)


def distilbert() -> Any:
    return tf.DistilBertConfig(
        **_TOKENS, dim=32, n_layers=3, n_heads=4, hidden_dim=48, max_position_embeddings=40, dropout=0.3,
        attention_dropout=0.3, seq_classif_dropout=0.3,
    )  # fmt: skip


def albert() -> Any:
    """Two groups of two layers each, each group run at two of the four depths."""
    return tf.AlbertConfig(
        **{**_BERT, "num_hidden_layers": 4}, embedding_size=16, num_hidden_groups=2, inner_group_num=2,
        classifier_dropout_prob=0.3,
    )  # fmt: skip


def deberta() -> Any:
    return tf.DebertaConfig(**_BERT, relative_attention=True, pos_att_type=["c2p", "p2c"], position_biased_input=False)


def deberta_v2() -> Any:
    """With the convolution, the normed relative embeddings, shared keys and position buckets of v2 and v3."""
    return tf.DebertaV2Config(
        **_BERT, relative_attention=True, pos_att_type=["c2p", "p2c"], conv_kernel_size=3, conv_act="gelu",
        norm_rel_ebd="layer_norm", position_buckets=4, share_att_key=True,
    )  # fmt: skip


def modernbert() -> Any:
    """Local and global attention alternate, and the window is narrower than the batch is long."""
    return tf.ModernBertConfig(
        **_TOKENS, **_SHAPE, max_position_embeddings=40, cls_token_id=0, sep_token_id=EOS, attention_dropout=0.3,
        embedding_dropout=0.3, mlp_dropout=0.3, classifier_dropout=0.3, global_attn_every_n_layers=2, local_attention=2,
    )  # fmt: skip


def mpnet() -> Any:
    return tf.MPNetConfig(**_BERT)


def t5() -> Any:
    return tf.T5Config(
        **_TOKENS, d_model=32, d_kv=6, d_ff=48, num_layers=3, num_decoder_layers=2, num_heads=4, dropout_rate=0.3,
        classifier_dropout=0.3, decoder_start_token_id=0, relative_attention_num_buckets=4,
        relative_attention_max_distance=8,
    )  # fmt: skip


def gpt2() -> Any:
    return tf.GPT2Config(
        **_TOKENS, n_embd=32, n_layer=3, n_head=4, n_inner=48, n_positions=40, resid_pdrop=0.3, embd_pdrop=0.3,
        attn_pdrop=0.3,
    )  # fmt: skip


def llama() -> Any:
    return tf.LlamaConfig(**_LLAMA)


def mistral() -> Any:
    return tf.MistralConfig(**_LLAMA, sliding_window=3)


def qwen2() -> Any:
    return tf.Qwen2Config(**_LLAMA)


def qwen3() -> Any:
    """Norms on queries and keys, over heads that are not hidden_size / heads wide."""
    return tf.Qwen3Config(**_LLAMA, head_dim=6)


def bart() -> Any:
    return tf.BartConfig(
        **_TOKENS, d_model=32, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=2,
        encoder_ffn_dim=48, decoder_ffn_dim=40, max_position_embeddings=40, dropout=0.3, attention_dropout=0.3,
        activation_dropout=0.3, classifier_dropout=0.3, encoder_layerdrop=0.3, decoder_layerdrop=0.3,
        decoder_start_token_id=0,
    )  # fmt: skip


def roformer() -> Any:
    """A family that is not in the table."""
    return tf.RoFormerConfig(**_BERT, embedding_size=16, rotary_value=True)


ROFORMER = Architecture(
    stacks=(
        LayerStack(
            layers="encoder.layer",
            attention="attention.output.dropout",
            feedforward="output.dropout",
            norms=("attention.output.LayerNorm", "output.LayerNorm"),
            before=("embeddings.LayerNorm",),
        ),
    )
)


@dataclass(frozen=True)
class Case:
    """A model to try: its config, its class with and without a head, and its row if that must be passed."""

    config: Callable[[], Any]
    bare: Any = tf.AutoModel
    headed: Any = tf.AutoModelForSequenceClassification
    row: Architecture | None = None


# By the name in the table of architectures; after those, other classes of known ones, and a family to pass a row for.
CASES: dict[str, Case] = {
    "bert": Case(bert),
    "roberta": Case(roberta),
    "xlm-roberta": Case(xlm_roberta),
    "electra": Case(electra),
    "distilbert": Case(distilbert),
    "albert": Case(albert),
    "deberta": Case(deberta),
    "deberta-v2": Case(deberta_v2),
    "modernbert": Case(modernbert),
    "mpnet": Case(mpnet),
    "t5": Case(t5),
    "gpt2": Case(gpt2),
    "llama": Case(llama),
    "mistral": Case(mistral),
    "qwen2": Case(qwen2),
    "qwen3": Case(qwen3),
    "bart": Case(bart),
    "t5-encoder": Case(t5, tf.T5EncoderModel, tf.T5ForTokenClassification),
    "t5-generator": Case(t5, tf.T5ForConditionalGeneration, tf.T5ForConditionalGeneration),
    "roformer": Case(roformer, row=ROFORMER),
}


def model(name: str, *, head: bool = False) -> nn.Module:
    """A fresh copy of a case's model, in evaluation mode; always the same weights."""
    return copy.deepcopy(_model(name, head))


@functools.cache
def _model(name: str, head: bool) -> nn.Module:
    case = CASES[name]
    kind = case.headed if head else case.bare
    with warnings.catch_warnings():  # DeBERTa's modules script some functions when they are first imported
        warnings.filterwarnings("ignore", message="`torch.jit.script.*` is deprecated", category=DeprecationWarning)
        made = kind.from_config(case.config()) if hasattr(kind, "from_config") else kind(case.config())
    return roughen(made)


@torch.no_grad()
def roughen(made: nn.Module) -> nn.Module:
    """Give every weight a value that shows: matrices of a size that keeps signals, vectors away from 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    for p in made.parameters():
        noise = torch.randn(p.shape, generator=generator)
        p.copy_(0.15 * noise if p.dim() > 1 else p + 0.2 * noise)
    return made.eval()


def batch(made: Any, rows: int = 5, tokens: int = 5, *, seed: int = 0) -> dict[str, Tensor]:
    """Random rows of different lengths, padded on the right; by default as many rows as tokens, to catch mixed axes."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (rows, tokens), generator=generator)
    lengths = torch.tensor([tokens - i % (tokens - 1) for i in range(rows)])
    ids[torch.arange(rows), lengths - 1] = EOS  # the heads of T5 and BART read the state at the one end sign
    mask = (torch.arange(tokens) < lengths[:, None]).long()
    inputs = {"input_ids": ids.masked_fill(mask == 0, PAD), "attention_mask": mask}
    if made.config.is_encoder_decoder and not hasattr(made, "classification_head"):  # those shift the input themselves
        inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (rows, tokens - 1), generator=generator)
    return inputs


def output(made: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The logits, or all of the last hidden states, decoder's and encoder's, as one tensor."""
    given = made(**inputs)
    if getattr(given, "logits", None) is not None:
        logits: Tensor = given.logits
        return logits
    states = [given.last_hidden_state, getattr(given, "encoder_last_hidden_state", None)]
    return torch.cat([state for state in states if state is not None], dim=1)


# transformers 5.23 calls "activation checkpointing" what was "gradient checkpointing", and warns of the old name.
CHECKPOINTING = "activation" if hasattr(tf.PreTrainedModel, "activation_checkpointing_enable") else "gradient"


def checkpoint(made: Any, **options: Any) -> None:
    """Have the model run each layer again in the backward pass; options are those of `torch.utils.checkpoint`."""
    enable = getattr(made, f"{CHECKPOINTING}_checkpointing_enable")
    enable(**{f"{CHECKPOINTING}_checkpointing_kwargs": options or None})


def stop_checkpointing(made: Any) -> None:
    """Have the model keep its activations again."""
    getattr(made, f"{CHECKPOINTING}_checkpointing_disable")()


def checkpoints(made: Any) -> bool:
    """Return whether the model runs its layers again in the backward pass."""
    return bool(getattr(made, f"is_{CHECKPOINTING}_checkpointing"))

"""A tiny real base on disk, and small data that it can learn."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

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


def tiny_gguf(path: Path, seed: int = 0) -> Path:
    """Write a Llama of two layers that knows letters and bytes, as a GGUF file."""
    import gguf
    import numpy as np

    words = ["<unk>", "<s>", "</s>", *[f"<0x{i:02X}>" for i in range(256)], "▁", *"abcdefghijklmnopqrstuvwxyz"]
    d, inner, rng = 32, 48, np.random.default_rng(seed)
    file = gguf.GGUFWriter(str(path), "llama")
    file.add_context_length(64)
    file.add_embedding_length(d)
    file.add_block_count(2)
    file.add_feed_forward_length(inner)
    file.add_head_count(4)
    file.add_head_count_kv(2)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_freq_base(10_000.0)
    file.add_vocab_size(len(words))
    file.add_tokenizer_model("llama")
    file.add_token_list(words)
    file.add_token_scores([0.0] * len(words))
    file.add_token_types([2, 3, 3] + [6] * 256 + [1] * 27)
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_unk_token_id(0)
    shapes = {"token_embd": (len(words), d), "output_norm": (d,)}
    for i in range(2):
        shapes |= {f"blk.{i}.{name}": (d, d) for name in ("attn_q", "attn_output")}
        shapes |= {f"blk.{i}.{name}": (d // 2, d) for name in ("attn_k", "attn_v")}
        shapes |= {f"blk.{i}.{name}": (inner, d) for name in ("ffn_gate", "ffn_up")}
        shapes |= {f"blk.{i}.ffn_down": (d, inner), f"blk.{i}.attn_norm": (d,), f"blk.{i}.ffn_norm": (d,)}
    for name, shape in shapes.items():
        value = np.ones(shape) if len(shape) == 1 else rng.normal(0, 0.1, shape)
        file.add_tensor(f"{name}.weight", value.astype(np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


CHAT = (
    "{% for message in messages %}{{ '<s>' + message['role'] + ' ' + message['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant ' }}{% endif %}"
)


def writing_base(
    folder: Path, *, seed: int = 0, chat: bool = False, architecture: str = "llama", limit: int = 96
) -> Path:
    """Write a tiny random language model of letters, with room for `limit` tokens: a causal one, or a T5 or BART."""
    import json

    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    letters = [*"abcdefghijklmnopqrstuvwxyz", *map(str, range(10)), *".,:!?-'\"()[]{}"]
    vocabulary = ["<unk>", "<s>", "</s>", "Ġ", "Ċ", *letters, *(f"Ġ{letter}" for letter in letters)]
    folder.mkdir(parents=True)
    merges = [("Ġ", letter) for letter in letters]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(vocabulary)}, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    if around := {"t5": "$A </s>", "bart": "<s> $A </s>"}.get(architecture):
        ends = [("<s>", 1), ("</s>", 2)]
        tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if chat:
        settings["chat_template"] = CHAT
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(seed)
    _language_model(architecture, len(vocabulary), limit).save_pretrained(folder)
    return folder


def _language_model(architecture: str, words: int, limit: int) -> Any:
    import transformers as tf

    from tests.tiny import roughen

    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "vocab_size": words}
    two = {**ids, "pad_token_id": 0, "decoder_start_token_id": 0 if architecture == "t5" else 2}
    llama = {
        **ids, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, "max_position_embeddings": limit,
    }  # fmt: skip
    if architecture == "gpt2":
        return tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=96, **ids))
    if architecture == "t5":
        config = tf.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=1, num_heads=4,
                             n_positions=96, **two)  # fmt: skip
        return roughen(tf.T5ForConditionalGeneration(config))
    if architecture == "bart":
        config = tf.BartConfig(d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
                               decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=40,
                               max_position_embeddings=96, forced_eos_token_id=None, **two)  # fmt: skip
        return roughen(tf.BartForConditionalGeneration(config))
    if architecture in ("mistral", "qwen2", "qwen3"):
        named = {"mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[architecture]
        config = getattr(tf, f"{named}Config")(**llama, **({"head_dim": 6} if architecture == "qwen3" else {}))
        return getattr(tf, f"{named}ForCausalLM")(config)
    return tf.LlamaForCausalLM(tf.LlamaConfig(tie_word_embeddings=architecture != "untied", **llama))

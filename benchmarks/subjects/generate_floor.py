"""The floor: LoRA on a language model in plain PyTorch, written by hand, and `generate` with the weights merged.

transformers' model as it is, frozen; the output layer only where an output is learned; batches of one length (rounded
up to 8); AdamW.
"""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from floor import LowRank, batches, pad
from generating import NEW, TEMPLATE, encode, options, pairs, prompts
from measured import Measured, computed
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForCausalLM


def main() -> None:
    chosen = options()
    measured = Measured()
    torch.manual_seed(chosen.seed)
    model = AutoModelForCausalLM.from_pretrained(chosen.base, dtype=torch.float32).requires_grad_(False).eval()
    measured.base_is_loaded(model)
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.q_proj = LowRank(attention.q_proj, chosen.size)
        attention.v_proj = LowRank(attention.v_proj, chosen.size)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=chosen.lr)
    end = model.config.eos_token_id
    rows = encode(chosen.base, pairs(chosen.train), end, chosen.max_length)
    shuffle = random.Random(chosen.seed)
    for _ in range(chosen.epochs):
        began = computed()
        for at in batches([ids for ids, _ in rows], chosen.batch, shuffle):
            some = [rows[i] for i in at]
            ids, mask = pad([ids for ids, _ in some])
            hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state
            loss = torch.zeros(())
            told = [(i, start, len(row)) for i, (row, start) in enumerate(some)]
            states = torch.cat([hidden[i, start - 1 : stop - 1] for i, start, stop in told])
            wanted = torch.cat([ids[i, start:stop] for i, start, stop in told])
            each = F.cross_entropy(model.lm_head(states), wanted, reduction="none")
            for part in each.split([stop - start for _, start, stop in told]):
                loss = loss + part.mean() / len(told)
            loss.backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            optimiser.zero_grad()
        measured.epoch_is_trained(computed() - began)
    with torch.no_grad():
        for layer in model.model.layers:
            for name in ("q_proj", "v_proj"):
                own = getattr(layer.self_attn, name)
                own.linear.weight += 2.0 * (own.A @ own.B).T
                setattr(layer.self_attn, name, own.linear)
    tokenizer = Tokenizer.from_file(f"{chosen.base}/tokenizer.json")
    texts = [TEMPLATE.format(each) for each in prompts(chosen.validation)]
    asked = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    longest = max(map(len, asked))
    ids = torch.tensor([[end] * (longest - len(row)) + row for row in asked])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in asked])
    with torch.inference_mode():
        how = {"do_sample": False, "eos_token_id": end, "pad_token_id": end}
        model.generate(ids[:1], attention_mask=mask[:1], max_new_tokens=2, **how)
        began = computed()
        out = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, **how)
    steps = out.shape[1] - longest
    measured.say(decode=(computed() - began) / steps, steps=steps)


if __name__ == "__main__":
    main()

"""The floor: the same maths in plain PyTorch, written by hand for this one case, with nothing that it could do without.

transformers' BertModel as it is, frozen, dropout off; the trained modules wired into it by hand; batches of one length
(rounded up to 8); AdamW. What a library costs beyond this is its overhead.
"""

from __future__ import annotations

import math
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measured import Measured, accuracy, arguments, read, weight
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import BertModel


class Bottleneck(nn.Module):
    """h + up(gelu(down(h)))"""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, size), nn.Linear(size, width)
        for linear in (self.down, self.up):
            nn.init.trunc_normal_(linear.weight, std=0.01, a=-0.02, b=0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.up(F.gelu(self.down(h)))


class LowRank(nn.Module):
    """linear(x) + 2 · x A B"""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear
        self.A = nn.Parameter(torch.randn(linear.in_features, rank) / math.sqrt(linear.in_features))
        self.B = nn.Parameter(torch.zeros(rank, linear.out_features))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + 2.0 * (x @ self.A @ self.B)


class Classifier(nn.Module):
    """Mean of the last hidden states, then a linear map."""

    def __init__(self, base: BertModel, method: str, size: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False).eval()
        for layer in base.encoder.layer:
            if method == "houlsby":
                layer.attention.output.dropout = Bottleneck(base.config.hidden_size, size)
                layer.output.dropout = Bottleneck(base.config.hidden_size, size)
            else:
                attention = layer.attention.self
                attention.query = LowRank(attention.query, size)
                attention.value = LowRank(attention.value, size)
        self.head = nn.Linear(base.config.hidden_size, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.base(input_ids=ids, attention_mask=mask).last_hidden_state
        kept = mask[..., None].to(hidden.dtype)
        return self.head((hidden * kept).sum(1) / kept.sum(1))


def batches(rows: list[list[int]], size: int, shuffle: random.Random | None = None) -> list[list[int]]:
    """Return batches of positions of rows of one length, rounded up to 8; in random order with `shuffle`."""
    order = list(range(len(rows)))
    if shuffle:
        shuffle.shuffle(order)
    by_length: dict[int, list[int]] = {}
    for at in order:
        by_length.setdefault(-(-len(rows[at]) // 8) * 8, []).append(at)
    cut = [of[i : i + size] for of in by_length.values() for i in range(0, len(of), size)]
    if shuffle:
        shuffle.shuffle(cut)
    return cut


def pad(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    length = -(-max(len(row) for row in rows) // 8) * 8
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return ids, (torch.arange(length) < lengths[:, None]).long()


def encode(folder: str, texts: list[str], max_length: int) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


@torch.inference_mode()
def answers(model: Classifier, rows: list[list[int]], size: int = 64) -> list[int]:
    found = torch.empty(len(rows), dtype=torch.long)
    for at in batches(rows, size):
        found[torch.tensor(at)] = model(*pad([rows[i] for i in at])).argmax(-1)
    return [int(label) for label in found]


def main() -> None:
    options: Any = arguments()
    measured = Measured()
    torch.manual_seed(options.seed)
    base = BertModel.from_pretrained(options.base)
    measured.base_is_loaded(base)
    model = Classifier(base, options.method, options.size)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=0.0)

    with measured.phase("tokenise"):
        texts, labels = read(options.train)
        held, wanted = read(options.validation)
        rows, held_rows = (encode(options.base, some, options.max_length) for some in (texts, held))
    targets, shuffle, step = torch.tensor(labels), random.Random(options.seed), 0
    for _ in range(options.epochs):
        began = time.monotonic()
        order = batches(rows, options.batch, shuffle)
        for at in order:
            progress = (step + 0.5) / (options.epochs * len(order))
            optimiser.param_groups[0]["lr"] = options.lr * min(progress / 0.1, (1 - progress) / 0.9)
            logits = model(*pad([rows[i] for i in at]))
            F.cross_entropy(logits, targets[torch.tensor(at)], reduction="sum").div(options.batch).backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            optimiser.zero_grad()
            step += 1
        measured.epoch_is_trained(time.monotonic() - began)
        measured.epoch_is_scored(accuracy(answers(model, held_rows), wanted))
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    with measured.phase("save"):
        kept = {name: p.detach().contiguous() for name, p in model.named_parameters() if p.requires_grad}
        save_file(kept, folder / "task.safetensors")
    measured.say(bytes=weight(folder), trained=sum(p.numel() for p in trained))


if __name__ == "__main__":
    main()

"""peft's LoRA on a language model with the Hugging Face Trainer, as its documentation shows; --tuned by one who knows.

After huggingface.co/docs/peft (causal language modeling): get_peft_model over AutoModelForCausalLM, labels of -100 in
the prompt, batches padded to their longest row in random order, lora_dropout 0.1.
"""

from __future__ import annotations

from typing import Any

import torch
from generating import encode, options, pairs
from measured import Measured, computed
from peft import LoraConfig, TaskType, get_peft_model
from trainers import Clock
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

PADDING = "<|endoftext|>"


def main() -> None:
    chosen = options()
    measured = Measured()
    set_seed(chosen.seed)
    config = AutoConfig.from_pretrained(chosen.base)
    if angles := getattr(config, "rope_parameters", None):  # as a newer transformers has written it
        config.rope_theta = angles["rope_theta"]
    base = AutoModelForCausalLM.from_pretrained(chosen.base, config=config, torch_dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{chosen.base}/tokenizer.json", pad_token=PADDING)
    measured.base_is_loaded(base)
    lora = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=chosen.size,
        lora_alpha=2 * chosen.size,
        lora_dropout=0.0 if chosen.tuned else 0.1,
        target_modules=["q_proj", "v_proj"],
    )
    end = base.config.eos_token_id
    rows = [
        {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": [-100] * start + ids[start:]}
        for ids, start in encode(chosen.base, pairs(chosen.train), end, chosen.max_length)
    ]
    more: dict[str, Any] = {}
    if chosen.tuned:  # rows of about one length together; nothing saved or logged on the way
        more = {"group_by_length": True, "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True,
                "dataloader_pin_memory": False}  # fmt: skip
    settings = TrainingArguments(
        output_dir=chosen.out, learning_rate=chosen.lr, num_train_epochs=chosen.epochs,
        per_device_train_batch_size=chosen.batch, seed=chosen.seed, report_to="none", **more,
    )  # fmt: skip
    trainer = Trainer(
        model=get_peft_model(base, lora),
        args=settings,
        data_collator=DataCollatorForSeq2Seq(tokenizer, padding=True),
        train_dataset=rows,
        callbacks=[Clock(measured, computed)],
    )
    trainer.train()
    measured.say()


if __name__ == "__main__":
    main()

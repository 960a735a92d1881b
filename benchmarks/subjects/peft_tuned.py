"""peft's LoRA by someone who knows it: no dropout, batches by length, no needless work.

The same method, batch size, learning rate and epochs as peft_documented.py.
Every change is marked, here and in `trainers.tuned`.
"""

from __future__ import annotations

from measured import Measured, arguments
from peft import LoraConfig, TaskType, get_peft_model
from trainers import Clock, by_length, encoded, run, score, tuned
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    set_seed,
)


def main() -> None:
    options = arguments(("sampler", False))  # with a sampler of our own in place of group_by_length
    measured = Measured()
    set_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    frozen = AutoConfig.from_pretrained(
        options.base,
        num_labels=2,
        hidden_dropout_prob=0.0,  # a frozen base needs no dropout
        attention_probs_dropout_prob=0.0,
    )
    base = AutoModelForSequenceClassification.from_pretrained(options.base, config=frozen)
    measured.base_is_loaded(base)
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=options.size,
        lora_alpha=2 * options.size,
        lora_dropout=0.0,  # nor does LoRA here
        target_modules=["query", "value"],
    )
    model = get_peft_model(base, config)

    parts = encoded(options, measured, tokenizer)
    kind = by_length(Trainer) if options.sampler else Trainer
    trainer = kind(
        model=model,
        args=tuned(options, label_names=["labels"]),
        data_collator=DataCollatorWithPadding(tokenizer),  # padded to the longest text of the batch only
        train_dataset=parts["train"],
        eval_dataset=parts["validation"].by_length(),
        compute_metrics=score,
        callbacks=[Clock(measured)],
    )
    run(trainer, options, measured, model.save_pretrained)


if __name__ == "__main__":
    main()

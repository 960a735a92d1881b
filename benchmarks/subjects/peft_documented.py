"""peft's LoRA with the Hugging Face Trainer as its documentation shows.

After huggingface.co/docs/peft (quicktour) and its examples/sequence_classification: get_peft_model over
AutoModelForSequenceClassification, padding to the longest of a batch in random order, the base's dropout on,
lora_dropout 0.1.
"""

from __future__ import annotations

from measured import Measured, arguments
from peft import LoraConfig, TaskType, get_peft_model
from trainers import Clock, encoded, run, score, settings
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    set_seed,
)


def main() -> None:
    options = arguments()
    measured = Measured()
    set_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    base = AutoModelForSequenceClassification.from_pretrained(options.base, num_labels=2)
    measured.base_is_loaded(base)
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=options.size,
        lora_alpha=2 * options.size,
        lora_dropout=0.1,
        target_modules=["query", "value"],
    )
    model = get_peft_model(base, config)

    parts = encoded(options, measured, tokenizer)
    trainer = Trainer(
        model=model,
        args=settings(options, label_names=["labels"]),
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=parts["train"],
        eval_dataset=parts["validation"],
        compute_metrics=score,
        callbacks=[Clock(measured)],
    )
    run(trainer, options, measured, model.save_pretrained)


if __name__ == "__main__":
    main()

"""peft's LoRA with the Hugging Face Trainer as its documentation shows.

After huggingface.co/docs/peft (quicktour) and its examples/sequence_classification: get_peft_model over
AutoModelForSequenceClassification, padding to the longest of a batch in random order, the base's dropout on,
lora_dropout 0.1.
"""

from __future__ import annotations

from pathlib import Path

from measured import Measured, arguments, read, weight
from peft import LoraConfig, TaskType, get_peft_model
from trainers import Clock, Rows, score
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
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

    with measured.phase("tokenise"):
        parts = {}
        for part in ("train", "validation"):
            texts, labels = read(getattr(options, part))
            parts[part] = Rows(tokenizer(texts, max_length=options.max_length, truncation=True), labels)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=options.out,
            learning_rate=options.lr,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch,
            per_device_eval_batch_size=options.batch,
            eval_strategy="epoch",
            seed=options.seed,
            label_names=["labels"],
        ),
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=parts["train"],
        eval_dataset=parts["validation"],
        compute_metrics=score,
        callbacks=[Clock(measured)],
    )
    with measured.phase("train, with evaluation"):
        trainer.train()
    folder = Path(options.out) / "saved"
    with measured.phase("save"):
        model.save_pretrained(str(folder))
    measured.say(bytes=weight(folder), trained=sum(p.numel() for p in model.parameters() if p.requires_grad))


if __name__ == "__main__":
    main()

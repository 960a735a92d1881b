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
    asked = arguments()
    measured = Measured()
    set_seed(asked.seed)
    tokenizer = AutoTokenizer.from_pretrained(asked.base)
    base = AutoModelForSequenceClassification.from_pretrained(asked.base, num_labels=2)
    measured.base_is_loaded(base)
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=asked.size,
        lora_alpha=2 * asked.size,
        lora_dropout=0.1,
        target_modules=["query", "value"],
    )
    model = get_peft_model(base, config)

    with measured.phase("tokenise"):
        parts = {}
        for part in ("train", "validation"):
            texts, labels = read(getattr(asked, part))
            parts[part] = Rows(tokenizer(texts, max_length=asked.max_length, truncation=True), labels)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=asked.out,
            learning_rate=asked.lr,
            num_train_epochs=asked.epochs,
            per_device_train_batch_size=asked.batch,
            per_device_eval_batch_size=asked.batch,
            eval_strategy="epoch",
            seed=asked.seed,
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
    folder = Path(asked.out) / "saved"
    with measured.phase("save"):
        model.save_pretrained(str(folder))
    measured.say(bytes=weight(folder), trained=sum(p.numel() for p in model.parameters() if p.requires_grad))


if __name__ == "__main__":
    main()

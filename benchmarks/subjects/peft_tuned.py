"""peft's LoRA by someone who knows it: no dropout, batches by length, no needless work.

The same method, batch size, learning rate and epochs as peft_documented.py. Every change is marked.
"""

from __future__ import annotations

from pathlib import Path

from measured import Measured, arguments, read, weight
from peft import LoraConfig, TaskType, get_peft_model
from trainers import Clock, Rows, by_length, score
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
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

    with measured.phase("tokenise"):
        parts = {}
        for part in ("train", "validation"):
            texts, labels = read(getattr(options, part))
            parts[part] = Rows(tokenizer(texts, max_length=options.max_length, truncation=True), labels)
    kind = by_length(Trainer) if options.sampler else Trainer
    trainer = kind(
        model=model,
        args=TrainingArguments(
            output_dir=options.out,
            learning_rate=options.lr,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch,
            per_device_eval_batch_size=64,  # evaluation holds no gradients: larger batches are free
            eval_strategy="epoch",
            seed=options.seed,
            label_names=["labels"],
            group_by_length=not options.sampler,  # texts of about one length together …
            save_strategy="no",  # nothing saved on the way, nothing logged, no bar
            logging_strategy="no",
            disable_tqdm=True,
            report_to="none",
            dataloader_pin_memory=False,
        ),
        data_collator=DataCollatorWithPadding(tokenizer),  # … and padded to the longest of the batch only
        train_dataset=parts["train"],
        eval_dataset=parts["validation"].by_length(),
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

"""adapters by someone who knows it: no dropout in the frozen base, batches by length, no needless work.

The same method, batch size, learning rate and epochs as adapters_documented.py. Every change is marked.
"""

from __future__ import annotations

from pathlib import Path

from adapters import AdapterTrainer, AutoAdapterModel
from measured import Measured, arguments, read, weight
from trainers import Clock, Rows, by_length, config_of, score
from transformers import AutoConfig, AutoTokenizer, DataCollatorWithPadding, TrainingArguments, set_seed


def main() -> None:
    asked = arguments(("sampler", False))  # with a sampler of our own in place of group_by_length
    measured = Measured()
    set_seed(asked.seed)
    tokenizer = AutoTokenizer.from_pretrained(asked.base)
    config = AutoConfig.from_pretrained(
        asked.base,
        hidden_dropout_prob=0.0,  # a frozen base needs no dropout
        attention_probs_dropout_prob=0.0,
    )
    model = AutoAdapterModel.from_pretrained(asked.base, config=config)
    measured.base_is_loaded(model)
    model.add_adapter("task", config=config_of(asked.method, asked.size, model.config.hidden_size))
    model.add_classification_head("task", num_labels=2)
    model.train_adapter("task")

    with measured.phase("tokenise"):
        parts = {}
        for part in ("train", "validation"):
            texts, labels = read(getattr(asked, part))
            parts[part] = Rows(tokenizer(texts, max_length=asked.max_length, truncation=True), labels)
    kind = by_length(AdapterTrainer) if asked.sampler else AdapterTrainer
    trainer = kind(
        model=model,
        args=TrainingArguments(
            output_dir=asked.out,
            learning_rate=asked.lr,
            num_train_epochs=asked.epochs,
            per_device_train_batch_size=asked.batch,
            per_device_eval_batch_size=64,  # evaluation holds no gradients: larger batches are free
            eval_strategy="epoch",
            seed=asked.seed,
            remove_unused_columns=False,
            group_by_length=not asked.sampler,  # texts of about one length together …
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
    folder = Path(asked.out) / "saved"
    with measured.phase("save"):
        model.save_adapter(str(folder), "task", with_head=True)
    measured.say(bytes=weight(folder), trained=sum(p.numel() for p in model.parameters() if p.requires_grad))


if __name__ == "__main__":
    main()

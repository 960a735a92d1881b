"""adapters with its AdapterTrainer as its documentation shows.

After docs.adapterhub.ml/training.html and examples/pytorch/text-classification/run_glue.py: AutoAdapterModel with a
classification head, every text padded to max_length, batches of 32, the base's dropout on, linear schedule.
"""

from __future__ import annotations

from pathlib import Path

from adapters import AdapterTrainer, AutoAdapterModel
from measured import Measured, arguments, read, weight
from trainers import Clock, Rows, config_of, score
from transformers import AutoTokenizer, TrainingArguments, set_seed


def main() -> None:
    options = arguments()
    measured = Measured()
    set_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    model = AutoAdapterModel.from_pretrained(options.base)
    measured.base_is_loaded(model)
    model.add_adapter("task", config=config_of(options.method, options.size, model.config.hidden_size))
    model.add_classification_head("task", num_labels=2)
    model.train_adapter("task")

    with measured.phase("tokenise"):
        parts = {}
        for part in ("train", "validation"):
            texts, labels = read(getattr(options, part))
            encoded = tokenizer(texts, max_length=options.max_length, truncation=True, padding="max_length")
            parts[part] = Rows(encoded, labels)
    trainer = AdapterTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=options.out,
            learning_rate=options.lr,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch,
            per_device_eval_batch_size=options.batch,
            eval_strategy="epoch",
            seed=options.seed,
            remove_unused_columns=False,
        ),
        train_dataset=parts["train"],
        eval_dataset=parts["validation"],
        compute_metrics=score,
        callbacks=[Clock(measured)],
    )
    with measured.phase("train, with evaluation"):
        trainer.train()
    folder = Path(options.out) / "saved"
    with measured.phase("save"):
        model.save_adapter(str(folder), "task", with_head=True)
    measured.say(bytes=weight(folder), trained=sum(p.numel() for p in model.parameters() if p.requires_grad))


if __name__ == "__main__":
    main()

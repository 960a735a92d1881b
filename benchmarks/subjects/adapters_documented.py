"""adapters with its AdapterTrainer as its documentation shows.

After docs.adapterhub.ml/training.html and examples/pytorch/text-classification/run_glue.py: AutoAdapterModel with a
classification head, every text padded to max_length, batches of 32, the base's dropout on, linear schedule.
"""

from __future__ import annotations

from adapters import AdapterTrainer, AutoAdapterModel
from measured import Measured, arguments
from trainers import Clock, config_of, encoded, run, score, settings
from transformers import AutoTokenizer, set_seed


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

    parts = encoded(options, measured, tokenizer, padding="max_length")
    trainer = AdapterTrainer(
        model=model,
        args=settings(options, remove_unused_columns=False),
        train_dataset=parts["train"],
        eval_dataset=parts["validation"],
        compute_metrics=score,
        callbacks=[Clock(measured)],
    )
    run(trainer, options, measured, lambda folder: model.save_adapter(folder, "task", with_head=True))


if __name__ == "__main__":
    main()

"""adapters by someone who knows it: no dropout in the frozen base, batches by length, no needless work.

The same method, batch size, learning rate and epochs as adapters_documented.py.
Every change is marked, here and in `trainers.tuned`.
"""

from __future__ import annotations

from adapters import AdapterTrainer, AutoAdapterModel
from measured import Measured, arguments
from trainers import Clock, by_length, config_of, encoded, run, score, tuned
from transformers import AutoConfig, AutoTokenizer, DataCollatorWithPadding, set_seed


def main() -> None:
    options = arguments(("sampler", False))  # with a sampler of our own in place of group_by_length
    measured = Measured()
    set_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    config = AutoConfig.from_pretrained(
        options.base,
        hidden_dropout_prob=0.0,  # a frozen base needs no dropout
        attention_probs_dropout_prob=0.0,
    )
    model = AutoAdapterModel.from_pretrained(options.base, config=config)
    measured.base_is_loaded(model)
    model.add_adapter("task", config=config_of(options.method, options.size, model.config.hidden_size))
    model.add_classification_head("task", num_labels=2)
    model.train_adapter("task")

    parts = encoded(options, measured, tokenizer)
    kind = by_length(AdapterTrainer) if options.sampler else AdapterTrainer
    trainer = kind(
        model=model,
        args=tuned(options, remove_unused_columns=False),
        data_collator=DataCollatorWithPadding(tokenizer),  # padded to the longest text of the batch only
        train_dataset=parts["train"],
        eval_dataset=parts["validation"].by_length(),
        compute_metrics=score,
        callbacks=[Clock(measured)],
    )
    run(trainer, options, measured, lambda folder: model.save_adapter(folder, "task", with_head=True))


if __name__ == "__main__":
    main()

"""The Hugging Face Trainer, with its defaults, trains what `attach` gives."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from safetensors.torch import load_file
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers import trainer as trainer_module
from transformers.trainer_utils import RemoveColumnsCollator
from transformers.utils import find_labels

from adaptree import Tuned, attach
from adaptree.models.sites import find
from tests import tiny

METHOD = "houlsby(size=4, init_std=0.1)"
STEPS = 12


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows with what a model takes and three columns that it does not: a text, a number and a list."""

    def __init__(self, rows: int = 48, tokens: int = 6) -> None:
        ids = torch.randint(3, tiny.VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(3))
        mask = torch.ones(rows, tokens, dtype=torch.long)
        mask[::3, -2:] = 0
        labels = ids[:, 1] % tiny.LABELS
        self.rows = [
            {
                "input_ids": ids[i].tolist(),
                "attention_mask": mask[i].tolist(),
                "label": int(labels[i]),
                "text": f"row {i}",
                "row": i,
                "spans": [i, i + 1],
            }
            for i in range(rows)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.rows[i]


def arguments(folder: Path, kind: Any = TrainingArguments, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "report_to": "none", "use_cpu": True, "disable_tqdm": True, "max_steps": STEPS, "learning_rate": 1e-2,
        "per_device_train_batch_size": 4, "per_device_eval_batch_size": 16, "save_steps": 3, "logging_steps": 3,
    }  # fmt: skip
    return kind(output_dir=str(folder), **{**settings, **changes})


def bert() -> Any:
    return tiny.model("bert", head=True)


def fresh(seed: int = 0) -> Tuned:
    return attach(bert(), METHOD, seed=seed)


def weights(tuned: Tuned) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tuned.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def accuracy(evaluated: Any) -> dict[str, float]:
    return {"accuracy": float((evaluated.predictions.argmax(-1) == evaluated.label_ids).mean())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], Path]:
    """The weights and the folder of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    tuned = fresh()
    Trainer(tuned, arguments(folder), train_dataset=Rows()).train()
    return weights(tuned), folder


def test_it_learns_with_the_defaults_and_the_model_stays_as_it_was(tmp_path: Path) -> None:
    model = bert()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tuned = attach(model, METHOD)
    args = arguments(
        tmp_path,
        max_steps=160,
        per_device_train_batch_size=16,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=80,
    )
    trainer = Trainer(tuned, args, train_dataset=Rows(), eval_dataset=Rows(), compute_metrics=accuracy)
    start = trainer.evaluate()
    trainer.train()
    end = trainer.evaluate()
    assert end["eval_loss"] < 0.3 * start["eval_loss"]
    assert end["eval_accuracy"] > 0.9 > start["eval_accuracy"]
    assert [log["step"] for log in trainer.state.log_history if "eval_accuracy" in log] == [80, 160, 160]
    assert same(model.state_dict(), before)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not model.training
    optimised = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert optimised == {id(p) for p in tuned.parameters()}
    assert tuned.detach() is model


def test_unused_columns_are_removed(tmp_path: Path) -> None:
    """For datasets that are not Hugging Face's, Trainer wraps the collator: that is the path of every test here."""
    seen: list[set[str]] = []
    for remove in (True, False):
        tuned = fresh()
        tuned.register_forward_pre_hook(lambda module, args, kwargs: seen.append({*kwargs}), with_kwargs=True)
        trainer = Trainer(tuned, arguments(tmp_path, max_steps=1, remove_unused_columns=remove), train_dataset=Rows())
        assert isinstance(trainer.get_train_dataloader().collate_fn, RemoveColumnsCollator) == remove
        trainer.train()
    with_default, without = seen
    assert {"input_ids", "attention_mask", "labels"} <= with_default
    assert not {"text", "row", "spans"} & with_default
    assert {"row", "spans"} <= without


def test_unused_columns_of_a_hugging_face_dataset_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` is not installed here: a stand-in with its two methods takes Trainer down that path."""

    class Dataset(Rows):
        removed: set[str] = set()  # noqa: RUF012

        @property
        def column_names(self) -> list[str]:
            return list(self.rows[0])

        def remove_columns(self, names: list[str]) -> Dataset:
            self.removed.update(names)
            return self

    stand_in = SimpleNamespace(Dataset=Dataset, IterableDataset=type("IterableDataset", (), {}), __version__="4.0.0")
    monkeypatch.setattr(trainer_module, "datasets", stand_in, raising=False)
    monkeypatch.setattr(trainer_module, "is_datasets_available", lambda: True)
    rows = Dataset()
    Trainer(fresh(), arguments(tmp_path), train_dataset=rows).get_train_dataloader()
    assert rows.removed == {"text", "row", "spans"}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (tf.BertForSequenceClassification, tiny.bert),
        (tf.RobertaForSequenceClassification, tiny.roberta),
        (tf.DistilBertForSequenceClassification, tiny.distilbert),
        (tf.GPT2ForSequenceClassification, tiny.gpt2),
        (tf.BertForTokenClassification, tiny.bert),
        (tf.BertForQuestionAnswering, tiny.bert),
        (tf.T5ForConditionalGeneration, tiny.t5),
        (tf.LlamaForCausalLM, tiny.llama),
        (tf.BertForMaskedLM, tiny.bert),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_trainer_sees_the_columns_and_labels_of_the_model(kind: Any, config: Any, tmp_path: Path) -> None:
    model = kind(config())
    tuned = attach(model, METHOD)
    assert inspect.signature(tuned.forward) == inspect.signature(model.forward)
    assert find_labels(type(tuned)) == find_labels(kind) != []
    bare, ours = Trainer(model, arguments(tmp_path)), Trainer(tuned, arguments(tmp_path))
    for trainer in (bare, ours):
        trainer._set_signature_columns_if_needed()
    assert set(ours._signature_columns) == set(bare._signature_columns)
    assert ours.label_names == bare.label_names
    assert ours.can_return_loss == bare.can_return_loss
    assert ours.model_accepts_loss_kwargs == bare.model_accepts_loss_kwargs


def test_a_checkpoint_holds_just_the_task(whole: tuple[dict[str, Tensor], Path]) -> None:
    final, folder = whole
    assert {path.name for path in folder.iterdir()} == {f"checkpoint-{step}" for step in (3, 6, 9, 12)}
    last = folder / "checkpoint-12"
    saved = load_file(last / "model.safetensors")
    assert same(saved, final)
    task = sum(tensor.nbytes for tensor in saved.values())
    base = sum(p.nbytes for p in bert().base_model.parameters())
    assert (last / "model.safetensors").stat().st_size <= 1.05 * task + 4096
    assert (last / "optimizer.pt").stat().st_size < 2.5 * task + 40_000  # two moments for each weight of the task
    assert task < 0.2 * base


def test_an_interrupted_run_resumes_to_the_same_bits(whole: tuple[dict[str, Tensor], Path], tmp_path: Path) -> None:
    class Interrupt(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 8:
                raise KeyboardInterrupt

    final, _ = whole
    tuned = fresh()
    with pytest.raises(KeyboardInterrupt):
        Trainer(tuned, arguments(tmp_path), train_dataset=Rows(), callbacks=[Interrupt()]).train()
    assert not same(weights(tuned), final)
    again = fresh(seed=1)  # other weights at birth: all must come from the checkpoint
    trainer = Trainer(again, arguments(tmp_path), train_dataset=Rows())
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == STEPS
    assert same(weights(again), final)


def test_another_seed_gives_other_bits(whole: tuple[dict[str, Tensor], Path], tmp_path: Path) -> None:
    for born, trained in ((1, 42), (0, 43)):
        tuned = fresh(seed=born)
        Trainer(tuned, arguments(tmp_path, seed=trained, save_strategy="no"), train_dataset=Rows()).train()
        assert not same(weights(tuned), whole[0])


@pytest.mark.parametrize("metric", ["accuracy", "eval_loss"])
def test_the_best_weights_are_loaded_at_the_end(metric: str, tmp_path: Path) -> None:
    tuned = fresh()
    scores = iter([0.2, 0.9, 0.4, 0.1])
    args = arguments(
        tmp_path, eval_strategy="steps", eval_steps=3, load_best_model_at_end=True, metric_for_best_model=metric,
        greater_is_better=None if metric == "accuracy" else True,  # the worst loss is never that of the last step
    )  # fmt: skip
    trainer = Trainer(
        tuned, args, train_dataset=Rows(), eval_dataset=Rows(), compute_metrics=lambda _: {"accuracy": next(scores)}
    )
    trainer.train()
    best = Path(trainer.state.best_model_checkpoint)
    if metric == "accuracy":
        assert best.name == "checkpoint-6"
    assert best.name != "checkpoint-12"
    assert same(weights(tuned), load_file(best / "model.safetensors"))
    assert not same(weights(tuned), load_file(tmp_path / "checkpoint-12" / "model.safetensors"))
    loss = {log["step"]: log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log}
    trainer.compute_metrics = None
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss[int(best.name.partition("-")[2])], abs=1e-6)


def test_predict_gives_the_logits_of_the_task_in_place(tmp_path: Path) -> None:
    tuned = fresh()
    trainer = Trainer(tuned, arguments(tmp_path), eval_dataset=Rows(), compute_metrics=accuracy)
    given = trainer.predict(Rows())
    rows = Rows().rows
    inputs = {key: torch.tensor([row[key] for row in rows]) for key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        want = tuned.eval()(**inputs).logits.numpy()
        bare = bert()(**inputs).logits.numpy()
    np.testing.assert_allclose(given.predictions, want, atol=1e-6)
    assert np.abs(given.predictions - bare).max() > 1e-2
    assert given.label_ids.tolist() == [row["label"] for row in rows]
    assert given.metrics["test_accuracy"] == pytest.approx(float((want.argmax(-1) == given.label_ids).mean()))


def test_gradient_checkpointing_recomputes_and_trains_to_the_same_bits(
    whole: tuple[dict[str, Tensor], Path], tmp_path: Path
) -> None:
    model = bert()
    tuned = attach(model, METHOD)
    fired: Counter[str] = Counter()
    for site in find(model).sites:
        module = tuned.base_model.get_submodule(site.path)
        module.register_forward_pre_hook(lambda *_, path=site.path: fired.update([path]))
    Trainer(tuned, arguments(tmp_path, **{f"{tiny.CHECKPOINTING}_checkpointing": True}), train_dataset=Rows()).train()
    assert set(fired.values()) == {2 * STEPS}
    assert same(weights(tuned), whole[0])
    assert tiny.checkpoints(tuned)
    assert not tiny.checkpoints(model)


def test_the_trainer_for_sequences_generates_with_the_task_in_place(tmp_path: Path) -> None:
    tuned = attach(tiny.roughen(tf.T5ForConditionalGeneration(tiny.t5())), METHOD)
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"][:4]} for row in Rows(16).rows]
    args = arguments(tmp_path, tf.Seq2SeqTrainingArguments, predict_with_generate=True, generation_max_length=5)
    trainer = tf.Seq2SeqTrainer(tuned, args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    given = trainer.predict(rows, num_beams=2).predictions
    ids = torch.tensor([row["input_ids"] for row in rows])
    want = tuned.eval().generate(ids, attention_mask=torch.ones_like(ids), max_length=5, num_beams=2)
    assert given[:, : want.shape[1]].tolist() == want.tolist()


def test_it_trains_under_autocast(tmp_path: Path) -> None:
    tuned = fresh()
    born = weights(tuned)
    trainer = Trainer(tuned, arguments(tmp_path, bf16=True, save_strategy="no"), train_dataset=Rows())
    trainer.train()
    assert all(
        tensor.dtype == torch.float32 and not torch.equal(tensor, born[name]) for name, tensor in weights(tuned).items()
    )


def test_a_trained_task_leaves_the_trainer_as_a_folder(tmp_path: Path) -> None:
    tuned = fresh()
    Trainer(tuned, arguments(tmp_path / "run", save_strategy="no"), train_dataset=Rows()).train()
    tuned.save(tmp_path / "task")
    inputs = tiny.batch(tuned)
    again = attach(bert(), tmp_path / "task")
    assert torch.equal(again.eval()(**inputs).logits, tuned.eval()(**inputs).logits)

"""A task as a Hugging Face model folder, which runs without adaptree.

Where a method only changes the base's weights and the library's own class has the same head, it is that class.
Otherwise the folder brings `modeling_adaptree.py`, a copy of `modeling.py`: our heads read a pooled vector directly,
which the library's classifiers do not.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.batch import collate
from adaptree.errors import UsageError
from adaptree.hub.exporting import (
    CARD,
    MODELLING,
    ExportedModel,
    check_leaves,
    compare,
    finished,
    new_folder,
    output_scale,
)
from adaptree.reports import card, figures
from adaptree.reports.markdown import block, quoted

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.data.encode import Encoder, Encoding
    from adaptree.hub.plain import Plain
    from adaptree.models.bound import Bound

SUFFIXES = {
    "classify": "SequenceClassification",
    "multilabel": "SequenceClassification",
    "regress": "SequenceClassification",
    "multioutput": "SequenceClassification",
    "tag": "TokenClassification",
    "answer": "QuestionAnswering",
    "choose": "MultipleChoice",
    "mlm": "MaskedLM",
}
"""What follows AutoModelFor in the name of the class that a kind of task becomes."""
PROBLEMS = {
    "classify": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regress": "regression",
    "multioutput": "regression",
}
STOCK = ("tag", "answer")
"""Kinds whose head is a linear map over tokens in the library's own classes too."""
PIPELINES = {
    "SequenceClassification": "text-classification",
    "TokenClassification": "token-classification",
    "QuestionAnswering": "question-answering",
    "MaskedLM": "fill-mask",
}
MASKS = ("[MASK]", "<mask>")
MERGED, MODELLED = "merged into the base's weights", "with its own modelling file (trust_remote_code=True)"


def to_transformers(bound: Bound, folder: str | Path) -> ExportedModel:
    """Write a task as a model folder that transformers loads without adaptree; return what was written.

    Raise UsageError for what it cannot say: its method, its kind, or how it reads texts.
    """
    from adaptree.hub.plain import plain

    bound = bound.exact
    check_leaves(bound)
    kind = bound.kind.name
    if kind not in SUFFIXES:
        raise UsageError(f"transformers has no model for tasks of kind {kind}.", hint="Try --to onnx.")
    found = plain(bound.base.hooked, bound.composition)
    if kind == "mlm":
        _check_words(bound, found)
    with new_folder(folder) as staging:
        model = _stock(bound, found) if kind in STOCK and not found.places else None
        form = MERGED if model is not None else MODELLED
        model = _adapted(bound, found) if model is None else model
        model.save_pretrained(staging)
        if form == MODELLED:
            shutil.copyfile(Path(__file__).with_name("modeling.py"), staging / MODELLING)
        write_tokenizer(bound.base.encoder, bound.task.record.max_length, staging)
        _write_card(bound, staging, form)
        again = type(model).from_pretrained(staging, local_files_only=True).eval()
        compared, far = compare(bound, lambda rows: _logits(again, bound, rows), scaled=True)
        return finished(Path(folder), staging, to="transformers", form=form, compared=compared, difference=far)


def _check_words(bound: Bound, found: Plain) -> None:
    """Raise UsageError for a language model that replaces the embeddings which its output layer is tied to."""
    import torch

    own = bound.base.embeddings
    name = next(name for name, p in bound.base.hooked.frozen.items() if p is own)
    if not torch.equal(found.weights[name], own):
        raise UsageError(
            f"'{bound.task.record.name}' replaces the base's embeddings and predicts words with the old ones, for "
            "which transformers has no model.",
            hint="An ONNX graph has both: --to onnx",
        )


def _adapted(bound: Bound, found: Plain) -> Any:
    """Return the task as a model of `modeling.py`."""
    import torch
    from transformers import CONFIG_MAPPING

    from adaptree.hub import modeling

    suffix = SUFFIXES[bound.kind.name]
    base = _config(bound).to_dict()
    if base["model_type"] not in CONFIG_MAPPING:
        raise UsageError(
            f"the base {bound.base.name} brings code of its own, which would have to go with the model.",
            hint="An ONNX graph needs none: --to onnx",
        )
    for key in ("_name_or_path", "transformers_version", "architectures", "id2label", "label2id", "auto_map"):
        base.pop(key, None)
    task = {
        "kind": bound.kind.name,
        "pooling": bound.task.record.pooling,
        "width": bound.base.width,
        "outputs": bound.kind.width,
        "adapters": found.places,
        "inverts": found.inverts,
    }
    names = {"AutoConfig": "AdaptedConfig", f"AutoModelFor{suffix}": f"AdaptedFor{suffix}"}
    config = modeling.AdaptedConfig(
        base=base,
        task=task,
        auto_map={auto: f"{MODELLING.removesuffix('.py')}.{name}" for auto, name in names.items()},
        **_labelled(bound),
    )
    with torch.random.fork_rng(devices=[]):  # its first weights are random, and replaced
        model = getattr(modeling, f"AdaptedFor{suffix}")(config).eval()
    head = {f"head.{name}": tensor for name, tensor in _head(bound).items()}
    own = {**_backbone(bound, found, "backbone."), **found.tensors, **head}
    model.load_state_dict(own)
    return model


def _stock(bound: Bound, found: Plain) -> Any | None:
    """Return the task as a model of the library's own class; None where that has no such class, or another head."""
    import torch
    import transformers

    config = _config(bound)
    for name, value in _labelled(bound).items():
        setattr(config, name, value)
    auto = getattr(transformers, f"AutoModelFor{SUFFIXES[bound.kind.name]}")
    if type(config) not in auto._model_mapping:
        return None
    with torch.random.fork_rng(devices=[]):
        model = auto.from_config(config).eval()
    prefix = f"{model.base_model_prefix}."
    own = {name: p for name, p in model.state_dict().items() if not name.startswith(prefix)}
    weight, bias = (next((name for name in own if name.endswith(f".{key}")), "") for key in ("weight", "bias"))
    head = _head(bound)
    fits = {weight, bias} == own.keys() and own[weight].shape == head["weight"].shape
    if not fits:
        return None
    backbone = _backbone(bound, found, prefix)
    wanted = model.state_dict().keys() - own.keys()
    if not wanted <= backbone.keys():
        return None
    model.load_state_dict({name: backbone[name] for name in wanted} | {weight: head["weight"], bias: head["bias"]})
    return model


def _config(bound: Bound) -> Any:
    """Return a copy of the base's configuration, which says nothing of where the base lies."""
    model: Any = bound.base.hooked.model
    config = copy.deepcopy(model.config)
    config._name_or_path = ""
    return config


def _backbone(bound: Bound, found: Plain, prefix: str) -> dict[str, Tensor]:
    """Return the Transformer's weights with those of the task in them."""
    backbone = bound.base.hooked.copy(found.weights).backbone
    return {f"{prefix}{name}": tensor for name, tensor in backbone.state_dict().items()}


def _head(bound: Bound) -> dict[str, Tensor]:
    """Return the head, whose outputs are logits of calibrated probabilities or the numbers themselves."""
    head = {name.removeprefix("head."): t for name, t in bound.head.items()}
    mean, unit = output_scale(bound)
    if isinstance(unit, float):
        return head
    return {"weight": head["weight"] * unit[:, None], "bias": head["bias"] * unit + mean}


def _labelled(bound: Bound) -> dict[str, Any]:
    """Return the settings of a model that name its outputs."""
    if bound.kind.name == "answer":
        return {"num_labels": 2}  # a start and an end
    names = [str(label) for label in getattr(bound.kind, "labels", ())] or list(getattr(bound.kind, "targets", ()))
    if bound.kind.name == "regress":
        names = ["value"]
    if not names:
        return {}
    problem = PROBLEMS.get(bound.kind.name)
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: i for i, name in enumerate(names)},
        **({"problem_type": problem} if problem else {}),
    }


def write_tokenizer(encoder: Encoder, max_length: int, folder: Path) -> None:
    """Write a base's tokenizer as transformers reads it, with the longest input of a task."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = encoder.tokenizer()
    frame = encoder.frame(pair=False)
    marks = {
        "pad_token": encoder.pad_id,
        "unk_token": encoder.unknown_id,
        "cls_token": frame.before[0] if frame.before else -1,
        "sep_token": frame.after[-1] if frame.after else -1,
        "mask_token": next((at for word in MASKS if (at := tokenizer.token_to_id(word)) is not None), -1),
    }
    names = {mark: tokenizer.id_to_token(at) for mark, at in marks.items() if at >= 0}
    inputs = ["input_ids", *(["token_type_ids"] if encoder.types else []), "attention_mask"]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, model_input_names=inputs, **names
    )
    fast.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")


def _logits(model: Any, bound: Bound, rows: Sequence[Encoding]) -> list[Tensor]:
    """Return the logits of a written model for encoded rows, one by one."""
    import torch

    found = []
    for row in rows:
        inputs = collate([row], bound.base.encoder.pad_id)
        if bound.kind.name == "choose":
            inputs = {name: x[None] for name, x in inputs.items()}
        with torch.inference_mode():
            out = model(**inputs)
        spans = bound.kind.name == "answer"
        logits = torch.stack([out.start_logits, out.end_logits], -1) if spans else out.logits
        found.append(logits[0, : len(row.ids)] if bound.kind.reads_tokens else logits[0])
    return found


# The card.


def _write_card(bound: Bound, folder: Path, form: str) -> None:
    record = bound.task.record
    title, _, rest = card.body(record, figures.images(record)).partition("\n\n")
    for name, figure in figures.figures(record).items():
        (folder / name).write_text(figure)
    suffix = SUFFIXES[record.kind]
    lines = ["---", "library_name: transformers"]
    if suffix in PIPELINES:
        lines.append(f"pipeline_tag: {PIPELINES[suffix]}")
    lines += ["tags:", *(f"- {quoted(tag)}" for tag in ("adaptree", record.kind)), "---"]
    about = (
        f"A model for transformers, exported from an adaptree task: {bound.spelling} on "
        f"{record.base.get('name', '?')}, {form}. It runs without adaptree:"
    )
    text = "\n".join(lines) + f"\n\n{title}\n\n{about}\n\n{block('python', _usage(bound, form))}\n\n{rest}"
    (folder / CARD).write_text(text, encoding="utf-8")


def _usage(bound: Bound, form: str) -> list[str]:
    """Return how the model is run, as lines of Python in its folder."""
    suffix, trust = SUFFIXES[bound.kind.name], ", trust_remote_code=True" if form == MODELLED else ""
    if bound.kind.name in PROBLEMS:
        pair = bound.task.record.columns.get("pair")
        given = '{"text": "a text", "text_pair": "the text beside it"}' if pair else '"a text"'
        return [
            "from transformers import pipeline",
            "",
            f'ask = pipeline("text-classification", model="."{trust}, truncation=True)',
            f"ask({given}, top_k=None)",
        ]
    if bound.kind.name == "tag":
        return [
            "from transformers import pipeline",
            "",
            f'ask = pipeline("token-classification", model="."{trust}, aggregation_strategy="first")',
            'ask("a text")',
        ]
    if bound.kind.name == "mlm":
        mask = bound.base.encoder.words()[bound.base.encoder.mask_id()]
        return [
            "from transformers import pipeline",
            "",
            f'ask = pipeline("fill-mask", model="."{trust})',
            f'ask("a {mask} text")',
        ]
    load = [
        f"from transformers import AutoModelFor{suffix}, AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("."{trust})',
        f'model = AutoModelFor{suffix}.from_pretrained("."{trust})',
    ]
    if bound.kind.name == "answer":
        return [
            *load,
            'text = "the text with the answer"',
            'row = tokenizer("a question?", text, truncation="only_second", return_tensors="pt")',
            "found = model(**row)",
            "first, last = int(found.start_logits.argmax()), int(found.end_logits.argmax())",
            "text[row.token_to_chars(first).start : row.token_to_chars(last).end]  # at first = 0 there is no answer",
        ]
    return [
        *load,
        'text, choices = "a question?", ["one", "another"]',
        'rows = tokenizer([text] * len(choices), choices, padding=True, return_tensors="pt")',
        "model(**{name: x[None] for name, x in rows.items()}).logits.softmax(-1)",
    ]

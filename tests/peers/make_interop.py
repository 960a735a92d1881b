"""Folders that peft and adapters 1.3 save, with what they compute, for tests/peers/test_peer_interop.py.

It runs in the peers' environment: `make peers` makes that and calls this, and says how to test with the numbers.

    interop/bases/MODEL/            the base, as a Hugging Face folder with a tokenizer of words w0 … w59
    interop/LIBRARY.MODEL.CASE/     the saved folder, expected.safetensors (a padded batch, and logits or last hidden
                                    states) and facts.json (the class of the model, the head's name)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import adapters
import torch
import transformers as tf
from adapters import (
    AutoAdapterModel,
    CompacterConfig,
    DoubleSeqBnConfig,
    IA3Config,
    LoRAConfig,
    MAMConfig,
    ParBnConfig,
    PrefixTuningConfig,
    SeqBnConfig,
    SeqBnInvConfig,
)
from adapters import PromptTuningConfig as AdapterPrompt
from adapters.composition import Fuse
from models import KINDS, WIDTH, base, batch
from peft import IA3Config as PeftIA3
from peft import LoraConfig, PromptTuningConfig, TaskType, get_peft_model
from safetensors.torch import save_file
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel

SIZE, LABELS = 8, 3
NAMES = dict(enumerate(("bad", "fair", "good")))
TAGS = dict(enumerate(("I-PER", "O", "B-PER")))
EOS = 2
PICKLED = ("houlsby", "prefix", "prompt", "mam")  # its safetensors take no tensors that share memory


def inputs(kind: str) -> dict[str, torch.Tensor]:
    """The batch; every row ends with the one end sign that T5's classifier reads at."""
    given = batch()
    ends = given["attention_mask"].sum(1) - 1
    given["input_ids"][torch.arange(len(ends)), ends] = EOS
    return given


@torch.no_grad()
def shake(parameters: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    for p in parameters:
        p.add_(0.2 * torch.randn(p.shape, generator=generator))


def keep(place: Path, model: Any, given: dict[str, torch.Tensor], of: str) -> None:
    """Write down what a model computes."""
    model.eval()
    with torch.no_grad():
        out = model(**given)
    output = out.logits if getattr(out, "logits", None) is not None else out.last_hidden_state
    numbers = {name: tensor.contiguous() for name, tensor in {**given, "output": output}.items()}
    save_file(numbers, place / "expected.safetensors")
    (place / "facts.json").write_text(json.dumps({"class": of}))


def made(folder: Path, name: str) -> Path:
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    return place


def save_base(kind: str, folder: Path) -> Path:
    where = folder / "bases" / kind
    base(kind).save_pretrained(where)
    words = {"[MASK]" if i == 4 else f"w{i}": i for i in range(60)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(single="w0 $A w2", special_tokens=[("w0", 0), ("w2", 2)])
    tokenizer.save(str(where / "tokenizer.json"))
    return where


# The linear maps of each model, as peft's users name them.
ATTENTION = {
    "bert": ["query", "value"], "roberta": ["query", "value"], "xlm-roberta": ["query", "value"],
    "distilbert": ["q_lin", "v_lin"], "gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "t5": ["q", "v"],
}  # fmt: skip
IA3 = {  # peft's own defaults
    "bert": (["key", "value", "output.dense"], ["output.dense"]),
    "roberta": (["key", "value", "output.dense"], ["output.dense"]),
    "xlm-roberta": (["key", "value", "output.dense"], ["output.dense"]),
    "distilbert": (["k_lin", "v_lin", "lin2"], ["lin2"]),
    "gpt2": (["c_attn", "mlp.c_proj"], ["mlp.c_proj"]),
    "llama": (["k_proj", "v_proj", "down_proj"], ["down_proj"]),
    "t5": (["k", "v", "wo"], ["wo"]),
}
HEADS = {
    "distilbert": ["pre_classifier", "classifier"],
    "t5": ["classification_head"],
    "gpt2": ["score"],
    "llama": ["score"],
}


def make_peft(kind: str, where: Path, folder: Path) -> None:
    head = HEADS.get(kind, ["classifier"])
    conv = {"fan_in_fan_out": kind == "gpt2"}
    lora: dict[str, Any] = {"r": 4, "lora_alpha": 12, "target_modules": ATTENTION[kind], **conv}
    sequence, token = tf.AutoModelForSequenceClassification, tf.AutoModelForTokenClassification
    cases: dict[str, tuple[Any, Any]] = {
        "lora": (sequence, LoraConfig(**lora, task_type=TaskType.SEQ_CLS, modules_to_save=head)),
        "bare": (tf.AutoModel, LoraConfig(**lora)),
        "ia3": (tf.AutoModel, PeftIA3(target_modules=IA3[kind][0], feedforward_modules=IA3[kind][1], **conv)),
        "ia3_head": (
            sequence,
            PeftIA3(
                target_modules=IA3[kind][0], feedforward_modules=IA3[kind][1], task_type=TaskType.SEQ_CLS,
                modules_to_save=head, **conv,
            ),
        ),
        "tagger": (token, LoraConfig(**lora, task_type=TaskType.TOKEN_CLS)),
    }  # fmt: skip
    if kind == "bert":
        cases |= {
            "patterns": (
                tf.AutoModel,
                LoraConfig(
                    r=4, lora_alpha=8, use_rslora=True, target_modules=r".*layer\.(0|2)\..*(query|intermediate\.dense)",
                    rank_pattern={"layer.0.attention.self.query": 2}, alpha_pattern={"query": 5},
                ),
            ),
            "pooler": (
                sequence, LoraConfig(**lora, task_type=TaskType.SEQ_CLS, modules_to_save=["pooler", "classifier"]),
            ),
            "biases": (tf.AutoModel, LoraConfig(**lora, bias="lora_only")),
            "dora": (tf.AutoModel, LoraConfig(**lora, use_dora=True)),
            "prompt": (sequence, PromptTuningConfig(task_type=TaskType.SEQ_CLS, num_virtual_tokens=3)),
        }  # fmt: skip
    for case, (of, config) in cases.items():
        model = of.from_pretrained(where, **({} if of is tf.AutoModel else {"num_labels": LABELS}))
        tuned = get_peft_model(model, config)
        shake(p for p in tuned.parameters() if p.requires_grad)
        place = made(folder, f"peft.{kind}.{case}")
        given = inputs(kind)
        if kind == "t5" and of is tf.AutoModel:
            given["decoder_input_ids"] = given["input_ids"][:, :4]
        tuned.save_pretrained(place / "saved", safe_serialization=case != "bare")
        # Of DistilBERT's and others' heads only what was saved is known to whoever reads the folder.
        keep(place, tuned.base_model.model if case != "prompt" else tuned, given, type(model).__name__)


def make_adapters(kind: str, where: Path, folder: Path) -> None:
    small: dict[str, Any] = {"reduction_factor": WIDTH / SIZE}
    configs: dict[str, Any] = {
        "houlsby": DoubleSeqBnConfig(**small),
        "houlsby_cross": DoubleSeqBnConfig(**small, cross_adapter=True),
        "pfeiffer": SeqBnConfig(reduction_factor={"1": 2, "default": 4}, leave_out=[0]),
        "parallel": ParBnConfig(**small),
        "unscaled": ParBnConfig(**small, scaling=1.0, non_linearity="gelu"),
        "learned": ParBnConfig(**small, scaling="learned"),
        "lora": LoRAConfig(r=4, alpha=12, attn_matrices=["q", "k"], intermediate_lora=True, output_lora=True),
        "ia3": IA3Config(),
        "ia3_attention": IA3Config(intermediate_lora=False),
        "language": SeqBnInvConfig(**small),
    }
    if kind == "bert":
        configs |= {
            "compacter": CompacterConfig(**small),
            "prefix": PrefixTuningConfig(prefix_length=3),
            "prompt": AdapterPrompt(),
            "mam": MAMConfig(),
        }
    for case, config in configs.items():
        model = tf.AutoModel.from_pretrained(where)
        adapters.init(model)
        model.add_adapter("task", config=config, set_active=True)
        adapter = [p for name, p in model.named_parameters() if ".task." in name]
        shake(adapter)
        place = made(folder, f"adapters.{kind}.{case}")
        given = inputs(kind)
        if kind == "t5":
            given["decoder_input_ids"] = given["input_ids"][:, :4]
        model.save_adapter(str(place / "saved"), "task", use_safetensors=case not in PICKLED)
        keep(place, model, given, type(model).__name__)
    if kind != "t5":
        make_heads(kind, where, folder)


def make_heads(kind: str, where: Path, folder: Path) -> None:
    cases: dict[str, Any] = {
        "two_layers": ("classification", {"layers": 2, "id2label": NAMES}),
        "one_layer": ("classification", {"layers": 1, "id2label": NAMES}),
        "number": ("classification", {"layers": 1, "num_labels": 1}),
        "multilabel": ("multilabel", {"layers": 2}),
        "tagger": ("tagging", {"id2label": TAGS}),
    }
    if kind == "bert":
        cases["pooled"] = ("classification", {"layers": 1, "use_pooler": True})
    for case, (sort, options) in cases.items():
        model = AutoAdapterModel.from_pretrained(where)
        model.add_adapter("task", config=SeqBnConfig(reduction_factor=4), set_active=True)
        options = {"num_labels": LABELS, **options}
        if sort == "multilabel":
            model.add_classification_head("task", multilabel=True, **options)
        else:
            getattr(model, f"add_{sort}_head")("task", **options)
        shake(p for name, p in model.named_parameters() if ".task." in name)
        place = made(folder, f"adapters.{kind}.{case}")
        model.save_adapter(str(place / "saved"), "task", use_safetensors=True)
        keep(place, model, inputs(kind), type(model).__name__)
    if kind in ("bert", "roberta"):
        model = AutoAdapterModel.from_pretrained(where)
        model.add_masked_lm_head("task")
        model.add_adapter("task", config=SeqBnInvConfig(reduction_factor=4), set_active=True)
        words = model.get_input_embeddings().weight
        shake(p for name, p in model.named_parameters() if ".task." in name and p is not words)
        place = made(folder, f"adapters.{kind}.words")
        model.save_adapter(str(place / "saved"), "task")  # a pickle: safetensors take no tensors that share memory
        keep(place, model, inputs(kind), type(model).__name__)
    static = tf.AutoModelForSequenceClassification.from_pretrained(where, num_labels=LABELS)
    adapters.init(static)
    static.add_adapter("task", config=DoubleSeqBnConfig(reduction_factor=4), set_active=True)
    prefix = f"{static.base_model_prefix}."
    shake(p for name, p in static.named_parameters() if ".task." in name or not name.startswith(prefix))
    place = made(folder, f"adapters.{kind}.static")
    static.save_adapter(str(place / "saved"), "task", use_safetensors=True)
    keep(place, static, inputs(kind), type(static).__name__)
    if kind in ("bert", "gpt2", "distilbert"):
        make_fusion(kind, where, folder)


def make_fusion(kind: str, where: Path, folder: Path) -> None:
    for case, before in (("fusion", False), ("fusion_before", True)):
        model = AutoAdapterModel.from_pretrained(where)
        for name in ("one", "two"):  # the second form is one of ours where adapters read the feed-forward part
            model.add_adapter(name, config=SeqBnConfig(reduction_factor=4, original_ln_before=not before))
        model.add_adapter_fusion(Fuse("one", "two"), config=adapters.DynamicAdapterFusionConfig(residual_before=before))
        model.set_active_adapters(Fuse("one", "two"))
        model.add_classification_head("both", num_labels=LABELS, layers=1)
        model.active_head = "both"
        words = (".one.", ".two.", "adapter_fusion_layer", "heads.both")
        mine = [(name, p) for name, p in model.named_parameters() if any(word in name for word in words)]
        shake(p for name, p in mine if not (before and name.endswith("query.bias")))
        place = made(folder, f"adapters.{kind}.{case}")
        model.save_adapter_setup(str(place / "saved"), Fuse("one", "two"), head_setup="both", use_safetensors=True)
        keep(place, model, inputs(kind), type(model).__name__)


def main(folder: Path) -> None:
    tf.logging.set_verbosity_error()
    for kind in KINDS:
        torch.manual_seed(0)
        where = save_base(kind, folder)
        make_peft(kind, where, folder)
        make_adapters(kind, where, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "interop")

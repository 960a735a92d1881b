"""An exported task as a Hugging Face model: a pretrained Transformer, small adapters in its layers, and a head.

It needs PyTorch and transformers alone. `config.base` is the Transformer's own configuration; `config.task` says what
was put into it. Its list `adapters` names for each place

    at         the module of the Transformer
    form       after: its output is changed; beside: the same, from what the module `reads` was given;
               norm: its input r is, from r and the norm of r; embeddings: its input is, by an invertible coupling
    changes    what is done there, one after the other: h + up(act(down(x))), or attention over several such

after Houlsby et al. 2019, Pfeiffer et al. 2020 and 2021, Bapna & Firat 2019 and He et al. 2022. A change of weights
(LoRA, biases, norms, whole layers) is in the Transformer's weights themselves.
"""

import copy
import threading

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel, T5EncoderModel
from transformers.modeling_outputs import (
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.models.auto import modeling_auto

ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "swish": F.silu, "tanh": torch.tanh}


class AdaptedConfig(PretrainedConfig):
    model_type = "adaptree"


class Bottleneck(nn.Module):
    """up(act(down(x))); with a norm of its own in front, or inside before the activation, or more maps between."""

    def __init__(self, width, size, activation, norm="", maps=0):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.norm_is = norm
        self.down, self.up = nn.Linear(width, size), nn.Linear(size, width)
        self.between = nn.ModuleList(nn.Linear(size, size) for _ in range(maps))
        self.norm = nn.LayerNorm(width if norm == "in front" else size, eps=1e-6) if norm else nn.Identity()

    def forward(self, x):
        z = self.down(self.norm(x)) if self.norm_is == "in front" else self.norm(self.down(x))
        z = self.activation(z)
        for each in self.between:
            z = self.activation(each(z))
        return self.up(z)


class Adapter(nn.Module):
    """h + scale · bottleneck(x), or h · (1 + bottleneck(x)) where it multiplies."""

    def __init__(self, scale=1.0, multiplies=False, **bottleneck):
        super().__init__()
        self.scale, self.multiplies = scale, multiplies
        self.bottleneck = Bottleneck(**bottleneck)

    def forward(self, h, x):
        z = self.bottleneck(x)
        return h * (1 + z) if self.multiplies else h + self.scale * z


class Fusion(nn.Module):
    """Attention over the outputs of several adapters (Pfeiffer et al. 2021); `counts`: how often each is there."""

    def __init__(self, adapters, counts, width):
        super().__init__()
        self.adapters = nn.ModuleList(Adapter(**each) for each in adapters)
        self.query, self.key, self.value = (nn.Parameter(torch.empty(width, width)) for _ in range(3))
        self.counts = counts

    def forward(self, h, x):
        z = torch.stack([adapter(h, x) for adapter in self.adapters])  # (N, B, T, d)
        scores = torch.einsum("btd,nbtd->btn", x @ self.query @ self.key.T, z)
        scores = scores + torch.tensor(self.counts, dtype=scores.dtype, device=scores.device).log()
        return torch.einsum("btn,nbtd->btd", scores.softmax(-1), z) @ self.value


def change(spec):
    return Fusion(**spec) if "adapters" in spec else Adapter(**spec)


class After(nn.Module):
    """Changes the output of a module."""

    def __init__(self, backbone, at, changes):
        super().__init__()
        self.changes = nn.ModuleList(map(change, changes))
        backbone.get_submodule(at).register_forward_hook(self.act)

    def act(self, module, args, output):
        h, *others = output if isinstance(output, tuple) else (output,)
        for each in self.changes:
            h = each(h, h)
        return (h, *others) if isinstance(output, tuple) else h


class Beside(nn.Module):
    """Changes the output of a sublayer by what the sublayer was given, which is what its first linear map reads."""

    def __init__(self, backbone, at, reads, changes):
        super().__init__()
        self.changes = nn.ModuleList(map(change, changes))
        self.given = {}  # by thread: one model may run in several
        backbone.get_submodule(reads).register_forward_pre_hook(self.look)
        backbone.get_submodule(at).register_forward_hook(self.act)

    def look(self, module, args):
        self.given[threading.get_ident()] = args[0]

    def act(self, module, args, output):
        x = self.given.pop(threading.get_ident())
        for each in self.changes:
            output = each(output, x)
        return output


class AtNorm(nn.Module):
    """Changes the input r of the norm that ends a layer: the first adapter reads the norm of r, each adds to r."""

    def __init__(self, backbone, at, changes):
        super().__init__()
        self.norm = copy.deepcopy(backbone.get_submodule(at))
        self.changes = nn.ModuleList(map(change, changes))
        backbone.get_submodule(at).register_forward_pre_hook(self.act)

    def act(self, module, args):
        r = args[0]
        x = self.norm(r)
        for each in self.changes:
            x = each(r, x)
        return (x, *args[1:])


class Coupling(nn.Module):
    """Couples the two halves of the embeddings (Pfeiffer et al. 2020, MAD-X, §4.1.3), which can be inverted."""

    def __init__(self, backbone, at, half, size):
        super().__init__()
        self.f, self.g = (Bottleneck(half, size, "relu") for _ in range(2))
        backbone.get_submodule(at).register_forward_pre_hook(self.act, with_kwargs=True)

    def act(self, module, args, kwargs):
        if args:
            return (self(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": self(kwargs["hidden_states"])}

    def forward(self, e):
        one, two = e.chunk(2, -1)
        one = self.f(two) + one
        return torch.cat([one, self.g(one) + two], -1)

    def invert(self, o):
        one, two = o.chunk(2, -1)
        two = two - self.g(one)
        return torch.cat([one - self.f(two), two], -1)


PLACES = {"after": After, "beside": Beside, "norm": AtNorm, "embeddings": Coupling}


class AdaptedModel(PreTrainedModel):
    """The Transformer with the task's adapters in it, and its head: a linear map."""

    config_class = AdaptedConfig
    base_model_prefix = "backbone"

    def __init__(self, config):
        super().__init__(config)
        self.task = config.task
        base = AutoConfig.for_model(**config.base)
        self.backbone = T5EncoderModel(base) if base.model_type == "t5" else AutoModel.from_config(base)
        self.adapters = nn.ModuleList(self.place(**each) for each in self.task["adapters"])
        self.head = self.make_head(self.task["width"], self.task["outputs"])
        self.post_init()

    def place(self, form, **spec):
        return PLACES[form](self.backbone, **spec)

    def make_head(self, width, outputs):
        return nn.Linear(width, outputs)

    def hidden(self, input_ids, attention_mask, token_type_ids):
        """Return the last hidden states, (B, T, d)."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self.backbone(**{name: x for name, x in inputs.items() if x is not None}).last_hidden_state

    def pooled(self, input_ids, attention_mask, token_type_ids):
        """Return one vector for each row, (B, d)."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        hidden = self.hidden(input_ids, attention_mask, token_type_ids)
        if self.task["pooling"] == "mean":
            m = attention_mask.unsqueeze(-1).to(hidden.dtype)
            return (hidden * m).sum(1) / m.sum(1)
        last = self.task["pooling"] == "last"
        at = attention_mask.sum(1) - 1 if last else torch.zeros_like(input_ids[:, 0])
        return hidden[torch.arange(len(hidden), device=hidden.device), at]


class AdaptedForSequenceClassification(AdaptedModel):
    def forward(self, input_ids, attention_mask=None, token_type_ids=None, **ignored):
        return SequenceClassifierOutput(logits=self.head(self.pooled(input_ids, attention_mask, token_type_ids)))


class AdaptedForMultipleChoice(AdaptedModel):
    def forward(self, input_ids, attention_mask=None, token_type_ids=None, **ignored):
        """Take (B, choices, T), and return a logit for each choice, (B, choices)."""
        rows = [x if x is None else x.flatten(0, 1) for x in (input_ids, attention_mask, token_type_ids)]
        return MultipleChoiceModelOutput(logits=self.head(self.pooled(*rows)).view(input_ids.shape[:2]))


class AdaptedForTokenClassification(AdaptedModel):
    def forward(self, input_ids, attention_mask=None, token_type_ids=None, **ignored):
        return TokenClassifierOutput(logits=self.head(self.hidden(input_ids, attention_mask, token_type_ids)))


class AdaptedForQuestionAnswering(AdaptedModel):
    def forward(self, input_ids, attention_mask=None, token_type_ids=None, **ignored):
        start, end = self.head(self.hidden(input_ids, attention_mask, token_type_ids)).unbind(-1)
        return QuestionAnsweringModelOutput(start_logits=start, end_logits=end)


class WordsHead(nn.Module):
    """The transform before an output layer that is tied to the word embeddings."""

    def __init__(self, width, outputs):
        super().__init__()
        self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, hidden):
        return self.norm(F.gelu(self.dense(hidden)))


class AdaptedForMaskedLM(AdaptedModel):
    def make_head(self, width, outputs):
        return WordsHead(width, outputs)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, **ignored):
        x = self.head(self.hidden(input_ids, attention_mask, token_type_ids))
        if self.task["inverts"] is not None:  # the embeddings went in coupled
            x = self.adapters[self.task["inverts"]].invert(x)
        return MaskedLMOutput(logits=F.linear(x, self.backbone.get_input_embeddings().weight, self.head.bias))


# A pipeline says of a class that is not in these tables that it does not know it.
modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES["adaptree"] = "AdaptedForSequenceClassification"
modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES["adaptree"] = "AdaptedForTokenClassification"
modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES["adaptree"] = "AdaptedForMaskedLM"

"""Load a base: the embedded one, one in a folder, or one of the Hugging Face hub."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import torch

from adaptree.data.encode import Encoder
from adaptree.data.writer import read_writer
from adaptree.errors import BaseError, WrongBase
from adaptree.models.architectures import Architecture
from adaptree.models.base import Base
from adaptree.models.embedded import config_of, limit_of, locate
from adaptree.models.fingerprint import SETTINGS, fingerprint
from adaptree.models.hooks import HookedModel
from adaptree.models.known import NAMES
from adaptree.models.trust import check_folder, check_version
from adaptree.tasks import cache_folder

os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
"""oneDNN keeps its last 1,024 kernels, one for each shape in bf16: some 60 MB that save no time here.

It reads this once, when the first base is loaded."""
MOST_REASON = 200
"""Characters of another library's message that are shown."""


def load_base(
    name: str | Path = "minilm",
    *,
    architecture: Architecture | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    device: str = "cpu",
    writes: bool = False,
) -> Base:
    """Load a base, frozen: a known name ('minilm'), a folder, a .gguf file, or a name on the Hugging Face hub.

    `writes` loads an encoder-decoder, such as T5 or BART, with its output layer, for tasks of kind generate; without
    it such a base only reads. A causal language model always does both.
    """
    import transformers
    from transformers.utils import logging

    check_version(transformers.__version__)
    folder = locate(name, allow_pickle=allow_pickle)
    config_json = config_of(folder)
    if name not in NAMES:  # those are what was published, to the bit
        check_folder(folder, trust_remote_code=trust_remote_code)
    limit = limit_of(config_json)
    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), **options)
        loader: Any = transformers.T5EncoderModel if config.model_type == "t5" else transformers.AutoModel
        if (writer := read_writer(folder, config_json, writes=writes)) is not None:
            causal = writer.start is None
            loader = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForSeq2SeqLM
        model, info = loader.from_pretrained(
            str(folder),
            dtype=torch.float32,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            **options,
        )
    except Exception as error:  # whatever a damaged configuration or file makes of a library
        raise BaseError(_reason(name, error), hint=_way_out(error)) from error
    finally:
        logging.set_verbosity(verbosity)
    missing = sorted(key for key in info["missing_keys"] if not key.startswith("pooler"))
    if missing:
        raise BaseError(f"the weights in '{folder.name}' lack {len(missing)} of the model's, such as {missing[0]}.")
    model.requires_grad_(False).eval().to(device)
    hooked = HookedModel(model, architecture)
    encoder = Encoder.load(folder, config_json, trust_remote_code=trust_remote_code, writes=writes)
    _check_words(folder, encoder, model)
    if bool((bias := getattr(model, "final_logits_bias", torch.zeros(1))).any()):
        raise BaseError(
            f"the output layer of '{folder.name}' adds a number to each of {bias.numel():,} tokens, which is not known "
            "here.",
            hint="Choose another base: --base smollm",
        )
    files = [path for path in folder.iterdir() if path.suffix in (".safetensors", ".json", ".bin")]
    what = f"fingerprint 2 of {type(hooked.backbone).__name__} {torch.float32} {SETTINGS}"
    digest = cache_folder.digest_of(files, what, lambda: _fingerprint(folder, hooked.backbone))
    hooked.probe()
    here = Path(name).expanduser()
    local = folder == here or here.is_file()
    return Base(
        here.resolve().name if local else str(name),
        hooked,
        encoder,
        location=str(here.resolve()) if local else str(name),
        pooling=_pooling(folder) or hooked.sites.pooling,
        limit=limit,
        digest=digest,
        device=device,
        folder=folder,
    )


_reopened: dict[tuple[str, str, bool], Base] = {}
"""The base that this process was given last by another one, by its fingerprint, its device and whether it writes."""


def reopened(place: str | Path, device: str, fingerprint: str, writes: bool) -> Base:
    """Return the base that another process has pickled: loaded from where it is, once; raise WrongBase for another."""
    key = fingerprint, device, writes
    if key not in _reopened:
        found = load_base(place, device=device, writes=writes)
        if found.fingerprint != fingerprint:
            raise WrongBase(
                f"the base {found.name} on the machine {socket.gethostname()} has other weights than the one here.",
                hint="Have the same files on all machines.",
            )
        _reopened.clear()  # two at once may be too many for the memory
        _reopened[key] = found
    return _reopened[key]


def _check_words(folder: Path, encoder: Encoder, model: Any) -> None:
    """Raise BaseError if the tokenizer gives tokens that the model has no embedding for."""
    rows, highest = model.get_input_embeddings().weight.shape[0], encoder.highest_id
    if max(highest, encoder.pad_id) >= rows:
        raise BaseError(
            f"the tokenizer in '{folder.name}' has tokens up to {highest:,}, and the model embeddings for {rows:,}.",
            hint="They belong to different models: save the tokenizer that this model was trained with.",
        )


def _fingerprint(folder: Path, backbone: Any) -> str:
    """Return the fingerprint of a model whose weights are all finite numbers."""
    for name, p in backbone.named_parameters():
        if not torch.isfinite(p).all():
            raise BaseError(f"the weights in '{folder.name}' have NaN or infinity in {name}.", hint="Fetch them again.")
    return fingerprint(backbone)


def _reason(name: str | Path, error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"the model in '{name}' cannot be loaded: {first[:MOST_REASON]}{'…' * (len(first) > MOST_REASON)}"


def _way_out(error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return "It brings code of its own: pass --trust-remote-code if you trust it."
    if "safetensors" in text:
        return "Only safetensors is read by default: pass --allow-pickle if you trust the file."
    return "A folder needs config.json, model.safetensors and tokenizer.json."


def _pooling(folder: Path) -> str | None:
    """Return the pooling of a sentence-embedding model, from its config; None for another model."""
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return None
    try:
        pooling = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise BaseError(
            f"'{folder.name}/1_Pooling/config.json' cannot be read.", hint="Fetch it again, or remove it."
        ) from error
    for key, how in (("pooling_mode_mean_tokens", "mean"), ("pooling_mode_cls_token", "first")):
        if pooling.get(key):
            return how
    return None

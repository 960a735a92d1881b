"""A GGUF file as a folder of safetensors: the quantised weights are unpacked to fp32 once, into the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from adaptree.errors import BaseError
from adaptree.tasks import cache_folder

FORM = 1
"""In the folders' names: another way of unpacking makes another folder."""


def unpacked(file: Path, name: str | None = None) -> Path:
    """Return the folder of a GGUF file's model, unpacking it unless that was done before."""
    digest = cache_folder.digest_of([file], "sha256", lambda: sha256(file))
    folder = folder_for(name or file.stem, digest)
    return folder if folder.is_dir() else unpack(file, folder)


def folder_for(name: str, digest: str) -> Path:
    """Return where the model of a GGUF file is kept."""
    return cache_folder.folder() / "models" / f"{name}-{digest[:12]}-{FORM}"


def unpack(file: Path, folder: Path) -> Path:
    """Write the model, configuration and tokenizer of a GGUF file into a new folder, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        try:
            _write(file, Path(scratch) / "model")
        except ImportError as error:
            raise BaseError(
                f"'{file.name}' needs the package gguf.", hint="pip install 'adaptree[generate]'"
            ) from error
        except Exception as error:  # whatever a damaged file makes of the libraries that read it
            first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise BaseError(
                f"'{file.name}' cannot be read: {first}",
                hint="Fetch it again, or name a folder with config.json, model.safetensors and tokenizer.json.",
            ) from error
        try:
            shutil.move(Path(scratch) / "model", folder)
        except OSError:
            if not folder.is_dir():  # unless another process was quicker
                raise
    return folder


def _write(file: Path, folder: Path) -> None:
    import gguf  # noqa: F401  (what transformers says without it is hard to read)
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers.utils import logging

    options: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    verbosity = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # it draws a bar, whatever it was told
            model = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **options)
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(file.parent), **options)
    finally:
        logging.set_verbosity(verbosity)
    folder.mkdir()
    model.config.architectures = [type(model).__name__]
    for name, settings in (("config", model.config), ("generation_config", model.generation_config)):
        known = {key: value for key, value in settings.to_diff_dict().items() if not key.startswith("_")}
        known.pop("quantization_config", None)
        (folder / f"{name}.json").write_text(json.dumps(known, indent=1, default=str))
    tokenizer.save_pretrained(folder)
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    weights = {key: tensor.contiguous() for key, tensor in model.state_dict().items() if key not in tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def sha256(path: Path) -> str:
    """Return the digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""The files of another library's folder: small JSON, and tensors that are never unpickled into anything else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.foreign_json import loads
from adaptree.errors import InteropError
from adaptree.tasks.files import cannot_write
from adaptree.tasks.task import not_finite

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_CONFIG = 16_000_000
"""Bytes."""
LONGEST_NAME = 1000
"""Characters of a tensor's name."""


def read_config(folder: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in a folder's file; raise InteropError if it is missing, broken or something else."""
    path = folder / name
    try:
        if path.stat().st_size > LARGEST_CONFIG:
            raise InteropError(f"{path} has {path.stat().st_size:,} bytes: that is no configuration.")
        values = loads(path.read_bytes(), finite=False)
    except FileNotFoundError:
        raise InteropError(f"there is no {name} in '{folder}'.", hint="Give the whole folder that was saved.") from None
    except OSError as error:
        raise InteropError(f"cannot read {path}: {error.strerror or error}.") from error
    except ValueError as error:
        raise InteropError(f"{path} is broken: {error}.", hint="Save or fetch it again.") from error
    if not isinstance(values, dict):
        raise InteropError(f"{path} is broken: it holds no object.", hint="Save or fetch it again.")
    return values


def read_tensors(folder: Path, safe: str, pickled: str) -> dict[str, Tensor]:
    """Return the tensors of a folder as float32: from its safetensors file, else from its pickle.

    The pickle goes through torch's weights-only loader, which makes tensors and nothing else: one that holds code is
    refused before any of it runs.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if (path := folder / safe).is_file():
        try:
            found: Any = load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise InteropError(f"{path} is broken: {_first(error)}.", hint="Save or fetch it again.") from error
    elif (path := folder / pickled).is_file():
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever a file that is no checkpoint makes of the loader
            raise InteropError(
                f"{path} is refused: it is broken, or holds more than tensors, such as code ({type(error).__name__}).",
                hint="Save it as safetensors where you trust it.",
            ) from error
    else:
        raise InteropError(
            f"there is neither {safe} nor {pickled} in '{folder}'.", hint="Give the whole folder that was saved."
        )
    if not isinstance(found, Mapping) or not all(
        isinstance(key, str) and len(key) <= LONGEST_NAME and isinstance(value, torch.Tensor) and not value.is_complex()
        for key, value in found.items()
    ):
        raise InteropError(f"{path} is refused: it holds more than named tensors.", hint="Save it as safetensors.")
    tensors = {key: value.detach().to(torch.float32).clone().contiguous() for key, value in found.items()}
    if bad := not_finite(tensors):
        raise InteropError(f"{path}: '{bad}' has NaN or infinity in it.", hint="Train it again.")
    return tensors


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a new or empty folder, whole or not at all."""
    import shutil
    import uuid

    from adaptree.tasks.files import write_new

    staging = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    try:
        for name, data in files.items():
            path = staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_new(path, data)
        if folder.exists() and any(folder.iterdir()):
            raise InteropError(f"'{folder}' is there already, and is not empty.", hint="Choose another folder.")
        staging.rename(folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def as_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as a safetensors file."""
    from safetensors.torch import save

    return save({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, metadata={"format": "pt"})


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")

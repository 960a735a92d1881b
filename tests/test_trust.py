"""A model's folder is data: what asks for code in it is refused before another library reads it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from adaptree.errors import BaseError
from adaptree.models import loading, opening
from adaptree.models.loading import load_base
from adaptree.models.trust import check_folder, check_version, read_config
from tests.bases import tiny_base


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("trust") / "tiny")


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTREE_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(made, tmp_path / "tiny"))


def configure(folder: Path, changes: dict[str, Any], file: str = "config.json") -> None:
    path = folder / file
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(config | changes))


def refused(folder: Path, **options: Any) -> str:
    """What is said of a folder, in one line."""
    with pytest.raises(BaseError) as caught:
        load_base(folder, **options)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 400
    return said


HOSTILE: dict[str, tuple[str, dict[str, Any]]] = {
    "auto_map": ("config.json", {"auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}}),
    "auto_map to the hub": ("config.json", {"auto_map": {"AutoModel": "evil/repo--own.OwnModel"}}),
    "auto_map within": ("config.json", {"text_config": {"auto_map": {"AutoConfig": "own.OwnConfig"}}}),
    "auto_map of the tokenizer": ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Own", None]}}),
    "kernels (CVE-2026-4372)": ("config.json", {"_attn_implementation_internal": "evil/kernels"}),
    "kernels by another key": ("config.json", {"_attn_implementation": "evil/kernels@main:run"}),
    "kernels by a third key": ("config.json", {"attn_implementation": {"": "evil/kernels"}}),
    "kernels of experts": ("config.json", {"_experts_implementation_internal": "evil/kernels"}),
    "kernels within": ("config.json", {"encoder": {"_attn_implementation_internal": "evil/kernels"}}),
    "kernels in a list": ("config.json", {"x": [{"_attn_implementation_internal": "evil/kernels"}]}),
    "trust (CVE-2026-5241)": (
        "config.json",
        {"model_type": "lightglue", "trust_remote_code": True,
         "keypoint_detector_config": {"model_type": "own", "_name_or_path": "evil/repo"}},
    ),
    "trust within": ("config.json", {"text_config": {"trust_remote_code": 1}}),
    "quantisation": ("config.json", {"quantization_config": {"quant_method": "own"}}),
    "pipelines": ("config.json", {"custom_pipelines": {"x": {"impl": "own.Pipeline"}}}),
    "kernels by name": ("config.json", {"use_kernels": True}),
    "code for generation": ("generation_config.json", {"custom_generate": "evil/repo"}),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_configuration_that_asks_for_code_is_refused_before_it_is_loaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    marker = tmp_path / "code was run"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w')\n")
    file, changes = HOSTILE[what]
    configure(folder, changes, file)
    for auto in ("AutoConfig", "AutoModel", "AutoTokenizer"):
        monkeypatch.setattr(getattr(transformers, auto), "from_pretrained", lambda *a, **k: pytest.fail("it was read"))
    said = refused(folder)
    assert "code" in said
    assert "--trust-remote-code" in said
    assert not marker.exists()


def test_code_runs_only_when_it_is_asked_for(folder: Path, tmp_path: Path) -> None:
    """The hostile folder is one: with trust it writes its marker, and without it does not."""
    marker = tmp_path / "code was run"
    lines = ["from transformers import BertConfig, BertModel", f"open({str(marker)!r}, 'w').close()",
             "class OwnConfig(BertConfig):", "    model_type = 'own'",
             "class OwnModel(BertModel):", "    config_class = OwnConfig"]  # fmt: skip
    (folder / "own.py").write_text("\n".join(lines) + "\n")
    configure(folder, {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}})
    refused(folder)
    assert not marker.exists()
    with pytest.raises(BaseError, match="no sites are known"):
        load_base(folder, trust_remote_code=True)
    assert marker.exists()


@pytest.mark.parametrize("name", ["modeling_own.py", "configuration_own.py", "tokenization_own.py"])
def test_python_files_that_transformers_would_load_are_refused(folder: Path, name: str) -> None:
    (folder / name).write_text("raise SystemExit\n")
    assert name in refused(folder)


def test_a_script_that_nothing_names_is_no_obstacle(folder: Path) -> None:
    (folder / "train_script.py").write_text("raise SystemExit\n")
    configure(folder, {"_attn_implementation": "sdpa"})
    load_base(folder)


def test_a_list_of_training_data_beside_a_model_is_no_obstacle(folder: Path) -> None:
    """Models of sentence-transformers have one in data_config.json; what it holds is looked through all the same."""
    path = folder / "data_config.json"
    path.write_text('[{"name": "reddit.jsonl.gz", "weight": 50}, {"name": "msmarco.jsonl.gz", "weight": 8}]')
    assert load_base(folder).width > 0
    path.write_text('[{"auto_map": {"AutoModel": "evil.Model"}}]')
    with pytest.raises(BaseError, match="asks for code with 'auto_map'"):
        load_base(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(BaseError, match="not an object"):
        load_base(folder)


def test_an_adapter_of_another_library_is_no_base(folder: Path) -> None:
    configure(folder, {"base_model_name_or_path": "evil/repo"}, "adapter_config.json")
    assert "adapter_config.json" in refused(folder)


def _link_out(folder: Path) -> None:
    other = folder.parent / "elsewhere.json"
    shutil.move(folder / "tokenizer.json", other)
    (folder / "tokenizer.json").symlink_to(other)


def _index(files: list[str]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        names = {f"w{i}": file for i, file in enumerate(files)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))

    return write


OUTSIDE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a link": (_link_out, "tokenizer.json' is a link to a file outside"),
    "weights elsewhere": (_index(["../elsewhere.safetensors"]), "no safetensors file of this folder"),
    "weights by an absolute path": (_index(["/tmp/x.safetensors"]), "no safetensors file of this folder"),
    "pickled weights": (_index(["pytorch_model.bin"]), "no safetensors file of this folder"),
    "no weights": (_index([]), "names no weights"),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_files_outside_of_the_folder_are_never_read(folder: Path, what: str) -> None:
    harm, why = OUTSIDE[what]
    harm(folder)
    assert why in refused(folder)
    assert why in refused(folder, trust_remote_code=True)


def test_links_within_the_folder_and_into_the_cache_of_the_hub_are_fine(folder: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--org--tiny" / "snapshots" / "abc", tmp_path / "models--org--tiny" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in folder.iterdir():
        shutil.copy(path, blobs / path.name)
        (snapshot / path.name).symlink_to(os.path.relpath(blobs / path.name, snapshot))
    check_folder(snapshot)
    (folder / "vocab.json").symlink_to("tokenizer.json")
    check_folder(folder)
    (tmp_path / "link").symlink_to(folder)
    check_folder(tmp_path / "link")


@pytest.mark.parametrize("version", ["4.56.0", "5.0.0", "5.2.1", "5.4.0", "5.4.9"])
def test_versions_of_transformers_with_the_faults_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(__version__=version, utils=transformers.utils))
    said = refused(folder)
    assert version in said
    assert "pip install --upgrade 'transformers>=5.5,<6'" in said


def test_versions_without_them_are_taken() -> None:
    for version in ("5.5.0", "5.22.2", "5.6.0.dev0", "6.0"):
        check_version(version)


# Damage


def test_the_tokenizer_alone_is_not_read_by_transformers_from_a_hostile_folder(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    configure(folder, {"auto_map": {"AutoTokenizer": ["own.Own", None]}}, "tokenizer_config.json")
    with pytest.raises(BaseError, match="asks for code"):
        opening.encoder_of(folder)


def _truncate(share: float) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        path = folder / "model.safetensors"
        os.truncate(path, int(share * path.stat().st_size))

    return cut


def _weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return write


def _config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: configure(folder, changes)


def _text(text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "config.json").write_text(text)


def _few_words(folder: Path) -> None:
    configure(folder, {"vocab_size": 7})
    _weights(lambda w: w.update({WORDS: w[WORDS][:7].clone()}))(folder)


WORDS = "embeddings.word_embeddings.weight"
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "half of the weights": (_truncate(0.5), "cannot be loaded"),
    "a piece of the header": (_truncate(0.001), "cannot be loaded"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "cannot be loaded"),
    "empty weights": (_truncate(0), "cannot be loaded"),
    "NaN in the weights": (_weights(lambda w: w[WORDS][3].fill_(float("nan"))), f"NaN or infinity in {WORDS}"),
    "a word less": (_weights(lambda w: w.update({WORDS: w[WORDS][:-1].clone()})), "cannot be loaded"),
    "another vocabulary": (_config(vocab_size=7), "cannot be loaded"),
    "a small vocabulary, as configured": (_few_words, "tokenizer in 'tiny' has tokens up to"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer that can be read"),
    "half a tokenizer": (lambda folder: os.truncate(folder / "tokenizer.json", 200), "no tokenizer that can be read"),
    "a list": (_text("[]"), "config.json"),
    "half a config": (_text('{"model_type": "be'), "config.json"),
    "a key twice": (_text('{"model_type": "bert", "model_type": "own"}'), "twice"),
    "deep lists": (_text("[" * 100_000), "within each other"),
    "no type": (_config(model_type=None), "cannot be loaded"),
    "a type that is a number": (_config(model_type=3), "cannot be loaded"),
    "layers in words": (_config(num_hidden_layers="two"), "'num_hidden_layers' is"),
    "layers without number": (_config(num_hidden_layers=10**9), "'num_hidden_layers' is"),
    "a width of nothing": (_config(hidden_size=0), "cannot be loaded"),
    "another width": (_config(hidden_size=64), "cannot be loaded"),
    "a width without number": (_config(hidden_size=10**12), "cannot be loaded"),
    "a configuration that is a text": (_config(text_config="x"), "'text_config' is no configuration"),
    "positions in words": (_config(max_position_embeddings="many"), "max_position_embeddings"),
    "no positions": (_config(max_position_embeddings=-5), "max_position_embeddings"),
    "padding in words": (_config(pad_token_id="x"), "hurt|damaged|cannot be loaded"),
    "padding outside the vocabulary": (_config(pad_token_id=10**6), "embeddings for|cannot be loaded"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_base_is_refused_in_one_line(folder: Path, what: str) -> None:
    harm, why = DAMAGES[what]
    harm(folder)
    assert re.search(why, refused(folder))


def test_a_config_without_end_is_not_read(folder: Path) -> None:
    with (folder / "config.json").open("r+b") as file:
        file.truncate(10**11)
    with pytest.raises(BaseError, match="more than"):
        read_config(folder / "config.json")


def test_embedded_bases_are_not_looked_through_again(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(loading, "locate", lambda name, **options: folder)
    monkeypatch.setattr(loading, "check_folder", lambda *a, **k: pytest.fail("looked through"))
    load_base("minilm")

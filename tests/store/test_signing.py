"""Keys and signatures: who signed a version, and that a changed one is found out."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from adaptree.cli import main
from adaptree.errors import TaskCorrupt, UsageError
from adaptree.tasks import signing
from adaptree.tasks.record import FUSES, NEEDS, ON, content
from adaptree.tasks.signing import SIGNATURES, Signature


def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if cryptography were not installed."""
    monkeypatch.delitem(sys.modules, "adaptree.tasks.ed25519", raising=False)
    monkeypatch.delattr("adaptree.tasks.ed25519", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)


CONTENT, OTHER = "a" * 64, "b" * 64


@pytest.fixture(autouse=True)
def key_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTREE_KEYS", str(tmp_path / "keys"))
    return tmp_path / "keys"


def test_where_the_keys_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ADAPTREE_KEYS")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert signing.keys_folder() == tmp_path / ".config/adaptree/keys"
    assert signing.keys() == []


def test_a_new_key_is_for_the_user_alone_and_never_overwritten(key_folder: Path) -> None:
    key = signing.new_key()
    assert stat.S_IMODE((key_folder / "me.key").stat().st_mode) == 0o600
    assert signing.keys() == [key]
    assert key.own
    before = (key_folder / "me.key").read_bytes()
    with pytest.raises(UsageError, match="already, and it is not overwritten"):
        signing.new_key()
    with pytest.raises(UsageError, match="already"):
        signing.trust("me", signing.Key("x", "ed25519:" + "A" * 43, False).public)
    assert (key_folder / "me.key").read_bytes() == before
    for bad in ("../x", "", "A", "a/b", "a b"):
        with pytest.raises(UsageError, match="cannot be a key's name"):
            signing.new_key(bad)


def test_a_signature_holds_for_what_was_signed_and_for_nothing_else() -> None:
    alice, bob = signing.new_key("alice"), signing.new_key("bob")
    signature = signing.sign(CONTENT, "reviews@3", alice)
    assert signature.public == alice.public
    assert signing.holds(signature, CONTENT)
    assert not signing.holds(signature, OTHER)
    assert not signing.holds(Signature(bob.public, signature.signature, "reviews@3"), CONTENT)
    assert not signing.holds(Signature(alice.public, signature.signature, "reviews@4"), CONTENT)
    assert not signing.holds(Signature(alice.public, signature.signature[:-1], "reviews@3"), CONTENT)


def test_signatures_are_read_as_they_were_written_and_every_flipped_bit_is_found(tmp_path: Path) -> None:
    found = [signing.sign(CONTENT, "lang/qu@12", signing.new_key(name)) for name in ("a", "b")]
    text = signing.to_text(found)
    (tmp_path / SIGNATURES).write_text(text)
    assert sorted(signing.read_signatures(tmp_path, called="x"), key=str) == sorted(found, key=str)
    assert signing.read_signatures(tmp_path / "nowhere", called="x") == []
    for bit in range(0, 8 * len(text), 7):
        data = bytearray(text.encode())
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / SIGNATURES).write_bytes(data)
        with pytest.raises(TaskCorrupt, match=r"task.sig: it holds no signatures"):
            signing.read_signatures(tmp_path, called="x@1")


def test_which_key_signs() -> None:
    with pytest.raises(UsageError, match=r"no key to sign with.*adaptree keys new"):
        signing.own_key()
    me = signing.new_key()
    signing.trust("you", "ed25519:" + "A" * 43)
    assert signing.own_key() == me
    with pytest.raises(UsageError, match="the private key of 'you' is not here"):
        signing.own_key("you")
    signing.new_key("work")
    with pytest.raises(UsageError, match=r"you have 2 keys: me, work.*--key"):
        signing.own_key()
    assert signing.own_key("work").name == "work"
    with pytest.raises(UsageError, match=r"no key 'wrok'.*Did you mean 'work'"):
        signing.own_key("wrok")


def test_a_private_key_of_another_kind_is_said(key_folder: Path) -> None:
    key = signing.new_key()
    for text in (b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        (key_folder / "me.key").write_bytes(text)
        with pytest.raises(UsageError, match=r"me\.key cannot be read"):
            signing.sign(CONTENT, "a@1", key)


def test_trusted_keys_have_names(key_folder: Path) -> None:
    public = "ed25519:" + "A" * 43
    assert signing.owner(public) == public
    signing.trust("alice", f" {public}\n")
    assert signing.owner(public) == "alice"
    assert signing.find_key(public).name == signing.find_key("alice").name == "alice"
    assert signing.find_key("ed25519:" + "B" * 43).name == ""
    with pytest.raises(UsageError, match="here already, as 'alice'"):
        signing.trust("bob", public)
    for bad in ("", "x", public + "A", public[:-1], "rsa:" + "A" * 43):
        with pytest.raises(UsageError, match="is not a public key"):
            signing.trust("bob", bad)
    (key_folder / "broken.pub").write_bytes(b"\xff\xff")
    known = signing.keys()
    assert [key.name for key in known] == ["alice"]


def test_an_own_key_is_removed_only_on_demand(key_folder: Path) -> None:
    signing.new_key()
    with pytest.raises(UsageError, match=r"nobody can sign with it again.*--force"):
        signing.remove_key("me")
    signing.remove_key("me", force=True)
    assert list(key_folder.iterdir()) == []


def test_the_content_of_a_record_does_not_depend_on_names(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "name": "fused", "version": 1, "digest": "d", "checksum": "c", "new field": 3,
        "extra": {ON: "stack(a@1)", FUSES: "fuse(a@1, b@2)", NEEDS: {"a@1": "x", "b@2": "y"}},
    }  # fmt: skip
    here = {
        **values, "name": "mine", "version": 4, "checksum": "e",
        "extra": {ON: "stack(mine-a@1)", FUSES: "fuse(mine-a@1, b@9)", NEEDS: {"b@9": "y", "mine-a@1": "x"}},
    }  # fmt: skip
    assert content(values) == content(here)
    for change in (
        {"digest": "e"}, {"new field": 4}, {"labels": []}, {"extra": {**values["extra"], FUSES: "fuse(b@2, a@1)"}},
        {"extra": {**values["extra"], NEEDS: {"a@1": "x", "b@2": "z"}}},
    ):  # fmt: skip
        assert content({**values, **change}) != content(values)


def test_without_the_package_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_package(monkeypatch)
    assert not signing.can_check()
    assert main(["keys", "new"]) == 2
    assert "need the package cryptography.  pip install 'adaptree[signing]'" in capsys.readouterr().err
    assert main(["keys", "list"]) == 0


def test_the_commands(capsys: pytest.CaptureFixture[str], key_folder: Path) -> None:
    assert main(["keys", "list"]) == 0
    assert "no keys in" in capsys.readouterr().err
    assert main(["keys", "new"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("ed25519:")
    assert str(key_folder) in shown.err
    assert main(["keys", "show"]) == 0
    assert capsys.readouterr().out == shown.out
    assert main(["keys", "trust", "alice", "ed25519:" + "A" * 43]) == 0
    capsys.readouterr()
    assert main(["keys", "list", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(key["name"], key["own"]) for key in found] == [("alice", False), ("me", True)]
    assert main(["keys", "remove", "alice", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["keys", "remove", "alice"]) == 2
    assert main(["keys", "remove", "me"]) == 2
    assert capsys.readouterr().err.count("\n") == 2

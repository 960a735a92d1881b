"""Who made a task: Ed25519 keys of people, and their signatures on versions.

    <keys>/NAME.key      a private key of this user (PEM, readable by the user alone)
    <keys>/NAME.pub      a public key: of this user, or of somebody whom this user trusts
    tasks/NAME/VERSION/task.sig      a line for each signature: public key, signature, what the signer called the task

A signature is over the record's content (`adaptree.tasks.record.content`), and with it over the digest of the tensors.
It stays valid when the task, or a part of it, gets another name or number. The folder of keys is `ADAPTREE_KEYS`, else
adaptree/keys in the user's folder for settings.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from adaptree.errors import BundleError, UsageError, near
from adaptree.tasks import beside
from adaptree.tasks.files import write_new
from adaptree.tasks.names import NAME, VERSION
from adaptree.tasks.record import content, corrupt, read_file, read_values

SIGNATURES = "task.sig"
LARGEST = 20_000
"""Bytes of a file of signatures."""
PRIVATE, PUBLIC = ".key", ".pub"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_KEY = re.compile(r"ed25519:[A-Za-z0-9_-]{43}")
_REFERENCE = re.compile(rf"{NAME.pattern}@{VERSION.pattern}")


@dataclass(frozen=True)
class Key:
    """A public key, and what this user calls whom it belongs to."""

    name: str
    public: str
    """'ed25519:' and the 32 bytes of the key in base64, as people share it"""
    own: bool
    """whether the private key is here too"""


@dataclass(frozen=True)
class Signature:
    """A signature on a version: by which key, over which name and number."""

    public: str
    signature: bytes
    reference: str


# keys


def keys_folder() -> Path:
    """Return where this user's keys are."""
    if path := os.environ.get("ADAPTREE_KEYS"):
        return Path(path).expanduser()
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "adaptree" / "keys"


def keys() -> list[Key]:
    """Return the keys that are known here, by name: own ones and those that are trusted."""
    found = []
    for path in sorted(keys_folder().glob(f"*{PUBLIC}")):
        try:
            public = path.read_text().strip()
        except (OSError, ValueError):
            continue
        if _KEY.fullmatch(public):
            found.append(Key(path.stem, public, path.with_suffix(PRIVATE).exists()))
    return found


def new_key(name: str = "me") -> Key:
    """Make a key pair of this user; a key that is there is never overwritten."""
    text, public = _ed25519().generate()
    key = Key(_check_free(name), _public_text(public), True)
    folder = _made_folder()
    try:
        with os.fdopen(os.open(folder / f"{name}{PRIVATE}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        write_new(folder / f"{name}{PUBLIC}", f"{key.public}\n".encode())
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return key


def trust(name: str, public: str) -> Key:
    """Keep somebody's public key under a name."""
    if not _KEY.fullmatch(public := public.strip()):
        raise UsageError(
            f"{public!r:.80} is not a public key: that is 'ed25519:' and 43 letters.",
            hint="The owner sees it with: adaptree keys show",
        )
    if known := next((key for key in keys() if key.public == public), None):
        raise UsageError(f"that key is here already, as '{known.name}'.", hint="adaptree keys list")
    key = Key(_check_free(name), public, False)
    folder = _made_folder()
    try:
        write_new(folder / f"{name}{PUBLIC}", f"{public}\n".encode())
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return key


def remove_key(name: str, *, force: bool = False) -> Key:
    """Remove a key; an own one, which nobody can make again, only with `force`."""
    key = find_key(name)
    if key.own and not force:
        raise UsageError(
            f"'{key.name}' is a key of your own: nobody can sign with it again once it is removed.",
            hint=f"adaptree keys remove {key.name} --force",
        )
    folder = keys_folder()
    try:
        for suffix in (PUBLIC, PRIVATE):
            (folder / f"{key.name}{suffix}").unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return key


def find_key(which: str) -> Key:
    """Return a key by its name, or by the text of a public key, which need not be known here."""
    known = keys()
    for key in known:
        if which in (key.name, key.public):
            return key
    if _KEY.fullmatch(which):
        return Key("", which, False)
    hint = f"{near(which, [key.name for key in known])}   adaptree keys list".strip()
    raise UsageError(f"no key '{which}'.", hint=hint)


def own_key(name: str | None = None) -> Key:
    """Return the key to sign with: the one of that name, or the only one of this user."""
    own = [key for key in keys() if key.own]
    if name is not None:
        key = find_key(name)
        if not key.own:
            raise UsageError(f"the private key of '{name}' is not here.", hint="adaptree keys list")
        return key
    if not own:
        raise UsageError("you have no key to sign with.", hint="adaptree keys new")
    if len(own) > 1:
        raise UsageError(f"you have {len(own)} keys: {', '.join(key.name for key in own)}.", hint="Say --key NAME.")
    return own[0]


def owner(public: str) -> str:
    """Return the name of a key here, or the key itself if it is unknown."""
    return next((key.name for key in keys() if key.public == public), public)


# signatures


def sign(content: str, reference: str, key: Key) -> Signature:
    """Sign the content of a version's record with an own key, and what the version is called here."""
    path = keys_folder() / f"{key.name}{PRIVATE}"
    try:
        public, signature = _ed25519().sign(path.read_bytes(), _message(content, reference))
    except (OSError, ValueError) as error:
        raise UsageError(f"the private key in {path} cannot be read.", hint="adaptree keys new NAME") from error
    return Signature(_public_text(public), signature, reference)


def holds(signature: Signature, content: str) -> bool:
    """Return whether a signature is one over this content, by the key that it names."""
    public = _decoded(signature.public.partition(":")[2])
    return bool(_ed25519().verify(public, signature.signature, _message(content, signature.reference)))


def can_check() -> bool:
    """Return whether the package that signatures need is installed."""
    try:
        _ed25519()
    except UsageError:
        return False
    return True


def to_text(signatures: list[Signature]) -> str:
    """Return signatures as their file holds them, by key."""
    lines = [f"{each.public} {_encoded(each.signature)} {each.reference}" for each in signatures]
    return "".join(f"{beside.seal(line)}\n" for line in sorted(lines))


def read_signatures(folder: Path, *, called: str) -> list[Signature]:
    """Return the signatures on the version in a folder, unchecked; raise TaskCorrupt if their file is damaged."""
    if not (folder / SIGNATURES).exists():
        return []
    data = read_file(folder, SIGNATURES, called, most=LARGEST)
    try:
        text = data.decode("ascii")
        found = [_signature(line) for line in beside.lines(text)]
        if beside.damaged(text) or not found or to_text(found) != text:
            raise ValueError("not as it was written")
        if len({each.public for each in found}) < len(found):
            raise ValueError("a key is there twice")
    except ValueError as error:
        raise corrupt(called, SIGNATURES, f"it holds no signatures ({error})") from error
    return found


def checked_signatures(folder: Path, *, called: str) -> list[Signature]:
    """Return the signatures on the version in a folder; raise TaskCorrupt if one is wrong.

    Without the package that signatures need, they are returned unchecked (`can_check`).
    """
    found = read_signatures(folder, called=called)
    if found and can_check():
        said = content(read_values(folder, called=called))
        if wrong := [owner(each.public) for each in found if not holds(each, said)]:
            why = f"the signature by {', '.join(wrong)} is wrong: the task is not what was signed"
            raise corrupt(called, SIGNATURES, why)
    return found


def signers(folder: Path, *, called: str) -> list[str]:
    """Return a sentence for each signature on the version in a folder: who signed it, and whether that holds."""
    found = read_signatures(folder, called=called)
    if not found:
        return []
    said, checked = content(read_values(folder, called=called)), can_check()
    sentences = []
    for each in found:
        by = f"signed by {owner(each.public)}"
        if not checked:
            sentences.append(f"{by}, which is not checked: pip install 'adaptree[signing]'")
        elif not holds(each, said):
            sentences.append(f"NOT {by}: the signature is wrong")
        else:
            sentences.append(by if each.reference == called else f"{by}, as {each.reference}")
    return sentences


def _signature(line: str) -> Signature:
    public, signature, reference = line.split(" ")
    if not _KEY.fullmatch(public) or not _REFERENCE.fullmatch(reference):
        raise ValueError("not a key, a signature and a version")
    return Signature(public, _decoded(signature), reference)


def _message(content: str, reference: str) -> bytes:
    return f"adaptree signature 1\n{content}\n{reference}\n".encode()


def _public_text(public: bytes) -> str:
    return f"ed25519:{_encoded(public)}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _check_free(name: str) -> str:
    """Return the name for a new key; raise UsageError if it cannot be one, or is taken."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r:.80} cannot be a key's name: it is 1 to 64 of a-z, 0-9, '_' and '-'.",
                         hint="Try 'me'.")  # fmt: skip
    if any((keys_folder() / f"{name}{suffix}").exists() for suffix in (PRIVATE, PUBLIC)):
        raise UsageError(f"there is a key '{name}' already, and it is not overwritten.",
                         hint=f"Choose another name, or: adaptree keys remove {name}")  # fmt: skip
    return name


def _made_folder() -> Path:
    folder = keys_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return folder


def _cannot_write(folder: Path, error: OSError) -> BundleError:
    return BundleError(f"cannot write {folder}: {error.strerror or error}.", hint="Name another folder: ADAPTREE_KEYS")


def _ed25519() -> ModuleType:
    """Return the module that computes; raise UsageError if the package that it needs is not installed."""
    try:
        from adaptree.tasks import ed25519
    except ImportError as error:
        raise UsageError("keys and signatures need the package cryptography.",
                         hint="pip install 'adaptree[signing]'") from error  # fmt: skip
    return ed25519

"""API keys: who may ask the server for what, and how often.

    {"format": 1, "keys": [{"id": "…", "hash": "…", "tenant": "acme", "scopes": ["predict"], …}]}

The same may be in PostgreSQL (`serve/key_table.py`), where servers on several machines find it.

A key is 'at_ID_SECRET'. The secret is 256 random bits and is shown once; the file, which only its owner can read, has
its SHA-256. The secret cannot be guessed, so a slow hash would not protect it any better.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import hmac
import math
import os
import re
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.foreign_json import has_type, loads
from adaptree.errors import StoreError, UsageError, near
from adaptree.reports.json_text import json_text
from adaptree.serve.counts import DAY, Counts
from adaptree.serve.problems import Problem
from adaptree.tasks.files import cannot_write, sync

if TYPE_CHECKING:
    from adaptree.serve.key_table import KeyTable

Place = Path | str
"""Where keys are: a file, or the URL of a database."""
FORMAT = 1
SCOPES = ("predict", "train", "admin")
"""predict: ask and list tasks. train: add tasks. admin: all of that, remove tasks, and read the figures."""
COOKIE = "adaptree_key"
"""The cookie by which a browser sends its key (`serve/web/sign_in.py`)."""
FRESH = 1.0
"""Seconds after which the file is looked at again."""
_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_KEY = re.compile(r"at_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NOBODY = hashlib.sha256(secrets.token_bytes(32)).hexdigest()
"""What the secret of a key that there is not is compared with."""


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """What the file has of a key."""

    id: str
    hash: str
    tenant: str = ""
    """The namespace that it is confined to; '' if it may name every task."""
    scopes: tuple[str, ...] = ("predict",)
    rate: float = 0.0
    """Requests in a second; 0 is any number."""
    quota: int = 0
    """Texts in a day, from midnight UTC; 0 is any number."""
    note: str = ""
    created: str = ""


def place(text: str) -> Place:
    """Return where keys are, as a user has said it: a file, or a database's URL."""
    return text if "://" in text else Path(text).expanduser()


def shown(where: Place) -> str:
    """Return where keys are for people to read, without a password."""
    return str(where) if isinstance(where, Path) else _table(where).shown


@functools.cache
def _table(url: str) -> KeyTable:
    from adaptree.serve.key_table import KeyTable

    return KeyTable(url)


def keys_file() -> Place:
    """Return where API keys are: ADAPTREE_API_KEYS, else adaptree/api-keys.json in the user's folder for settings."""
    if said := os.environ.get("ADAPTREE_API_KEYS"):
        return place(said)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "adaptree" / "api-keys.json"


def read_keys(path: Place) -> list[ApiKey]:
    """Return the keys in a file or a database, none if there is no file; raise StoreError if they cannot be read."""
    if isinstance(path, str):
        return _table(path).read()
    try:
        said = loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"cannot read the keys in '{path}': {error.strerror or error}.") from error
    except ValueError as error:
        raise _broken(path, str(error)) from error
    if not isinstance(said, dict) or said.get("format") != FORMAT or not isinstance(said.get("keys"), list):
        raise _broken(path, f"it is not of format {FORMAT}")
    return [_read_key(path, each) for each in said["keys"]]


def _read_key(path: Path, said: Any) -> ApiKey:
    types = {"id": str, "hash": str, "tenant": str, "rate": float, "quota": int, "note": str, "created": str}
    if not isinstance(said, dict) or said.keys() != {*types, "scopes"}:
        raise _broken(path, "a key has fields that are not known, or lacks some")
    if not all(has_type(said[name], of) for name, of in types.items()) or not has_type(said["scopes"], list[str]):
        raise _broken(path, "a key has values of the wrong type")
    return ApiKey(**{**said, "scopes": tuple(said["scopes"])})


def _broken(path: Path, why: str) -> StoreError:
    return StoreError(f"the keys in '{path}' cannot be read: {why}.", hint="adaptree keys api new")


def new_key(
    path: Place,
    *,
    tenant: str = "",
    scopes: Sequence[str] = ("predict",),
    rate: float = 0.0,
    quota: int = 0,
    note: str = "",
) -> tuple[ApiKey, str]:
    """Make a key and add it to a file or a database; return it, and its text, which is nowhere else."""
    if tenant and not _TENANT.fullmatch(tenant):
        raise UsageError(f"'{tenant}' cannot be a tenant: it is 1 to 64 of a-z, 0-9, '_' and '-'.", hint="Try 'acme'.")
    for scope in scopes:
        if scope not in SCOPES:
            raise UsageError(f"no scope '{scope}': there is {', '.join(SCOPES)}.", hint=near(scope, SCOPES))
    if not scopes or not math.isfinite(rate) or rate < 0 or quota < 0:
        raise UsageError("a key needs a scope, and a rate and a quota that are not below 0.")
    secret = secrets.token_urlsafe(32)
    key = ApiKey(
        id=secrets.token_hex(6),
        hash=_hashed(secret),
        tenant=tenant,
        scopes=tuple(scope for scope in SCOPES if scope in scopes),
        rate=float(rate),
        quota=quota,
        note=note,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if isinstance(path, str):
        _table(path).add(key)
    else:
        _write(path, [*read_keys(path), key])
    return key, f"at_{key.id}_{secret}"


def remove_key(path: Place, id: str) -> None:
    """Remove a key from a file or a database: servers refuse it within a second."""
    found = read_keys(path)
    if id not in {key.id for key in found}:
        hint = near(id, [key.id for key in found])
        raise UsageError(f"no key '{id}' in '{shown(path)}'.", hint=f"{hint}   adaptree keys api list".strip())
    if isinstance(path, str):
        _table(path).remove(id)
    else:
        _write(path, [key for key in found if key.id != id])


def _write(path: Path, keys: Sequence[ApiKey]) -> None:
    """Replace the file, whole or not at all; only its owner can read it."""
    text = json_text({"format": FORMAT, "keys": [dataclasses.asdict(key) for key in keys]}, indent=1) + "\n"
    partial = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        partial.unlink(missing_ok=True)


def others_can_read(path: Place) -> bool:
    """Return whether everybody on the machine can read a file of keys."""
    return isinstance(path, Path) and os.name != "nt" and bool(path.stat().st_mode & stat.S_IROTH)


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True)
class Caller:
    """Who asks: without keys anybody, who may do everything."""

    key: ApiKey | None = None

    @property
    def tenant(self) -> str:
        return self.key.tenant if self.key else ""

    @property
    def customer(self) -> str:
        """Who shares the base fairly with others: the tenant, else the key; '' leaves it to the task."""
        return "" if self.key is None else f"tenant {self.key.tenant}" if self.key.tenant else f"key {self.key.id}"

    def check(self, scope: str) -> None:
        """Raise a Problem unless the caller may do this."""
        if self.key is not None and not {scope, "admin"} & set(self.key.scopes):
            raise Problem(403, "not_allowed", f"this key is not for '{scope}'.", hint="Ask for one that is.")


def _follow(keys: weakref.ref[Keys], url: str) -> None:
    """Read the keys of a database again every second, until nobody uses them any more."""
    while True:
        time.sleep(FRESH / 2)
        if (following := keys()) is None:
            return
        with suppress(StoreError):
            following._keys = {key.id: key for key in read_keys(url)}
        del following


@dataclass
class Keys:
    """The keys of a file or a database, as a server uses them; changes there count within a second.

    A database is asked by a thread of its own, so that no request waits for it. While it does not answer, the keys that
    were read last count.
    """

    path: Place
    counts: Counts = field(default_factory=Counts)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _keys: dict[str, ApiKey] = field(default_factory=dict)
    _seen: tuple[int, int, int] | None = None
    _looked: float = -math.inf

    def __post_init__(self) -> None:
        if isinstance(self.path, str):
            self._keys = {key.id: key for key in read_keys(self.path)}
            threading.Thread(target=_follow, args=(weakref.ref(self), self.path), daemon=True).start()
        else:
            self._look()

    def __len__(self) -> int:
        return len(self._keys)

    def _look(self) -> None:
        """Read the file if it is another one than before."""
        if isinstance(self.path, str):
            return
        now = time.monotonic()
        if now - self._looked < FRESH:
            return
        with self._lock:
            self._looked = now
            try:
                found = self.path.stat()
            except OSError:
                self._keys, self._seen = {}, None
                return
            seen = found.st_ino, found.st_mtime_ns, found.st_size
            if seen != self._seen:
                self._keys = {key.id: key for key in read_keys(self.path)}
                self._seen = seen

    def caller(self, header: str | None) -> Caller:
        """Return who sends this Authorization header; raise a Problem for none, or a wrong one."""
        with suppress(StoreError):  # somebody is editing it: what was read before counts
            self._look()
        how = {"WWW-Authenticate": 'Bearer realm="adaptree"'}
        if not header:
            raise Problem(401, "no_key", "an API key is needed.", hint="Authorization: Bearer at_…", headers=how)
        scheme, _, text = header.partition(" ")
        found = _KEY.fullmatch(text.strip())
        id, secret = (found[1], found[2]) if found else ("", "")
        key = self._keys.get(id)
        same = hmac.compare_digest(_hashed(secret), key.hash if key else _NOBODY)
        if not same or key is None or scheme.lower() != "bearer":
            raise Problem(
                401, "wrong_key", "this API key is not valid.", hint="Authorization: Bearer at_…", headers=how
            )
        return Caller(key)

    def count_request(self, caller: Caller) -> None:
        """Count a request of a key; raise a Problem if it comes too soon."""
        key = caller.key
        if key is None or not key.rate:
            return
        if wait := math.ceil(self.counts.take_request(key.id, key.rate)):
            raise Problem(
                429, "rate_limited", f"this key has {key.rate:g} requests a second.", hint=f"Wait {wait} s.",
                headers={"Retry-After": str(wait)},
            )  # fmt: skip

    def count_texts(self, caller: Caller, texts: int) -> None:
        """Count texts of a key; raise a Problem if they are more than are left of its day."""
        key = caller.key
        if key is None or not key.quota:
            return
        if (left := self.counts.take_texts(key.id, key.quota, texts)) is not None:
            wait = math.ceil(DAY - time.time() % DAY)
            raise Problem(
                429, "quota_exceeded", f"this key has {key.quota:,} texts a day, and {left:,} are left.",
                hint="Send fewer, or wait for midnight UTC.", headers={"Retry-After": str(wait)},
            )  # fmt: skip

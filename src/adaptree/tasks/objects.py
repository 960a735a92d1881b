"""The objects behind a URL, through fsspec: listed, read, created once, replaced, deleted.

`create` never replaces an object, whoever else creates it at the same time. S3 and Google Cloud Storage promise that
themselves (a conditional write); it is tried out before it is relied on, as some servers ignore the condition. For all
others there is a lock: whoever wants to create an object puts a claim of its own beside it, and goes on only while its
claim is the only one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import socket
import time
import uuid
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from adaptree.errors import StoreError, Unreachable, UsageError

CONDITIONAL = frozenset({"s3", "s3a", "gs", "gcs"})
"""Protocols whose fsspec implementation has a conditional write, which the server may honour or not."""
EXTRAS = {"s3": "adaptree[s3]", "s3a": "adaptree[s3]", "gs": "adaptree[gcs]", "gcs": "adaptree[gcs]"}
CHANGES = ("ETag", "etag", "generation", "mtime", "LastModified", "updated", "created")
"""Properties of an object that are others when it was replaced; the first that a file system has is used."""
CONNECT, READ, ATTEMPTS = 5, 15, 3
"""Seconds for S3 to accept a connection and to send the next bytes, and how often a request is tried."""
LEASE = 20.0
"""Seconds that a claim on an object counts: whoever made it may be dead afterwards."""
_PASSWORD = re.compile(r"(?<=//)([^/@:]*):[^/@]*@")


class Found(NamedTuple):
    """What a listing says of an object: a text that changes with its content, and its size."""

    stamp: str
    bytes: int


class Objects:
    """The objects under a URL, by their keys relative to it."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.shown = _PASSWORD.sub(r"\1@", self.url)
        self.protocol = url.partition("://")[0]

    def listing(self, prefix: str) -> dict[str, Found]:
        """Return the objects under a prefix, by what follows it in their keys."""
        with self._talking():
            path = self._path(prefix)
            try:
                found = self._fs.find(path, detail=True) if self.protocol in CONDITIONAL else self._walk(path)
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
                return {}
            start = f"{path.strip('/')}/"
            listed = {str(name).strip("/"): info for name, info in found.items() if info.get("type") != "directory"}
            return {name[len(start) :]: _found(info) for name, info in listed.items() if name.startswith(start)}

    def _walk(self, path: str) -> dict[str, dict[str, Any]]:
        """Return the files under a folder, with what is known of each; `find` would leave out what it cannot read."""
        found: dict[str, dict[str, Any]] = {}
        folders = [path]
        while folders:
            folder = folders.pop()
            with contextlib.suppress(FileNotFoundError):  # it is not there, or was removed meanwhile
                for info in self._fs.ls(folder, detail=True):
                    name = str(info["name"]).rstrip("/")
                    if info.get("type") != "directory":
                        found[name] = info
                    elif name.strip("/").startswith(f"{folder.strip('/')}/"):
                        folders.append(name)
        return found

    def read(self, key: str) -> bytes | None:
        """Return an object's bytes; None if there is none."""
        with self._talking():
            try:
                return bytes(self._fs.cat_file(self._path(key)))
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
                return None

    def create(self, key: str, data: bytes) -> bool:
        """Create an object, whole or not at all; return False if there is one, which stays as it is."""
        with self._talking():
            return self._create(key, data) if self._has_conditional_writes else self._create_locked(key, data)

    def put(self, key: str, data: bytes) -> None:
        """Create an object, or replace the one that is there."""
        with self._talking():
            self._put(key, data)

    def put_file(self, key: str, file: Path) -> None:
        """Create or replace an object with what a file holds, which need not fit into memory."""
        with self._talking():
            self._make_folder_of(key)
            self._fs.put_file(str(file), self._path(key))

    def get_file(self, key: str, file: Path) -> bool:
        """Write an object to a file; return False if there is none."""
        with self._talking():
            try:
                self._fs.get_file(self._path(key), str(file))
                return True
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
                return False

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        with self._talking():
            self._delete(key)

    def changed(self, key: str) -> float | None:
        """Return when an object was last written, by the server's clock; None where it does not say."""
        with self._talking():
            try:
                return float(self._fs.modified(self._path(key)).timestamp())
            except NotImplementedError:
                return None

    def check(self) -> None:
        """Raise the error that says why, if objects cannot be created here."""
        with self._talking():
            _ = self._has_conditional_writes

    # fsspec

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system and the path in it; opening it sends nothing yet."""
        from fsspec.core import url_to_fs

        try:
            fs, path = url_to_fs(self.url, use_listings_cache=False, **self._options())
        except ImportError as error:
            package = EXTRAS.get(self.protocol)
            hint = f"pip install '{package}'" if package else str(error).strip()
            raise StoreError(f"{self.shown} needs a package that is not installed.", hint=hint) from error
        except ValueError as error:
            what = f"'{self.shown}' cannot be a store: {error}."
            raise UsageError(what, hint="A folder, or s3://BUCKET/PREFIX, gs://BUCKET/PREFIX.") from error
        if self.protocol in ("s3", "s3a"):
            fs.retries = 1  # botocore tries again already
        return fs, path

    def _options(self) -> dict[str, Any]:
        """Return the time limits of S3, which by default tries for minutes; other settings are the user's own."""
        if self.protocol not in ("s3", "s3a"):
            return {}
        from fsspec.config import conf

        limits = {"connect_timeout": CONNECT, "read_timeout": READ, "retries": {"total_max_attempts": ATTEMPTS}}
        return {"config_kwargs": limits | conf.get("s3", {}).get("config_kwargs", {})}

    @property
    def _fs(self) -> Any:
        return self._opened[0]

    def _path(self, key: str) -> str:
        return f"{self._opened[1].rstrip('/')}/{key}"

    def _put(self, key: str, data: bytes) -> None:
        self._make_folder_of(key)
        self._fs.pipe_file(self._path(key), data)

    def _make_folder_of(self, key: str) -> None:
        """Make the folder that an object is to be in, where there are folders; in a bucket there are none."""
        if self.protocol not in CONDITIONAL:
            with contextlib.suppress(NotImplementedError):
                self._fs.makedirs(self._path(key).rpartition("/")[0], exist_ok=True)

    def _delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(key))

    # creating what must not be there yet

    @cached_property
    def _has_conditional_writes(self) -> bool:
        """Whether the server refuses to create an object that is there; trying it shows if it can be written, too."""
        key = f"tmp/{uuid.uuid4().hex}"
        try:
            if self.protocol not in CONDITIONAL:
                self._put(key, b"")
                return False
            try:
                return self._create(key, b"") and not self._create(key, b"")
            except OSError as error:
                if error.errno == errno.ENOSYS:  # the server says that it does not know the condition
                    return False
                raise
        finally:
            self._delete(key)

    def _create(self, key: str, data: bytes) -> bool:
        patience = time.monotonic() + LEASE
        while True:
            try:
                self._fs.pipe_file(self._path(key), data, mode="create")
                return True
            except FileExistsError:
                return False
            except Exception as error:
                if _code(error) in ("PreconditionFailed", "412"):
                    return False
                if _code(error) != "ConditionalRequestConflict" or time.monotonic() > patience:
                    raise
            time.sleep(random.uniform(0.05, 0.3))  # another client is creating it: ask again when that has ended

    def _create_locked(self, key: str, data: bytes) -> bool:
        partial = f"tmp/{uuid.uuid4().hex}"
        try:
            self._put(partial, data)  # before the lock, which is then held for a moment only
            with self._lock(key) as until:
                if self._fs.exists(self._path(key)):
                    return False
                if time.monotonic() > until:
                    raise StoreError(f"{self.shown} answers too slowly to write to it safely.", hint="Try again.")
                self._make_folder_of(key)
                self._fs.mv(self._path(partial), self._path(key))
                return True
        finally:
            self._delete(partial)

    @contextlib.contextmanager
    def _lock(self, key: str) -> Iterator[float]:
        """Hold the only claim on a key, and yield the time until which it is safe to act on it.

        Of several claims at the same time the first by name stays and waits, the others are withdrawn and made again.
        """
        folder, owner = f"locks/{key}", f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        patience = time.monotonic() + 3 * LEASE
        mine, safe = "", 0.0
        try:
            while True:
                if not mine or time.monotonic() > safe:
                    if mine:
                        self._delete(f"{folder}/{mine}")
                    mine, safe = f"{time.time() + LEASE:.0f}-{owner}", time.monotonic() + LEASE / 2
                    self._put(f"{folder}/{mine}", b"")
                claims = self._claims(folder)
                if claims == [mine]:
                    break
                if claims and claims[0] != mine:
                    self._delete(f"{folder}/{mine}")
                    mine = ""
                if time.monotonic() > patience:
                    raise StoreError(f"others keep {self.shown}/{key} locked.", hint="Try again in a minute.")
                time.sleep(random.uniform(0.02, 0.2))
            yield safe
        finally:
            if mine:
                self._delete(f"{folder}/{mine}")

    def _claims(self, folder: str) -> list[str]:
        """Return the claims in a folder that still count, and delete those that have expired."""
        counting = []
        for claim in sorted(self.listing(folder)):
            until, _, _ = claim.partition("-")
            if until.isdigit() and int(until) < time.time() - LEASE / 2:  # clocks may differ by some seconds
                self._delete(f"{folder}/{claim}")
            else:
                counting.append(claim)
        return counting

    # errors

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """Turn what goes wrong between here and the server into an error of one line."""
        try:
            yield
        except (StoreError, UsageError):
            raise
        except Exception as error:
            raise self._problem(error) from error

    def _problem(self, error: Exception) -> Unreachable:
        kind, said = type(error).__name__, (str(error).strip().splitlines() or [""])[0].partition("?")[0].rstrip(".")
        said += '"' * (said.count('"') % 2)  # of a URL that was cut at its query
        if _code(error) == "NoSuchBucket":
            return Unreachable(f"the bucket of {self.shown} does not exist.", hint="Create it, or correct the URL.")
        if "Credential" in kind or "TokenRetrieval" in kind or kind == "ProfileNotFound":
            return Unreachable(
                f"there are no credentials for {self.shown}: {said}.",
                hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE."
                if self.protocol in ("s3", "s3a")
                else "Log in as its own tools ask you to.",
            )
        if isinstance(error, PermissionError):
            return Unreachable(
                f"{self.shown} refuses access: {said}.", hint="Check the credentials and what they allow."
            )
        if isinstance(error, ConnectionError | TimeoutError) or "Connect" in kind or "Timeout" in kind:
            hint = "Check the network and the URL (for S3 also AWS_ENDPOINT_URL), and try again."
            return Unreachable(f"{self.shown} cannot be reached: {said or kind}.", hint=hint)
        return Unreachable(f"{self.shown} does not answer as a store should: {said or kind}.", hint="Try again.")


def _found(info: dict[str, Any]) -> Found:
    changing = next((str(info[name]) for name in CHANGES if info.get(name)), "")
    size = int(info.get("size") or 0)
    return Found(f"{size} {changing}", size)


def _code(error: BaseException) -> str:
    """Return the code that the server gave for an error, such as NoSuchBucket or 412; '' if it gave none."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        if code := getattr(seen, "code", None):  # of Google Cloud Storage
            return str(code)
        seen = seen.__cause__ or seen.__context__
    return ""

"""The tasks that are in memory: a budget of bytes, the least recently used goes first, pinned ones stay.

A task that is asked for and not there is read from the store by a few threads, while others are served. What a name
stands for (its newest version, or a tag's) is looked up again from time to time, in the background: meanwhile the last
answer counts, for a few seconds. After those a request waits for the look-up, so that a version that was replaced or
removed by another process does not answer later than that; unless the store does not answer, either.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from adaptree.compose import compile_, of_task, parse
from adaptree.errors import AdaptreeError, TaskNotFound
from adaptree.models.bank import Bank
from adaptree.serve.heap import give_back
from adaptree.serve.served import Served

if TYPE_CHECKING:
    from adaptree.compose import Composition
    from adaptree.models.base import Base
    from adaptree.tasks.store import Store

FRESH = 1.0
"""Seconds for which a looked-up name counts; then it is looked up again in the background."""
GRACE = 2.0
"""Seconds more for which it answers meanwhile; then a request waits until its name has been looked up again."""
LOOK_UPS = 16
"""Names that are looked up at a time."""
SLOW = 2.0
"""Seconds of a look-up after which no request waits for its own: the store is away, and what was found last counts."""
PATIENCE = 30.0
"""Seconds that a task waits for room, while all that is in memory is in use."""
GIVE_BACK = 16 << 20
"""Bytes of tasks that are read, after which the memory that reading them took goes back to the system."""


class NoRoom(AdaptreeError):
    """All tasks in memory are in use or pinned, and there is no room for another."""


class Shelf:
    """Tasks of a store in memory, by reference."""

    def __init__(
        self,
        base: Base,
        store: Store,
        *,
        memory: int,
        loaders: int = 2,
        fresh: float = FRESH,
        grace: float = GRACE,
        patience: float = PATIENCE,
    ) -> None:
        self.base, self.store, self.memory = base, store, memory
        self.fresh, self.grace, self.patience = fresh, grace, patience
        self.bank = Bank(base)
        self.bytes = 0
        self.hits = self.loads = self.evictions = 0
        self._read = 0
        """Bytes of tasks that were read since memory was last given back."""
        self._changed = threading.Condition()
        self._here: OrderedDict[str, Served] = OrderedDict()
        """Versions in memory by reference, the least recently used first."""
        self._meaning: dict[str, tuple[str, float]] = {}
        """What a name, tag or composition that is in memory stood for, and when that was looked up."""
        self._loading: dict[str, Future[Served]] = {}
        self._checking: dict[str, Future[None]] = {}
        self._looking_since: dict[str, float] = {}
        """When the look-ups began that are under way."""
        self._away_until = 0.0
        self._pinned: set[str] = set()
        self._pool = ThreadPoolExecutor(loaders, thread_name_prefix="adaptree-load")
        self._look_ups = ThreadPoolExecutor(LOOK_UPS, thread_name_prefix="adaptree-look-up")

    def get(self, name: str) -> Served | Future[Served]:
        """Return a task with one more user, or a future of one: it has to be read from the store.

        The future fails as the reading did: with TaskNotFound, TaskCorrupt, WrongBase, NoRoom.
        """
        with self._changed:
            meant, when = self._meaning.get(name, ("", 0.0))
            served, age = self._here.get(meant), time.monotonic() - when
            if served is not None and age > self.fresh and name not in self._checking:
                self._checking[name] = self._look_ups.submit(self._check, name)
            if served is not None and age > self.fresh + self.grace and not self._is_away():
                waiting: Future[Any] = self._checking[name]
            elif served is not None and served.acquire():
                self._here.move_to_end(meant)
                self.hits += 1
                return served
            else:
                if name not in self._loading:
                    self._loading[name] = self._pool.submit(self._load, name)
                waiting = self._loading[name]
        found: Future[Served] = Future()
        waiting.add_done_callback(lambda done: self._hand_over(name, done, found))
        return found

    def _is_away(self) -> bool:
        """Return whether the store takes so long to answer that nobody should wait for it."""
        now = time.monotonic()
        return now < self._away_until or any(now - since > SLOW for since in self._looking_since.values())

    def _hand_over(self, name: str, done: Future[Any], to: Future[Served]) -> None:
        """Give a task that was loaded, or looked up, to one who waited for it, as a user of it."""
        if not to.set_running_or_notify_cancel():
            return
        if done.exception() is None:
            served = done.result()
            if served is None or not served.acquire():  # it was looked up; or replaced or evicted just now
                again = self.get(name)
                if not isinstance(again, Served):
                    again.add_done_callback(lambda found: _copy(found, to))
                    return
                served = again
            to.set_result(served)
            return
        _copy(done, to)

    def _load(self, name: str) -> Served:
        try:
            return self._loaded(name)
        finally:
            with self._changed:
                self._loading.pop(name, None)

    def _loaded(self, name: str) -> Served:
        when = time.monotonic()
        reference = self._look_up(name)
        with self._changed:
            if (here := self._here.get(reference)) is not None:
                self._name(name, reference, when)
                return here
        size = self._make_room(reference)
        try:
            served = Served(self.base, self.bank, self._composition(reference), reference)
        except BaseException:
            with self._changed:
                self.bytes -= size
            raise
        with self._changed:
            self.bytes -= size
            if (other := self._here.get(reference)) is not None:  # two names of one version, loaded at once
                served.retire()
                served = other
            else:
                self._here[reference] = served
                self.bytes += served.bytes
                self.loads += 1
                self._read += size
                while self.bytes > self.memory and self._evict(but=reference):
                    pass  # it takes more than its file says, where a stack fills it up
            self._name(name, reference, when)
            if give := self._read >= GIVE_BACK:
                self._read = 0
        if give:
            give_back()
        return served

    def _look_up(self, name: str) -> str:
        """Return what a name stands for now: a reference with its version, or a composition of such."""
        if not is_composition(name):
            return self.store.reference(name)
        expression = parse(name)
        return repr(expression.renamed({each: self.store.reference(each) for each in expression.names}))

    def _composition(self, reference: str) -> Composition:
        """Read what a reference stands for from the store."""
        device, check = self.base.device, self.base.check
        if not is_composition(reference):
            return of_task(self.store[reference], device=device, check=check)
        expression = parse(reference)
        return compile_(expression, {each: self.store[each] for each in expression.names}, device, check)

    def _check(self, name: str) -> None:
        """Look a name up again: load the version that it stands for now, then let it answer, without a pause."""
        when = time.monotonic()
        try:
            with self._changed:
                self._looking_since[name] = when
            try:
                reference = self._look_up(name)
            finally:
                with self._changed:
                    del self._looking_since[name]
                    if time.monotonic() - when > SLOW:
                        self._away_until = time.monotonic() + SLOW
            with self._changed:
                meant, _ = self._meaning.get(name, ("", 0.0))
                if meant == reference:
                    self._name(name, reference, when)
            if meant not in ("", reference):  # "": it was evicted meanwhile
                self._loaded(name)
        except TaskNotFound:
            self.forget(name)
        except Exception:  # the store does not answer, or the new version is damaged: the old one goes on
            with self._changed:
                if name in self._meaning:
                    self._meaning[name] = self._meaning[name][0], time.monotonic()
        finally:
            with self._changed:
                del self._checking[name]

    def forget(self, name: str) -> None:
        """Let a name, with its versions and tags, be looked up anew at its next use.

        What it stood for leaves memory, unless other names mean it.
        """
        with self._changed:
            for each in [each for each in self._meaning if each == name or each.startswith(f"{name}@")]:
                self._unname(each)

    def _name(self, name: str, reference: str, when: float) -> None:
        """Let a name stand for a version in memory from now on, and no more for another; it was looked up at `when`."""
        if self._meaning.get(name, (reference, 0.0))[0] != reference:
            self._unname(name)
        self._meaning[name] = reference, when
        self._here[reference].names.add(name)

    def _unname(self, name: str) -> None:
        """Let a name stand for nothing, and a version go that no name stands for any more."""
        meant, _ = self._meaning.pop(name, ("", 0.0))
        if (served := self._here.get(meant)) is not None:
            served.names.discard(name)
            if not served.names and meant not in self._pinned:
                self._let_go(meant)
                self._changed.notify_all()

    def _let_go(self, reference: str) -> None:
        """Take a version out of memory, and the names that stand for it: there may be any number of those."""
        served = self._here.pop(reference)
        for name in served.names:
            del self._meaning[name]
        self.bytes -= served.bytes
        served.retire()

    def _make_room(self, reference: str) -> int:
        """Reserve the bytes that a task will take, and return them; evict what was not used for longest, or wait."""
        names = parse(reference).names if is_composition(reference) else [reference]
        size = sum(self.store.record(each).file_bytes for each in names)
        until = time.monotonic() + self.patience
        with self._changed:
            while self.bytes + size > self.memory:
                if self._evict():
                    continue
                if size > self.memory or time.monotonic() >= until:
                    raise NoRoom(
                        f"there is no room in memory for '{reference}' ({size:,} bytes), as all tasks are in use.",
                        hint="Allow more: --memory",
                    )
                self._changed.wait(0.02)
            self.bytes += size
        return size

    def _evict(self, but: str = "") -> bool:
        """Let the version go that was not used for longest, of those that are neither in use nor pinned."""
        for reference, served in self._here.items():
            if not served.busy and reference not in self._pinned and reference != but:
                self._let_go(reference)
                self.evictions += 1
                return True
        return False

    # What an owner of the engine asks for.

    def pin(self, name: str) -> str:
        """Keep a task in memory from now on; return its reference."""
        found = self.get(name)
        served = found if isinstance(found, Served) else found.result()
        with self._changed:
            self._pinned.add(served.reference)
        served.release()
        return served.reference

    def unpin(self, name: str) -> None:
        """Let a task be evicted again."""
        with self._changed:
            for each in self._pinned & {name, self._meaning.get(name, ("", 0.0))[0]}:
                self._pinned.discard(each)
                if each in self._here and not self._here[each].names:  # it was replaced meanwhile
                    self._let_go(each)

    def __len__(self) -> int:
        return len(self._here)

    def references(self) -> list[str]:
        """Return what is in memory, the most recently used last."""
        with self._changed:
            return list(self._here)

    def close(self) -> None:
        for pool in (self._pool, self._look_ups):
            pool.shutdown(wait=False, cancel_futures=True)


def _copy(done: Future[Any], to: Future[Any]) -> None:
    error = done.exception()
    if error is not None:
        to.set_exception(error)
    else:
        to.set_result(done.result())


def is_composition(name: str) -> bool:
    return "(" in name

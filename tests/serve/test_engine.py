"""The engine: mixed requests get the answers of each task alone, while tasks come, change, go and make room."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptree as at
from adaptree.errors import BadName, TaskCorrupt, TaskNotFound, UsageError, WrongBase
from adaptree.methods import parse
from adaptree.models.base import Base
from adaptree.serve.batcher import QueueFull
from adaptree.serve.engine import Closed, DeadlineExceeded, Engine
from adaptree.serve.shelf import NoRoom
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests.bases import tiny_base
from tests.kinds.test_every_kind import OPTIONS, asked, rows
from tests.test_several import TEXTS

METHODS = [
    "houlsby:8", "houlsby:7", "houlsby(size=8, norms=false)", "houlsby(size=4, layers=top:1)", "pfeiffer:8",
    "pfeiffer(size=8, invertible=true)", "lora:2", "lora:4", "ia3", "pal:12", "bapna:4", "parallel_adapter:4",
    "scaled_parallel:4", "houlsby_parallel:4", "houlsby_multiplicative:4", "houlsby_norm:4", "houlsby_deep:4",
    "norms", "head", "bitfit", "full", "top:1",
]  # fmt: skip
SHARING = set(METHODS) - {"full", "top:1"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("served") / "base", mask=True))


def made(base: Base, like: Task, method: str, name: str, seed: int) -> Task:
    """A task of a method with weights at random."""
    hooked, generator = base.hooked, torch.Generator().manual_seed(seed)
    v = parse(method).init(hooked.sites, hooked.backbone, generator)
    v = {key: t + 0.1 * torch.randn(t.shape, generator=generator) for key, t in v.items()}
    head = {key: torch.randn(t.shape, generator=generator) for key, t in like.weights.items() if "head" in key}
    return Task(replace(like.record, name=name, method=str(parse(method)), digest="", file_bytes=0), {**v, **head})


@pytest.fixture(scope="module")
def like(base: Base) -> Task:
    data = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(TEXTS)]
    return at.train(data, base=base, name="like", method="head", epochs=1, baselines=False).task


@pytest.fixture(scope="module")
def store(base: Base, like: Task, tmp_path_factory: pytest.TempPathFactory) -> Store:
    kept = Store(tmp_path_factory.mktemp("served") / "store")
    for i, method in enumerate(METHODS):
        kept.add(made(base, like, method, f"m{i}", i))
    for kind, options in OPTIONS.items():
        kept.add(at.train(rows(kind, 24), base=base, name=f"k-{kind}", method="houlsby:4", epochs=1, baselines=False,
                          objective="cross-entropy", **options).task)  # fmt: skip
    data = [{"text": text, "label": "abc"[i % 3]} for i, text in enumerate(TEXTS)]
    kept.add(at.train(data, base=base, name="bag", method="tfidf", epochs=1, baselines=False).task)
    kept.add(at.train(data, base=base, name="long", method="houlsby:4", windows=True, max_length=10, epochs=1,
                      baselines=False, objective="cross-entropy").task)  # fmt: skip
    return kept


@pytest.fixture
def engine(base: Base, store: Store) -> Iterator[Engine]:
    with Engine(base, store) as running:
        yield running


def assert_close(found: Any, wanted: Any) -> None:
    """Two predictions are the same but for the last digits."""
    one, other = found.to_dict(), wanted.to_dict()
    assert one.keys() == other.keys()
    for key, value in other.items():
        assert one[key] == pytest.approx(value, abs=1e-4) if _numeric(value) else one[key] == value, key


def _numeric(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, dict) and all(isinstance(v, float) for v in value.values()))


def test_every_method_gives_the_answers_of_the_task_alone_in_one_mixed_batch(engine: Engine, store: Store) -> None:
    names = [f"m{i}" for i in range(len(METHODS))]
    for name in names:
        engine.predict(name, TEXTS[:1])
    apart = {METHODS[i] for i, name in enumerate(names) if engine.shelf._here[f"{name}@1"].why_apart}
    assert apart == {"full", "top:1"}
    alone = {name: engine.base.bind(store[name]) for name in names}
    futures = [(name, text, engine.submit(name, [text])) for text in TEXTS for name in names]
    for name, text, future in futures:
        wanted = alone[name].predict([text])[0]
        found = future.result(60)[0]
        assert found.label == wanted.label or abs(wanted.score - 0.5) < 1e-4
        assert found.scores == pytest.approx(wanted.scores, abs=2e-5), METHODS[int(name[1:])]
    assert engine.stats()["tasks_per_batch"] > 2


def test_every_kind_is_answered_beside_others(engine: Engine, store: Store) -> None:
    ask = [(f"k-{kind}", asked(kind, text)) for kind in OPTIONS for text in TEXTS[:6]]
    ask += [(name, text) for name in ("bag", "long", "m0") for text in TEXTS]
    random.Random(0).shuffle(ask)
    futures = [(name, given, engine.submit(name, [given])) for name, given in ask]
    for name, given, future in futures:
        assert_close(future.result(60)[0], engine.base.bind(store[name]).predict([given])[0])


def test_compositions_are_served(engine: Engine, store: Store) -> None:
    texts = ["stack(m4, m2)", "average(m0, m0)", "drop(m4, layers='0')", "average_outputs(m4, m6)"]
    for text in texts:
        found = engine.predict(text, TEXTS[:3])
        for one, other in zip(found, engine.base.bind(text, tasks=store).predict(TEXTS[:3]), strict=True):
            assert_close(one, other)
    with pytest.raises(UsageError, match="several predictions"):
        engine.predict("parallel(m0, m1)", TEXTS[:1])


def test_the_answer_to_a_row_has_the_same_bits_whatever_is_in_its_batch(base: Base, store: Store) -> None:
    with Engine(base, store, max_wait=0.05) as engine:
        text, name = TEXTS[0], "m0"
        first = [engine.submit(name, [text]), engine.submit("m2", [text])]
        seen = {tuple(first[0].result(30)[0].scores.values())}
        for seed in range(5):
            rng = random.Random(seed)
            others = [f"m{i}" for i in rng.sample(range(1, 12), 6)]
            futures = [engine.submit(each, [text]) for each in [*others[:3], name, *others[3:]]]
            seen.add(tuple(futures[3].result(30)[0].scores.values()))
        assert len(seen) == 1


def test_many_inputs_are_answered_in_order_and_none_with_nothing(engine: Engine, store: Store) -> None:
    found = engine.predict("m0", TEXTS * 10)
    alone = engine.base.bind(store["m0"]).predict(TEXTS)
    assert [each.label for each in found] == [each.label for each in alone] * 10
    assert engine.predict("m0", []) == engine.predict("bag", []) == []
    assert engine.predict("m0", "the old lion")[0].label in "ab"
    assert engine.predict("m0", [""])[0].label is None


def test_what_is_wrong_is_said_and_the_others_are_answered(engine: Engine, base: Base, tmp_path: Path) -> None:
    good = engine.submit("m0", TEXTS[:2])
    for name, wrong in (("nowhere", TaskNotFound), ("m0@7", TaskNotFound), ("No!", BadName)):
        with pytest.raises(wrong):
            engine.predict(name, TEXTS[:1])
    before = engine.stats()
    for given in ([3], [("a", "b")], [None]):
        with pytest.raises(UsageError):
            engine.predict("m0", given)
    after = engine.stats()
    assert (after["refused"] - before["refused"], after["failures"] - before["failures"]) == (3, 0)
    assert len(good.result(30)) == 2
    assert not any(served.busy for served in engine.shelf._here.values()), "what failed is not in use any more"


def test_a_damaged_task_and_one_of_another_base_are_refused(base: Base, like: Task, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.add(made(base, like, "houlsby:4", "fine", 0))
    store.add(made(base, like, "houlsby:4", "broken", 1))
    other = at.load_base(tiny_base(tmp_path / "other", seed=3))
    data = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(TEXTS)]
    store.add(at.train(data, base=other, name="theirs", method="head", epochs=1, baselines=False).task)
    path = store.path_of("broken") / "task.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with Engine(base, store) as engine:
        with pytest.raises(TaskCorrupt):
            engine.predict("broken", TEXTS[:1])
        with pytest.raises(WrongBase):
            engine.predict("theirs", TEXTS[:1])
        assert engine.predict("fine", TEXTS[:1])
        assert engine.shelf.bytes == sum(each.bytes for each in engine.shelf._here.values())


# Time and load


def test_an_answer_that_comes_too_late_is_not_computed(base: Base, store: Store) -> None:
    with Engine(base, store, max_wait=0.2) as engine:
        engine.predict("m0", TEXTS[:1])
        with pytest.raises(DeadlineExceeded):
            engine.predict("m0", TEXTS[:1], timeout=0.01)
        assert engine.predict("m0", TEXTS[:1], timeout=60)
        assert engine.stats()["expired"] == 1


def test_a_cancelled_request_is_not_computed_and_frees_its_task(base: Base, store: Store) -> None:
    with Engine(base, store, max_wait=0.2) as engine:
        engine.predict("m0", TEXTS[:1])
        before = engine.stats()["rows"]
        future = engine.submit("m0", TEXTS[:4])
        assert future.cancel()
        engine.predict("m1", TEXTS[:1])
        assert engine.stats()["rows"] == before + 1
        assert not engine.shelf._here["m0@1"].busy


def test_a_fault_in_one_batch_is_said_to_those_in_it_and_the_engine_goes_on(
    base: Base, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(base, store) as engine:
        wanted = engine.predict("m0", TEXTS[:1])
        for fault in (RuntimeError("out of memory"), None):

            def broken(batch: Any, fault: Any = fault) -> Any:
                if fault is not None:
                    raise fault
                return None  # no list of requests

            with monkeypatch.context() as patched:
                patched.setattr(engine, "_together", broken)
                with pytest.raises((RuntimeError, TypeError)):
                    engine.predict("m0", TEXTS[:1], timeout=20)
            assert engine.predict("m0", TEXTS[:1]) == wanted
            assert not engine.shelf._here["m0@1"].busy


def test_a_full_queue_is_said_at_once_and_it_recovers(base: Base, store: Store) -> None:
    with Engine(base, store, max_queue=20, max_wait=0.1) as engine:
        engine.predict("m0", TEXTS[:1])
        accepted, refused = [], []
        for _ in range(30):
            try:
                accepted.append(engine.submit("m0", TEXTS[:4]))
            except QueueFull as full:
                refused.append(full.retry_after)
        assert refused
        assert min(refused) >= 1
        assert all(len(future.result(30)) == 4 for future in accepted)
        assert len(engine.predict("m0", TEXTS[:4])) == 4
        assert not engine.shelf._here["m0@1"].busy


def test_closing_answers_what_waits_and_takes_no_more(base: Base, store: Store) -> None:
    engine = Engine(base, store, max_wait=0.1)
    engine.predict("m0", TEXTS[:1])
    futures = [engine.submit("m0", [text]) for text in TEXTS]
    engine.close()
    assert all(future.result(0)[0].label for future in futures)
    with pytest.raises(Closed):
        engine.submit("m0", TEXTS[:1])


# Memory


def test_the_least_recently_used_makes_room_and_the_memory_stays_within_the_budget(
    base: Base, like: Task, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    names = [f"t{i}" for i in range(12)]
    for i, name in enumerate(names):
        store.add(made(base, like, "houlsby:8", name, i))
    size = store.record("t0").file_bytes
    alone = {name: base.bind(store[name]).predict(TEXTS[:1])[0].scores for name in names}
    with Engine(base, store, memory=4 * size) as engine:
        rng = random.Random(0)
        for name in [*names, *rng.choices(names, k=60)]:
            assert engine.predict(name, TEXTS[:1])[0].scores == pytest.approx(alone[name], abs=2e-5)
            assert engine.shelf.bytes <= 4 * size
        assert engine.stats()["evictions"] > 20
        assert 2 <= len(engine.shelf) <= 4


def test_a_pinned_task_stays_and_what_does_not_fit_is_refused(base: Base, like: Task, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for i, name in enumerate("abcdef"):
        store.add(made(base, like, "houlsby:8", name, i))
    store.add(made(base, like, "houlsby:200", "huge", 9))
    with Engine(base, store, memory=2 * store.record("a").file_bytes) as engine:
        assert engine.shelf.pin("a") == "a@1"
        for name in "bcdef":
            engine.predict(name, TEXTS[:1])
        assert "a@1" in engine.shelf.references()
        with pytest.raises(NoRoom, match="no room in memory for 'huge@1'"):
            engine.predict("huge", TEXTS[:1])
        engine.shelf.unpin("a")
        for name in "bc":
            engine.predict(name, TEXTS[:1])
        assert "a@1" not in engine.shelf.references()


def test_a_slot_that_was_freed_leaves_nothing_to_the_next_task(base: Base, like: Task, tmp_path: Path) -> None:
    store = Store(tmp_path)
    large, small = made(base, like, "houlsby:8", "large", 0), made(base, like, "houlsby:2", "small", 1)
    for task in (large, small):
        store.add(task)
    with Engine(base, store, memory=store.record("large").file_bytes) as engine:
        engine.predict("large", TEXTS[:1])
        found = engine.predict("small", TEXTS[:3])  # in the same slot, filled up with zeros
        assert engine.stats()["evictions"] == 1
        for one, other in zip(found, base.bind(small).predict(TEXTS[:3]), strict=True):
            assert one.scores == pytest.approx(other.scores, abs=2e-5)


def test_a_task_is_in_memory_once(base: Base, like: Task, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(made(base, like, "houlsby:64", "a", 0))
    with Engine(base, store) as engine:
        engine.predict("a", TEXTS[:1])
        gc.collect()
        held = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.shape == (32, 64)]
        assert len({t.untyped_storage().data_ptr() for t in held}) <= 1, "only in the stack"
        served = engine.shelf._here["a@1"]
        assert served.bytes <= 1.1 * store["a"].bytes


# Hot changes


def wait_until(holds: Any, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_new_version_answers_soon_and_an_old_one_to_the_end_of_its_requests(
    base: Base, like: Task, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    versions = [made(base, like, "houlsby:4", "a", seed) for seed in range(2)]
    scores = [base.bind(task).predict(TEXTS[:1])[0].scores for task in versions]
    store.add(versions[0])
    with Engine(base, store) as engine:
        engine.shelf.fresh = 0.05
        assert engine.predict("a", TEXTS[:1])[0].scores == pytest.approx(scores[0], abs=2e-5)
        under_way = engine.shelf.get("a")
        store.add(versions[1])

        def new() -> bool:
            return bool(engine.predict("a", TEXTS[:1])[0].scores == pytest.approx(scores[1], abs=2e-5))

        wait_until(new)
        assert engine.predict("a@1", TEXTS[:1])[0].scores == pytest.approx(scores[0], abs=2e-5)
        store.tag("a@1", "stable")
        assert engine.predict("a@stable", TEXTS[:1])[0].scores == pytest.approx(scores[0], abs=2e-5)
        assert under_way.reference == "a@1"  # type: ignore[union-attr]
        under_way.release()  # type: ignore[union-attr]


def test_a_removed_task_is_not_found_soon_and_its_memory_is_free(base: Base, like: Task, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(made(base, like, "houlsby:4", "a", 0))
    with Engine(base, store) as engine:
        engine.shelf.fresh = 0.05
        engine.predict("a", TEXTS[:1])
        store.remove("a")

        def gone() -> bool:
            try:
                engine.predict("a", TEXTS[:1])
            except TaskNotFound:
                return True
            return False

        wait_until(gone)
        assert engine.shelf.bytes == 0
        store.add(made(base, like, "houlsby:4", "a", 1))
        assert engine.predict("a", TEXTS[:1])


def test_a_task_that_nobody_asked_for_long_is_looked_up_before_it_answers(
    base: Base, like: Task, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    for name, seed in (("a", 1), ("gone", 2)):
        store.add(made(base, like, "houlsby:8", name, seed))
    with Engine(base, store) as engine:
        engine.shelf.fresh = engine.shelf.grace = 0.05
        before = engine.predict("a", TEXTS[:1])[0].scores
        engine.predict("gone", TEXTS[:1])
        Store(tmp_path / "store").add(made(base, like, "houlsby:8", "a", 3))  # by another process, say
        Store(tmp_path / "store").remove("gone")
        time.sleep(0.2)
        wanted = base.bind(store["a@2"]).predict(TEXTS[:1])[0].scores
        assert wanted != pytest.approx(before, abs=1e-3)
        assert engine.predict("a", TEXTS[:1])[0].scores == pytest.approx(wanted, abs=2e-5), "the first to ask"
        with pytest.raises(TaskNotFound):
            engine.predict("gone", TEXTS[:1])


def test_tasks_in_memory_go_on_while_the_store_does_not_answer(
    base: Base, like: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    for name in ("a", "b"):
        store.add(made(base, like, "houlsby:8", name, 1))
    monkeypatch.setattr("adaptree.serve.shelf.SLOW", 0.2)
    with Engine(base, store) as engine:
        engine.shelf.fresh = engine.shelf.grace = 0.05
        for name in ("a", "b"):
            engine.predict(name, TEXTS[:1])
        answers = threading.Event()
        monkeypatch.setattr(store, "reference", lambda name: answers.wait(60) and f"{name}@1")
        time.sleep(0.2)
        first = engine.submit("a", TEXTS[:1])
        time.sleep(0.4)
        engine.submit("b", TEXTS[:1]).result(30)
        assert not first.done()
        answers.set()
        first.result(30)


def test_a_new_version_that_is_damaged_leaves_the_old_one_answering(base: Base, like: Task, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(made(base, like, "houlsby:4", "a", 0))
    with Engine(base, store) as engine:
        engine.shelf.fresh = 0.02
        wanted = engine.predict("a", TEXTS[:1])
        store.add(made(base, like, "houlsby:4", "a", 1))
        path = store.path_of("a@2") / "task.safetensors"
        path.write_bytes(path.read_bytes()[:-4])
        for _ in range(20):
            assert engine.predict("a", TEXTS[:1]) == wanted
            time.sleep(0.02)


def test_a_shadow_answers_unseen_and_is_compared(base: Base, like: Task, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in (0, 0, 1):
        store.add(made(base, like, "houlsby:4", "a", seed))
    with Engine(base, store) as engine:
        alone = {n: base.bind(store[f"a@{n}"]).predict(TEXTS) for n in (1, 2, 3)}
        differ = sum(one.label != other.label for one, other in zip(alone[1], alone[3], strict=True))
        assert differ
        same = engine.shadow("a@1", "a@2")
        assert [each.label for each in engine.predict("a@1", TEXTS)] == [each.label for each in alone[1]]
        wait_until(lambda: same.compared == len(TEXTS))
        assert same.differs == 0
        other = engine.shadow("a@1", "a@3")
        engine.predict("a@1", TEXTS)
        wait_until(lambda: other.compared == len(TEXTS))
        assert other.differs == differ
        assert len(other.examples) == min(20, differ)
        broken = engine.shadow("a@1", "nowhere")
        assert engine.predict("a@1", TEXTS[:1])
        wait_until(lambda: broken.failed == 1)


@pytest.mark.slow
def test_many_threads_ask_while_tasks_are_added_replaced_removed_and_evicted(
    base: Base, like: Task, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    names = [f"t{i}" for i in range(10)]
    known: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    methods = ["houlsby:8", "lora:2", "houlsby:5", "bitfit", "full"]

    def add(name: str, seed: int) -> None:
        task = made(base, like, methods[int(name[1:]) % len(methods)], name, seed)
        known[name].append(base.bind(task).predict(TEXTS[:1])[0].scores)
        store.add(task)

    for i, name in enumerate(names):
        add(name, i)
    stop, wrong, answered = threading.Event(), [], [0]
    with Engine(base, store, memory=6 * store.record("t0").file_bytes) as engine:
        engine.shelf.fresh = 0.02

        def ask(seed: int) -> None:
            rng = random.Random(seed)
            while not stop.is_set():
                name = rng.choice(names)
                try:
                    found = engine.predict(name, TEXTS[:1], timeout=30)[0].scores
                except (TaskNotFound, NoRoom):
                    continue
                except Exception as error:
                    wrong.append((name, error))
                    return
                answered[0] += 1
                if not any(found == pytest.approx(each, abs=5e-5) for each in known[name]):
                    wrong.append((name, found))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        rng = random.Random(9)
        until, seed = time.monotonic() + 6, 100
        while time.monotonic() < until:
            name, seed = rng.choice(names), seed + 1
            if rng.random() < 0.3 and name in store:
                store.remove(name)
            else:
                add(name, seed)
            time.sleep(0.02)
        stop.set()
        for thread in threads:
            thread.join(30)
        assert not wrong
        assert answered[0] > 50
        wait_until(lambda: not any(served.busy for served in engine.shelf._here.values()))
        assert engine.shelf.bytes <= engine.shelf.memory

"""Serving on a real cluster of two machines: the answers of one engine, whatever happens to the replicas."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import adaptree as at
from adaptree.api import export
from adaptree.data.decoding import Decoding
from adaptree.errors import AdaptreeError, TaskNotFound, UsageError
from adaptree.models.base import Base
from adaptree.serve.cluster import ClusterEngine
from adaptree.serve.engine import DeadlineExceeded, Engine, ReplicaLost
from adaptree.serve.observe import Metrics
from adaptree.serve.server import BackgroundServer
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests.bases import tiny_base
from tests.serve.serving import Asker, World, renamed, texts, trained
from tests.serve.test_command import serving
from tests.serve.test_engine import made

pytestmark = pytest.mark.slow

METHODS = ["houlsby:8", "pfeiffer:8", "lora:2", "ia3", "bitfit", "norms", "full", "top:1"]
PATIENCE = 120
LIVE = 5.0
"""Seconds within which a change of the store is seen by everybody."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Tasks of several methods and kinds on a tiny base."""
    folder = tmp_path_factory.mktemp("cluster")
    base: Base = at.load_base(tiny_base(folder / "tiny", layers=2, mask=True))
    store = Store(folder / "store")
    some = texts(24, seed=1)
    labelled = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(some)]
    words = trained(base, labelled, "words")
    store.add(words)
    store.add(trained(base, labelled, "tfidf", method="tfidf"))
    store.add(trained(base, [{"text": text, "label": i / 3} for i, text in enumerate(some)], "number"))
    for i, method in enumerate(METHODS):
        store.add(made(base, words, method, f"m{i}", i))
    return World(folder, base, store)


@contextmanager
def replicas(world: World, least: int = 2, most: int | None = None, **options: Any) -> Iterator[ClusterEngine]:
    own: dict[str, Any] = {"cluster": "ray", "memory": 50_000_000, **options}
    with ClusterEngine(world.base, world.store, least=least, most=most or least, **own) as engine:
        yield engine


@pytest.fixture(scope="module")
def engine(place: World, ray_cluster: Any) -> Iterator[ClusterEngine]:
    """Two replicas, each on a machine of its own."""
    with replicas(place) as found:
        yield found
    from ray import serve

    serve.shutdown()


@pytest.fixture
def spare(ray_cluster: Any) -> Iterator[None]:
    """One more machine for a while."""
    node = ray_cluster.add_node(num_cpus=1)
    ray_cluster.wait_for_nodes()
    yield
    ray_cluster.remove_node(node)


def until(what: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Wait until something is so, and return it."""
    end = time.monotonic() + patience
    while not (found := what()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)
    return found


def pids(engine: ClusterEngine) -> list[int]:
    """The processes of an engine's replicas."""
    title = f"ray::ServeReplica:{engine._application.name}:".encode()
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if each.read_bytes().startswith(title):
                found.append(int(each.parent.name))
        except OSError:
            pass
    return found


def tasks_of(engine: ClusterEngine) -> list[int]:
    return [said.stats["tasks"] for said in engine._hear()]


def test_answers_are_those_of_one_engine(engine: ClusterEngine, place: World) -> None:
    with Engine(place.base, place.store) as alone:
        for name in (*(f"m{i}" for i in range(len(METHODS))), "words", "tfidf", "number"):
            for given in (texts(1, seed=3), texts(7, seed=4)):
                assert engine.predict(name, given, timeout=60) == alone.predict(name, given), name
        wanted = {text: alone.predict("average(m0, m0)", [text])[0].scores for text in texts(3)}
        futures = [(text, engine.submit("average(m0, m0)", [text], timeout=60)) for text in wanted]
        for text, future in futures:
            assert future.result(60)[0].scores == pytest.approx(wanted[text], abs=1e-5)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="memory is read from /proc")
def test_replicas_on_a_machine_have_one_copy_of_the_base(engine: ClusterEngine) -> None:
    engine.predict("words", ["a lion"], timeout=60)
    for pid in until(lambda: pids(engine)):
        text = Path(f"/proc/{pid}/smaps").read_text()
        found = re.search(r"^[^\n]*model\.safetensors\n(?:[^\n]*\n)*?VmFlags", text, re.MULTILINE)
        assert found
        assert "Private_Dirty:         0 kB" in found[0], "no page was copied for this process"


def test_each_task_is_in_the_memory_of_one_replica_until_there_is_much_to_do(
    engine: ClusterEngine, place: World
) -> None:
    before = sum(tasks_of(engine)), engine.stats()
    names = [f"affine{i}" for i in range(16)]
    words = place.store["words"]
    for i, name in enumerate(names):
        place.store.add(renamed(words, name, i))
    for _ in range(3):
        for name in names:
            engine.predict(name, texts(1), timeout=60)
    assert sum(tasks_of(engine)) - before[0] == len(names)
    assert all(tasks_of(engine)), "both have some"
    answered = {said.replica: said.stats["answered"] for said in engine._hear()}
    futures = [engine.submit(names[0], [text], timeout=60) for text in texts(200)]
    for future in futures:
        future.result(60)
    now = {said.replica: said.stats["answered"] - answered[said.replica] for said in engine._hear()}
    assert sum(now.values()) == 200
    assert min(now.values()) > 20, "a hot task is computed by both"


def test_errors_come_as_themselves(engine: ClusterEngine) -> None:
    with pytest.raises(TaskNotFound, match="no task 'nope'"):
        engine.predict("nope", ["a"], timeout=60)
    with pytest.raises(UsageError):
        engine.predict("words", [{"tokens": ["a"]}], timeout=60)
    with pytest.raises(DeadlineExceeded):
        engine.predict("words", texts(4000, seed=9), timeout=0.01)
    with pytest.raises(UsageError, match="writes no texts"):
        engine.predict("words", ["a"], timeout=60, on_piece=lambda number, piece: None)


def ask(server: Asker, task: str, text: str = "old lion") -> tuple[int, Any]:
    found = server.post(f"/v1/tasks/{task}/predict", {"inputs": [text]}, timeout=60)
    return found.status, found.json["predictions"][0]["scores"] if found.status == 200 else found.json["error"]["code"]


def turned(task: Task) -> Task:
    """A version that says the opposite."""
    weights = {key: -value if key.startswith("head.") else value for key, value in task.weights.items()}
    return Task(replace(task.record, version=0), weights)


@pytest.fixture(scope="module", params=["processes", "cluster"])
def two(request: pytest.FixtureRequest, place: World) -> Iterator[tuple[list[Asker], Store]]:
    """Two servers over one store: processes of their own, or two with the same replicas."""
    if request.param == "processes":
        with serving(place) as (_, one, _), serving(place) as (_, other, _):
            yield [one, other], place.store
        return
    engine = request.getfixturevalue("engine")
    with (
        replicas(place) as second,
        BackgroundServer(engine) as one,
        BackgroundServer(second) as other,
    ):
        assert second.joined
        yield [Asker(one.url), Asker(other.url)], place.store


def test_a_new_version_is_live_and_a_removed_one_gone_within_5_s(two: tuple[list[Asker], Store], place: World) -> None:
    servers, store = two
    name = f"changing{len(store.names())}"
    store.add(renamed(store["words"], name, 50))
    old = [ask(each, name)[1] for each in servers]
    time.sleep(6)  # nobody asks for longer than a name counts
    Store(store.path).add(turned(store[name]))  # by another process, say
    changed = time.monotonic()
    wanted = place.base.bind(store[f"{name}@2"]).predict(["old lion"])[0].scores
    assert old[0] == old[1] != pytest.approx(wanted, abs=0.1)
    time.sleep(max(0.0, changed + LIVE - time.monotonic()))
    for each in servers * 3:
        assert ask(each, name) == (200, pytest.approx(wanted, abs=1e-5))
    Store(store.path).remove(name)
    changed, until_gone = time.monotonic(), []
    while time.monotonic() < changed + LIVE + 3:  # it is asked all the time
        for each in servers:
            status, _ = ask(each, name)
            if status == 200:
                until_gone.append(time.monotonic() - changed)
            else:
                assert status == 404
        time.sleep(0.05)
    assert max(until_gone, default=0.0) < LIVE


def test_pages_figures_and_changes_over_http(
    engine: ClusterEngine, place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    monkeypatch.setattr(engine, "_on_batch", metrics.batch)
    with BackgroundServer(engine, metrics=metrics) as server:
        asker = Asker(server.url)
        assert ask(asker, "words")[0] == 200
        assert ask(asker, "nope") == (404, "task_not_found")
        assert asker.get("/ready").json["status"] == "ready"
        figures = asker.get("/metrics").body.decode()
        assert "adaptree_replicas 2.0" in figures
        assert "adaptree_batch_rows_count 0.0" not in figures
        assert 'by <span data-show="replicas">2</span> replicas' in asker.get("/server").body.decode()
        assert asker.get("/server/figures").json["answered"] > 0
        mixed = {"items": [{"task": name, "text": "a lion"} for name in ("m0", "m1", "nope", "words")]}
        found = asker.post("/v1/predict", mixed).json["predictions"]
        assert ["error" in each for each in found] == [False, False, True, False]
        bundle = tmp_path / "words.adaptree"
        export(place.store, ["words"], bundle)
        zip_ = {"Content-Type": "application/zip"}
        assert asker.post("/v1/tasks?name=sent", bundle.read_bytes(), headers=zip_).status == 201
        assert ask(asker, "sent")[0] == 200, "at once"
        assert asker("DELETE", "/v1/tasks/sent").status == 200
        assert ask(asker, "sent")[0] == 404, "at once"


@pytest.mark.usefixtures("spare")
def test_a_second_server_joins_and_the_last_one_takes_the_replicas_away(place: World) -> None:
    from ray import serve

    small = World(place.folder, place.base, Store(place.folder / "small"))
    small.store.add(place.store["words"])
    first = ClusterEngine(small.base, small.store, cluster="ray", least=1, most=2, memory=10_000_000)
    name = first._application.name
    with replicas(small, 1, 2) as second:
        assert (first.joined, second.joined) == (False, True)
        first._hear(), second._hear()
        first.close()
        assert second.predict("words", ["a lion"], timeout=60)
    until(lambda: name not in serve.status().applications)


def test_replicas_that_find_no_room_are_said_in_one_line(
    ray_cluster: Any, place: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaptree.serve.cluster.replicas.WAIT", 3.0)
    monkeypatch.setattr("adaptree.serve.cluster.replicas.PATIENCE", 0.5)
    other = World(place.folder, place.base, Store(place.folder / "other"))
    other.store.add(place.store["words"])
    said: list[str] = []
    with pytest.raises(AdaptreeError) as caught, replicas(other, 5, threads=7, say=said.append):
        pass
    assert "did not start within 3 s: 5 of 7 cores and 0.1 GB each; the cluster has 2 cores" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(said) == 1
    assert said[0].startswith("waiting for the replicas to start: 5 of 7 cores")


class Load:
    """Clients that ask all the time, whose answers are checked."""

    def __init__(self, server: Asker, wanted: dict[str, Any], clients: int = 6) -> None:
        self.server, self.wanted, self.clients = server, wanted, clients
        self.statuses: Counter[Any] = Counter()
        self.wrong: list[Any] = []
        self._over = threading.Event()

    def _run(self, number: int) -> None:
        names = list(self.wanted)
        i = number
        while not self._over.is_set():
            name = names[i % len(names)]
            i += 1
            status, found = ask(self.server, name)
            self.statuses[status if status == 200 else (status, found)] += 1
            if status == 200 and found != pytest.approx(self.wanted[name], abs=1e-4):
                self.wrong.append((name, found))

    def __enter__(self) -> Load:
        self._pool = ThreadPoolExecutor(self.clients)
        self._running = [self._pool.submit(self._run, i) for i in range(self.clients)]
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._running:
            each.result(120)
        self._pool.shutdown()

    def more(self, count: int = 30) -> None:
        """Wait for some more answers."""
        before = self.statuses[200]
        until(lambda: self.statuses[200] >= before + count)


def check(load: Load) -> None:
    assert not load.wrong
    assert set(load.statuses) <= {200, (503, "replica_lost")}, load.statuses


def test_replicas_and_a_machine_are_lost_under_load(engine: ClusterEngine, place: World, ray_cluster: Any) -> None:
    names = [f"m{i}" for i in range(6)]
    wanted = {name: place.base.bind(place.store[name]).predict(["old lion"])[0].scores for name in names}
    with BackgroundServer(engine) as server, Load(Asker(server.url), wanted) as load:
        load.more()
        for _ in range(2):
            os.kill(pids(engine)[0], signal.SIGKILL)
            load.more()
            until(lambda: engine.stats()["replicas"] == 2)
            load.more()
        (lost,) = ray_cluster.worker_nodes
        ray_cluster.remove_node(lost, allow_graceful=False)
        load.more()
        ray_cluster.add_node(num_cpus=1)
        until(lambda: engine.stats()["replicas"] == 2)
        load.more()
    check(load)
    assert engine.stats()["answered"] > load.statuses[200], "what lost replicas had counted is not forgotten"


@pytest.mark.usefixtures("spare")
def test_texts_are_streamed_and_one_that_was_begun_fails_retryably_when_its_replica_dies(writer: World) -> None:
    with replicas(writer, 1) as found:
        assert found.predict("echo", ["say ag"], timeout=60)[0].text
        with Engine(writer.base, writer.store) as alone:
            wanted = alone.predict("echo", ["say ag", "say bh"])

        async def stream(task: str, given: list[str], kill: bool, **options: Any) -> tuple[list[tuple[int, str]], Any]:
            pieces, stream = [], found.stream(task, given, timeout=120, **options)
            async for piece in stream:
                pieces.append(piece)
                if kill and len(pieces) == 1:
                    os.kill(pids(found)[0], signal.SIGKILL)
            return pieces, stream.texts

        pieces, whole = asyncio.run(stream("echo", ["say ag", "say bh"], False))
        assert [each.text for each in whole] == [each.text for each in wanted]
        for number, text in enumerate(whole):
            assert "".join(piece for i, piece in pieces if i == number) == text.text
        long = Decoding(max_new_tokens=70)
        with pytest.raises(ReplicaLost):
            asyncio.run(stream("echo", ["say ag"] * 8, True, decoding=long))
        assert found.predict("echo", ["say ag"], timeout=PATIENCE)[0].text == wanted[0].text, "and it recovers"

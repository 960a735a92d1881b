"""The engine writes texts of many tasks at once, beside the predictions of other kinds."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from adaptree.data.decoding import Decoding
from adaptree.errors import UsageError
from adaptree.serve.batcher import Batcher, QueueFull, Unit
from adaptree.serve.engine import DeadlineExceeded, Engine
from adaptree.serve.generation import WRITE, Writing
from tests.serve.serving import World
from tests.serve.writing import METHODS, PROMPTS, alone

NEVER = Decoding(max_new_tokens=70, stop="never to be seen")
"""As long as the base has room for."""


@pytest.fixture
def engine(writer: World) -> Iterator[Engine]:
    with writer.engine() as found:
        yield found


def paused(engine: Engine) -> threading.Event:
    """Let the engine take no step of its texts until the event is set."""
    go, step = threading.Event(), engine.writing.step

    def wait() -> Any:
        go.wait(20)
        return step()

    engine.writing.step = wait  # type: ignore[method-assign]
    return go


def until(what: Any) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_texts_of_all_tasks_at_once_are_those_of_each_alone(writer: World, engine: Engine) -> None:
    asked = [(name, prompt, 3 + 2 * i) for name in METHODS for i, prompt in enumerate(PROMPTS)]
    futures = [engine.submit(name, [prompt], decoding=Decoding(max_new_tokens=most)) for name, prompt, most in asked]
    labels = engine.submit("words", ["a g", "b h"])
    for (name, prompt, most), future in zip(asked, futures, strict=True):
        (found,) = future.result(60)
        wanted = alone(writer, name, prompt, max_new_tokens=most)
        assert (found.text, found.finished, found.tokens) == (wanted.text, wanted.finished, wanted.tokens), name
        assert found.to_dict() == wanted.to_dict()
    wanted = writer.base.bind(writer.store["words"]).predict(["a g", "b h"])
    assert [each.label for each in labels.result(20)] == [each.label for each in wanted]
    stats = engine.stats()
    assert stats["written_tokens"] == sum(future.result()[0].tokens for future in futures)
    assert stats["writing"] == 0


def test_a_request_of_several_prompts_is_answered_in_their_order(writer: World, engine: Engine) -> None:
    found = engine.predict("echo", PROMPTS, decoding=Decoding(max_new_tokens=6))
    assert [each.text for each in found] == [alone(writer, "echo", p, max_new_tokens=6).text for p in PROMPTS]
    rows = [len(row[0].ids) for row in writer.base.bind(writer.store["echo"]).read([{"prompt": p} for p in PROMPTS])]
    assert [each.prompt_tokens for each in found] == rows
    assert engine.predict("echo", []) == []


def test_a_composition_writes(writer: World, engine: Engine) -> None:
    (found,) = engine.predict("average(echo, sing)", ["say ag"], decoding=Decoding(max_new_tokens=6))
    tasks = {name: writer.store[name] for name in ("echo", "sing")}
    (wanted,) = writer.base.bind("average(echo, sing)", tasks=tasks).predict(["say ag"], max_new_tokens=6)
    assert found.text == wanted.text


def test_other_tasks_are_answered_while_texts_are_written(engine: Engine) -> None:
    """Predictions come between two steps: nobody waits for the end of a text."""
    steps = 0
    step = engine.writing.step

    def slow() -> Any:
        nonlocal steps
        steps += 1
        time.sleep(0.01)
        return step()

    engine.writing.step = slow  # type: ignore[method-assign]
    engine.predict("words", ["a g"])  # loaded
    future = engine.submit("echo", ["a"], decoding=NEVER)
    until(lambda: steps)
    engine.predict("words", ["b h"])
    assert not future.done()
    assert future.result(60)[0].tokens > 5


def test_pieces_come_as_they_are_written(writer: World, engine: Engine) -> None:
    async def read() -> tuple[list[tuple[int, str]], Any]:
        stream = engine.stream("sing", PROMPTS[:2], decoding=Decoding(max_new_tokens=20))
        return [piece async for piece in stream], stream.texts

    pieces, texts = asyncio.run(read())
    assert len(pieces) > 4
    for i, prompt in enumerate(PROMPTS[:2]):
        wanted = alone(writer, "sing", prompt, max_new_tokens=20).text
        assert "".join(piece for number, piece in pieces if number == i) == texts[i].text == wanted


def test_a_stream_that_is_left_is_cancelled(engine: Engine) -> None:
    async def leave() -> None:
        stream = engine.stream("echo", ["a"], decoding=NEVER)
        async for _ in stream:
            break
        stream.cancel()

    asyncio.run(leave())
    until(lambda: not engine.writing)
    assert not any(served.busy for served in engine.shelf._here.values())


def test_a_cancelled_text_leaves_and_gives_its_task_free(engine: Engine) -> None:
    go = paused(engine)
    future = engine.submit("echo", ["a"], decoding=NEVER)
    until(lambda: len(engine.writing))
    assert future.cancel()
    go.set()
    until(lambda: not engine.writing)
    with pytest.raises(CancelledError):
        future.result(1)
    until(lambda: not any(served.busy for served in engine.shelf._here.values()))


def test_a_text_that_is_not_ready_in_time_fails(engine: Engine) -> None:
    engine.predict("echo", ["a"], decoding=Decoding(max_new_tokens=1))
    go = paused(engine)
    future = engine.submit("echo", ["a"], decoding=NEVER, timeout=0.2)
    until(lambda: len(engine.writing))
    time.sleep(0.25)
    go.set()
    with pytest.raises(DeadlineExceeded):
        future.result(20)
    until(lambda: not engine.writing)


def test_a_task_that_is_replaced_finishes_its_texts_on_the_old_version(writer: World, engine: Engine) -> None:
    wanted = alone(writer, "sing", "say ag", max_new_tokens=40).text
    go = paused(engine)
    future = engine.submit("sing", ["say ag"], decoding=Decoding(max_new_tokens=40))
    until(lambda: len(engine.writing))
    engine.refresh("sing")  # its slot is to be freed, as soon as nobody uses it
    other = engine.submit("lora", ["say ag"], decoding=Decoding(max_new_tokens=4))
    go.set()
    assert future.result(60)[0].text == wanted
    other.result(60)


def test_evicted_tasks_never_show_in_the_texts_of_others(writer: World) -> None:
    """Memory for one or two tasks, and requests for many: slots are given to others all the time."""
    size = max(writer.store.record(name).file_bytes for name in ("echo", "sing", "acme/poem"))
    names = ["echo", "sing", "acme/poem"] * 4
    wanted = {name: alone(writer, name, "say ag", max_new_tokens=5).text for name in names}
    assert len(set(wanted.values())) == 3
    with writer.engine(memory=int(1.5 * size)) as engine:
        for name in names:
            (found,) = engine.predict(name, ["say ag"], decoding=Decoding(max_new_tokens=5), timeout=60)
            assert found.text == wanted[name]
        assert engine.shelf.evictions >= 3


def test_what_does_not_go_together_is_refused(engine: Engine) -> None:
    with pytest.raises(UsageError, match="writes no texts"):
        engine.predict("words", ["a"], decoding=Decoding())
    with pytest.raises(UsageError, match="abstain"):
        engine.predict("echo", ["a"], min_score=0.5)
    with pytest.raises(UsageError, match="no room"):
        engine.predict("echo", ["a"], decoding=Decoding(max_new_tokens=10_000))
    with pytest.raises(UsageError, match="step by step"):
        engine.predict("echo", ["a"], decoding=Decoding(beams=2))
    assert not any(served.busy for served in engine.shelf._here.values())


def test_a_full_queue_refuses_more_texts(writer: World) -> None:
    with writer.engine(max_queue=4) as engine:
        engine.predict("echo", ["a"], decoding=Decoding(max_new_tokens=1))
        go = paused(engine)
        first = [engine.submit("echo", ["a"], decoding=Decoding(max_new_tokens=2))]
        until(lambda: len(engine.writing))
        first.append(engine.submit("echo", ["a"], decoding=Decoding(max_new_tokens=2)))
        with pytest.raises(QueueFull):
            engine.submit("echo", ["a"] * 5, decoding=Decoding(max_new_tokens=2))
        go.set()
        for future in first:
            assert future.result(20)


def test_texts_under_way_are_finished_when_the_engine_closes(writer: World) -> None:
    engine = writer.engine()
    future = engine.submit("echo", ["say ag"], decoding=Decoding(max_new_tokens=30))
    until(lambda: future.done() or len(engine.writing))
    engine.close()
    assert future.result(0)[0].text == alone(writer, "echo", "say ag", max_new_tokens=30).text


def test_an_error_in_a_step_fails_its_texts_and_the_engine_goes_on(writer: World, engine: Engine) -> None:
    loop = engine.writing._shared
    write = loop._write

    def breaks() -> Any:
        loop._write = write  # type: ignore[method-assign]
        raise RuntimeError("a broken step")

    loop._write = breaks  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a broken step"):
        engine.predict("echo", ["a"], decoding=NEVER)
    (found,) = engine.predict("echo", ["a"], decoding=Decoding(max_new_tokens=5))
    assert found.text == alone(writer, "echo", "a", max_new_tokens=5).text


def test_a_listener_that_fails_fails_its_own_text_alone(writer: World, engine: Engine) -> None:
    def listen(number: int, piece: str) -> None:
        raise ValueError("cannot listen")

    go = paused(engine)
    futures = [engine.submit("echo", ["a"], decoding=NEVER, on_piece=each) for each in (listen, None)]
    until(lambda: len(engine.writing))
    go.set()
    with pytest.raises(ValueError, match="cannot listen"):
        futures[0].result(20)
    wanted = alone(writer, "echo", "a", max_new_tokens=NEVER.max_new_tokens, stop=NEVER.stop)
    assert futures[1].result(60)[0].text == wanted.text


def test_one_customer_leaves_room_for_the_texts_of_others(writer: World) -> None:
    writing = Writing(writer.base, None, most=8)  # type: ignore[arg-type]
    assert writing.may("noisy", WRITE)
    writing._units = dict.fromkeys(range(6))  # type: ignore[arg-type]
    writing._customers["noisy"] = 6
    assert not writing.may("noisy", WRITE)
    assert writing.may("other", WRITE)
    assert writing.may("noisy", 32)  # rows of other kinds


def test_units_that_may_not_be_taken_stay_and_others_pass_them() -> None:
    batcher = Batcher(max_wait=0)
    batcher.put([Unit(None, 0, WRITE, 5, "a"), Unit(None, 1, 16, 16, "a")])
    batcher.put([Unit(None, 2, 16, 16, "b")])

    def taken(may: Any) -> list[int]:
        return [unit.number for unit in batcher.take(lambda _: None, lambda _: False, may, block=False)]

    assert taken(lambda customer, shape: shape != WRITE) == [1, 2]
    assert taken(lambda customer, shape: shape != WRITE) == []
    assert taken(lambda customer, shape: True) == [0]
    assert taken(lambda customer, shape: True) == []

"""The queue: rows of one length together, customers in turn, late and cancelled ones not computed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

from adaptree.serve.batcher import Batcher, QueueFull, Unit


def unit(customer: str, number: int = 0, shape: int = 8, **more: object) -> Unit:
    return Unit(request=None, number=number, shape=shape, tokens=shape, customer=customer, **more)  # type: ignore[arg-type]


def take(batcher: Batcher, late: list[Unit] | None = None, gone: set[int] | None = None) -> list[Unit]:
    return batcher.take((late if late is not None else []).append, lambda each: each.number in (gone or set()))


def test_a_batch_has_one_length_and_at_most_so_many_tokens() -> None:
    batcher = Batcher(max_tokens=64, max_wait=0)
    batcher.put([unit("a", i, shape=8 if i % 2 else 16) for i in range(20)])
    batches = []
    while batcher.waiting:
        batches.append(take(batcher))
    assert all(len({each.shape for each in batch}) == 1 for batch in batches)
    assert all(sum(each.tokens for each in batch) <= 64 for batch in batches)
    assert sorted(each.number for batch in batches for each in batch) == list(range(20))


def test_a_row_longer_than_a_batch_is_computed_alone() -> None:
    batcher = Batcher(max_tokens=8, max_wait=0)
    batcher.put([unit("a", 0, shape=512), unit("a", 1, shape=512)])
    assert [len(take(batcher)), len(take(batcher))] == [1, 1]


def test_who_sends_much_does_not_keep_others_waiting() -> None:
    batcher = Batcher(max_tokens=80, max_wait=0, max_queue=10_000, share=1.0)
    batcher.put([unit("noisy", i) for i in range(1000)])
    for name in "abc":
        batcher.put([unit(name, i) for i in range(5)])
    first = Counter(each.customer for _ in range(2) for each in take(batcher))
    assert first == {"noisy": 5, "a": 5, "b": 5, "c": 5}
    for _ in range(20):
        take(batcher)
    batcher.put([unit("d", 0)])
    assert "d" in {each.customer for each in take(batcher)}, "who comes late does not wait for what others have sent"


def test_a_batch_is_not_filled_up_by_who_had_much_while_others_wait_with_other_lengths() -> None:
    batcher = Batcher(max_tokens=800, max_wait=0, max_queue=10_000, share=1.0)
    batcher.put([unit("noisy", i) for i in range(1000)])
    take(batcher)
    batcher.put([unit("a", 0)])
    batcher.put([unit("b", 0, shape=16)])
    first, second = take(batcher), take(batcher)
    assert {"a", "b"} <= {each.customer for each in first + second}
    assert sum(each.customer == "noisy" for each in first) <= 10
    assert len(take(batcher)) == 100, "alone again, it has whole batches"


def test_a_customer_with_long_texts_gets_as_many_tokens_not_as_many_rows() -> None:
    batcher = Batcher(max_tokens=64, max_wait=0, share=1.0)
    batcher.put([unit("long", i, shape=64) for i in range(50)])
    batcher.put([unit("short", i, shape=8) for i in range(400)])
    tokens: Counter[str] = Counter()
    for _ in range(20):
        for each in take(batcher):
            tokens[each.customer] += each.tokens
    assert 0.8 < tokens["long"] / tokens["short"] < 1.25


def test_a_higher_priority_comes_first_and_the_batch_is_filled_up_with_others() -> None:
    batcher = Batcher(max_tokens=32, max_wait=0)
    batcher.put([unit("a", i) for i in range(4)])
    batcher.put([unit("b", 9, priority=1)])
    assert [(each.customer, each.number) for each in take(batcher)] == [("b", 9), ("a", 0), ("a", 1), ("a", 2)]


def test_late_and_cancelled_rows_are_not_computed() -> None:
    batcher = Batcher(max_tokens=800, max_wait=0)
    past, later = time.monotonic() - 1, time.monotonic() + 60
    batcher.put([unit("a", 0, deadline=past), unit("a", 1, deadline=later), unit("a", 2)])
    late: list[Unit] = []
    assert [each.number for each in take(batcher, late, gone={2})] == [1]
    assert [each.number for each in late] == [0]
    assert batcher.waiting == 0


def test_a_full_queue_is_refused_whole_with_the_time_to_try_again() -> None:
    batcher = Batcher(max_wait=0, max_queue=10, share=1.0)
    batcher.tokens_per_second = 8.0
    batcher.put([unit("a", i) for i in range(8)])
    with pytest.raises(QueueFull, match="8 texts wait") as full:
        batcher.put([unit("b", i) for i in range(3)])
    assert full.value.retry_after == 8.0
    assert batcher.waiting == 8
    batcher.put([unit("b", i) for i in range(2)])


def test_one_customer_cannot_fill_the_queue() -> None:
    batcher = Batcher(max_wait=0, max_queue=10, share=0.5)
    batcher.put([unit("a", i) for i in range(4)])
    with pytest.raises(QueueFull, match="4 of your texts wait"):
        batcher.put([unit("a", i) for i in range(2)])
    batcher.put([unit("b", 0)])


def test_a_batch_waits_a_moment_for_more_and_a_full_one_does_not() -> None:
    batcher = Batcher(max_tokens=16, max_wait=30.0)
    got: list[list[Unit]] = []
    thread = threading.Thread(target=lambda: got.append(take(batcher)))
    batcher.put([unit("a", 0)])
    thread.start()
    batcher.put([unit("b", 1)])
    thread.join(10)
    assert [each.number for each in got[0]] == [0, 1]


def test_nothing_is_lost_or_taken_twice_by_many_threads() -> None:
    batcher = Batcher(max_tokens=64, max_wait=0.0005, max_queue=100_000)
    taken: list[int] = []

    def send(start: int) -> None:
        rng = random.Random(start)
        for i in range(start, start + 500):
            batcher.put([unit(rng.choice("abcdef"), i, shape=rng.choice((8, 16, 24)), priority=rng.choice((0, 0, 1)))])

    def work() -> None:
        while batch := take(batcher):
            taken.extend(each.number for each in batch)

    senders = [threading.Thread(target=send, args=(500 * i,)) for i in range(4)]
    workers = [threading.Thread(target=work) for _ in range(2)]
    for thread in senders + workers:
        thread.start()
    for thread in senders:
        thread.join()
    batcher.close()
    for thread in workers:
        thread.join(20)
    assert sorted(taken) == list(range(2000))
    assert batcher.waiting == 0

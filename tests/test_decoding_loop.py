"""Texts that are written together, step by step, are those that each task writes alone, token for token."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

import adaptree as at
from adaptree.compose import of_task
from adaptree.compose.merge import together
from adaptree.data.decoding import Decoding
from adaptree.data.encode import Encoding
from adaptree.errors import AdaptreeError, UsageError
from adaptree.kinds.generate import Output
from adaptree.methods import parse
from adaptree.models import decoding_loop, known
from adaptree.models.bank import Bank, Place
from adaptree.models.decoding_loop import DecodingLoop, Text
from adaptree.models.generation import write
from adaptree.models.passes import NotShareable
from adaptree.models.row_cache import arranged
from adaptree.tasks.task import Task
from tests import tiny
from tests.bases import writing_base

METHODS = ("houlsby:4", "lora:4", "houlsby:4", "ia3", "pfeiffer:4", "norms", "houlsby:4", "full")


def noisy(base: Any, method: str, seed: int) -> Any:
    """A task with weights of some size, so that tasks write different texts."""
    rows = [{"prompt": f"a {each}", "completion": f"{each} a"} for each in "bcdefg"]
    task = at.train(rows, base=base, name=f"t{seed}", method=method, epochs=1, seed=seed).task
    noise = torch.Generator().manual_seed(seed)
    weights = {key: p + 0.3 * torch.randn(p.shape, generator=noise) for key, p in task.weights.items()}
    return Task(task.record, weights)


class World:
    """A base with tasks in a bank; those that cannot be there have models of their own."""

    def __init__(self, folder: Path) -> None:
        self.base = at.load_base(folder)
        self.tasks = [noisy(self.base, method, i) for i, method in enumerate(METHODS)]
        self.bound = [self.base.bind(task) for task in self.tasks]
        self.bank = Bank(self.base)
        self.places = [self.bank.add(of_task(task, check=self.base.check)) for task in self.tasks]

    def loop(self, **options: Any) -> DecodingLoop:
        return DecodingLoop(self.base, bank=self.bank, **options)

    def text(self, number: int, prompt: Any, **options: Any) -> Text:
        on_text = options.pop("on_text", None)
        place = self.places[number]
        assert isinstance(place, Place)
        return Text(prompt, Decoding(**options), self.base, place=place, on_text=on_text)

    def alone(self, number: int, prompt: Any, **options: Any) -> Any:
        bound = self.bound[number]
        row = Encoding(prompt, None, False, Output(len(prompt)))
        return write(self.base, [row], Decoding(**options), plan=bound._plan, hooked=bound._copy)[0]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(writing_base(tmp_path_factory.mktemp("loop") / request.param, architecture=request.param))


def prompts(world: World, count: int, most: int = 24, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    high = len(world.base.embeddings)
    return [rng.integers(3, high, rng.integers(1, most)).astype(np.int32) for _ in range(count)]


def finished(loop: DecodingLoop) -> list[Text]:
    found = []
    while len(loop):
        found += loop.step()
    return found


def test_mixed_texts_are_those_of_each_task_alone_whenever_they_join(world: World) -> None:
    """Of seven methods and three sizes of prompt; texts join while others are under way, and end at any step."""
    loop, asked = world.loop(), []
    for i, prompt in enumerate(prompts(world, 21)):
        number, most = i % 7, 3 + 5 * i % 17
        text = world.text(number, prompt, max_new_tokens=most)
        asked.append((text, number, prompt, most))
        loop.add(text)
        if i % 4 == 3:
            loop.step()
    finished(loop)
    assert not loop.alone
    said = set()
    for text, number, prompt, most in asked:
        wanted = world.alone(number, prompt, max_new_tokens=most)
        assert text.prediction == wanted
        said.add(wanted.text)
    assert len(said) > 15  # tasks and prompts matter
    assert loop._cache.rows == 0  # all memory is given back


def test_a_drawn_text_is_the_one_that_generate_draws_with_its_seed(world: World) -> None:
    loop = world.loop()
    given = [(i % 7, p, {"temperature": (1.0, 1.7, 0.6)[i % 3], "top_p": (1.0, 0.8)[i % 2], "seed": i // 2})
             for i, p in enumerate(prompts(world, 12))]  # fmt: skip
    texts = [world.text(number, prompt, max_new_tokens=10, **how) for number, prompt, how in given]
    for text in texts:
        loop.add(text)
    finished(loop)
    for text, (number, prompt, how) in zip(texts, given, strict=True):
        assert text.prediction == world.alone(number, prompt, max_new_tokens=10, **how)


def test_texts_end_before_a_stop_and_are_handed_on_piece_by_piece(world: World) -> None:
    prompt = prompts(world, 1)[0]
    whole = world.alone(0, prompt, max_new_tokens=20).text
    stop = whole[3:5]
    loop, pieces = world.loop(), {"whole": [], "cut": [], "never": []}
    texts = {
        "whole": world.text(0, prompt, max_new_tokens=20, on_text=pieces["whole"].append),
        "cut": world.text(0, prompt, max_new_tokens=20, stop=(stop,), on_text=pieces["cut"].append),
        "never": world.text(0, prompt, max_new_tokens=20, stop=("never seen",), on_text=pieces["never"].append),
    }
    for text in texts.values():
        loop.add(text)
    finished(loop)
    assert texts["whole"].prediction.text == whole == texts["never"].prediction.text
    assert texts["cut"].prediction == world.alone(0, prompt, max_new_tokens=20, stop=(stop,))
    assert texts["cut"].prediction.text == whole[: whole.index(stop)]
    for name, text in texts.items():
        assert "".join(pieces[name]) == text.prediction.text
    assert len(pieces["whole"]) > 1


def test_a_long_prompt_is_read_in_pieces_while_others_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_loop, "PIECE", 16)
    long, short = np.arange(3, 64, dtype=np.int32), prompts(world, 2, most=8)
    loop = world.loop()
    first = world.text(0, short[0], max_new_tokens=12)
    loop.add(first)
    loop.step()
    second = world.text(1, long, max_new_tokens=5)
    third = world.text(2, short[1], max_new_tokens=5)
    loop.add(second)
    loop.add(third)
    before = len(first.written)
    for _ in range(3):
        loop.step()
    assert not second.written
    assert len(first.written) == before + 3
    finished(loop)
    for text, number, prompt, most in ((first, 0, short[0], 12), (second, 1, long, 5), (third, 2, short[1], 5)):
        assert text.prediction == world.alone(number, prompt, max_new_tokens=most)


def test_texts_wait_for_room_in_their_order(world: World) -> None:
    loop = world.loop(most=2)
    texts = [world.text(0, prompt, max_new_tokens=4 + i) for i, prompt in enumerate(prompts(world, 5))]
    for text in texts:
        loop.add(text)
    loop.step()
    assert loop.running == texts[:2]
    assert finished(loop) == texts
    narrow = world.loop(memory=1)  # one text at a time
    for text in (again := [world.text(0, prompt, max_new_tokens=4) for prompt in prompts(world, 3)]):
        narrow.add(text)
    narrow.step()
    assert narrow.running == again[:1]
    assert finished(narrow) == again


def test_a_text_that_nobody_waits_for_leaves_and_the_others_are_as_before(world: World) -> None:
    loop, given = world.loop(), prompts(world, 6)
    texts = [world.text(i, prompt, max_new_tokens=9) for i, prompt in enumerate(given)]
    for text in texts:
        loop.add(text)
    loop.step()
    gone = {texts[1], texts[4]}
    loop.drop(lambda text: text in gone)
    assert set(finished(loop)) == set(texts) - gone
    for i in (0, 2, 3, 5):
        assert texts[i].prediction == world.alone(i, given[i], max_new_tokens=9)


def test_a_slot_that_was_given_back_never_shows_in_the_next_text(world: World) -> None:
    """A task whose weights are no numbers fails alone, and the row of the cache that it leaves is clean."""
    task = world.tasks[0]
    broken = Task(task.record, {key: torch.full_like(p, torch.nan) for key, p in task.weights.items()})
    place = world.bank.add(of_task(broken))
    assert isinstance(place, Place)
    loop, (prompt, other) = world.loop(), prompts(world, 2)
    stays = world.text(0, other, max_new_tokens=12)
    bad = Text(np.arange(3, 40, dtype=np.int32), Decoding(), world.base, place=place)
    loop.add(bad)
    loop.add(stays)
    assert loop.step() == [bad]
    assert isinstance(bad.failed, AdaptreeError)
    world.bank.remove(place)
    again = world.bank.add(of_task(world.tasks[2]))  # into the slot of the bank that was freed
    assert isinstance(again, Place)
    assert again.slot == place.slot
    new = Text(prompt, Decoding(max_new_tokens=12), world.base, place=again)
    loop.add(new)
    finished(loop)
    assert new.prediction == world.alone(2, prompt, max_new_tokens=12)
    assert stays.prediction == world.alone(0, other, max_new_tokens=12)
    world.bank.remove(again)


def test_a_task_with_weights_of_its_own_is_written_on_a_copy(world: World) -> None:
    assert isinstance(world.places[7], str)
    bound = world.bound[7]
    loop = DecodingLoop(world.base, hooked=bound._copy)
    given = prompts(world, 3)
    texts = [Text(prompt, Decoding(max_new_tokens=8), world.base) for prompt in given]
    for text in texts:
        loop.add(text)
    finished(loop)
    for text, prompt in zip(texts, given, strict=True):
        assert text.prediction == world.alone(7, prompt, max_new_tokens=8)


def test_what_cannot_be_written_step_by_step_is_refused(world: World) -> None:
    (prompt,) = prompts(world, 1)
    with pytest.raises(UsageError, match="step by step"):
        world.text(0, prompt, beams=2)
    with pytest.raises(UsageError, match="no room"):
        world.text(0, prompt, max_new_tokens=1000)


def test_rows_of_a_group_are_neighbours_and_few_move() -> None:
    assert arranged([0, 1, 2], "aaa") == [0, 1, 2]
    assert arranged([0, 2, 3, -1], "aaaa") == [0, 2, 3, 1]
    assert arranged([3, 0, 2, -1, -1], "abbab") == [0, 3, 2, 1, 4]
    for slots, groups in (([5, 4, 0, 2, -1, -1], "abcabc"), ([-1, 7, 1, -1], "xyxy")):
        found = arranged(slots, groups)
        assert sorted(found) == list(range(len(slots)))
        order = [groups[found.index(i)] for i in range(len(slots))]
        assert sum(a != b for a, b in pairwise(order)) == len(set(groups)) - 1


def mixed(world: World, loop: DecodingLoop) -> None:
    """Compare texts of several tasks that join at different times with those of each task alone."""
    given = prompts(world, 6)
    texts = [world.text(i, prompt, max_new_tokens=4 + 2 * i) for i, prompt in enumerate(given)]
    for i, text in enumerate(texts):
        loop.add(text)
        if i % 2:
            loop.step()
    finished(loop)
    for i, text in enumerate(texts):
        assert text.prediction == world.alone(i, given[i], max_new_tokens=4 + 2 * i)


@pytest.mark.parametrize("first", [1, 3])
def test_texts_that_cannot_share_a_pass_are_written_one_by_one(world: World, first: int) -> None:
    """From the first pass on, or from a later one: what was read so far is read again, or goes on."""
    loop = world.loop()
    run, passes = loop._pass, 0

    def refuse(plan: Any, ids: Any, *more: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes >= first and len(ids) > 1:
            raise NotShareable("a module works on a tensor without a batch axis")
        return run(plan, ids, *more)

    loop._pass = refuse  # type: ignore[method-assign]
    mixed(world, loop)
    assert loop.alone


def test_a_model_with_a_window_writes_what_it_writes_alone(tmp_path: Path) -> None:
    """Of three tokens, so that the window moves on in every text; each text has passes of its own."""
    folder = writing_base(tmp_path / "mistral")
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "vocab_size": tiny_vocabulary(folder)}
    config = MistralConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        max_position_embeddings=96, sliding_window=3, **ids,
    )  # fmt: skip
    torch.manual_seed(0)
    MistralForCausalLM(config).save_pretrained(folder)
    world = World(folder)
    loop = world.loop()
    assert loop.alone
    mixed(world, loop)


def tiny_vocabulary(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])


def test_a_window_of_attention_gives_each_text_passes_of_its_own() -> None:
    assert decoding_loop._has_window(type("Model", (), {"config": tiny.mistral()}))
    assert not decoding_loop._has_window(type("Model", (), {"config": tiny.llama()}))
    assert not decoding_loop._has_window(type("Model", (), {"config": tiny.qwen2()}))


@pytest.mark.slow
def test_on_a_real_model_texts_of_several_tasks_are_those_of_each_alone() -> None:
    if not known.SMOLLM.folder.is_dir():
        pytest.skip("the base smollm is not here: adaptree bases get smollm")
    base = at.load_base("smollm")
    asked = ["The capital of France is", "Once upon a time", "2 + 2 =", "The opposite of hot is", "My favourite colour"]
    bank, methods = Bank(base), ("lora:8", "houlsby:16", "lora:8", "ia3", "houlsby:16")
    rows = [Encoding(pieces.ids, None, False, Output(len(pieces.ids))) for pieces in base.encoder.pieces(asked)]
    loop, plans, texts = DecodingLoop(base, bank=bank), [], []
    for i, (row, spelling) in enumerate(zip(rows, methods, strict=True)):
        noise = torch.Generator().manual_seed(i)
        method = parse(spelling)
        v = method.init(base.hooked.sites, base.hooked.backbone, noise)
        parts = [(method, {key: p + 0.01 * torch.randn(p.shape, generator=noise) for key, p in v.items()})]
        place = bank.add(SimpleNamespace(parts=parts))  # type: ignore[arg-type]
        assert isinstance(place, Place)
        plans.append(together(base.hooked.sites, base.hooked.frozen, parts)[0])
        texts.append(Text(row.ids, Decoding(max_new_tokens=12), base, place=place))
        loop.add(texts[-1])
        loop.step()
    finished(loop)
    for row, plan, text in zip(rows, plans, texts, strict=True):
        assert text.prediction == write(base, [row], Decoding(max_new_tokens=12), plan=plan)[0]
    assert len({text.prediction.text for text in texts}) == len(texts)

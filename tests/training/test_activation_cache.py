"""The activation cache: layers below the lowest trained one are computed once, with the same bits."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests import tiny
from tests.bases import tiny_base, words_csv
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import adaptree as at
from adaptree.errors import TrainingError, UsageError
from adaptree.methods import parse
from adaptree.methods.houlsby import Houlsby
from adaptree.models import activation_cache, cache_files
from adaptree.models.base import Base
from adaptree.models.cache_files import FOLDER
from adaptree.models.hooks import HookedModel
from adaptree.models.loading import load_base
from adaptree.models.restart import CannotRestart, check_restart, private_copy, restart, states_below
from adaptree.training import loop, solve

METHODS = [
    "houlsby(size=8, layers=top:2)",
    "pfeiffer(size=8, layers='1,3')",
    "lora(rank=2, layers=top:1)",
    "pal(size=12, layers=top:2)",
    "bapna(size=4, layers=2-3)",
    "top:1",
    "bitfit(layers=top:2)",
    "lt_sft(density=0.02, layers=top:2)",
    "head",
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny", layers=4))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("data") / "words.csv")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(solve, "STRENGTHS", solve.STRENGTHS[:2])  # how a head is solved is not what is tested here
    return tmp_path / "cache" / FOLDER


def trained(base: Base, data: Path, method: str, **settings: Any) -> tuple[dict[str, Tensor], list[str]]:
    """A task's weights, and what was noted on the way; not that a solved head then learns all rows."""
    notes: list[str] = []
    bound = at.train(
        data, base=base, method=method, baselines=False, lr=1e-2, **{"epochs": 2, **settings},
        on_event=lambda event: notes.append(event["text"]) if event["event"] == "note" else None,
    )  # fmt: skip
    return bound.task.weights, [note for note in notes if not note.startswith("the score is known")]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def last_line(path: Path) -> bytes:
    """What stands behind the states in a file."""
    data = path.read_bytes()
    return data[data.rindex(b"adaptree states ") :]


@pytest.mark.parametrize("method", METHODS)
def test_training_on_it_gives_the_same_bits_as_without_it(base: Base, data: Path, cache: Path, method: str) -> None:
    without, why = trained(base, data, method, activation_cache="off")
    assert "switched off" in why[0]
    assert not cache.exists()
    filled, said = trained(base, data, method)
    found, nothing = trained(base, data, method)
    assert "once for 90 texts" in said[0]
    assert nothing == []
    assert same(without, filled)
    assert same(without, found)


def test_the_bits_do_not_depend_on_what_the_cache_held(base: Base, data: Path, tmp_path: Path) -> None:
    alone, _ = trained(base, data, "houlsby(size=8, layers=top:2)")
    os.environ["ADAPTREE_CACHE"] = str(tmp_path / "another")
    for other, rows in (("a", 40), ("b", 120)):  # some of the same sentences, among others of other lengths
        trained(base, words_csv(tmp_path / f"{other}.csv", rows), "houlsby(size=8, layers=top:2)")
    trained(base, data, "houlsby(size=8, layers=top:1)")
    after, said = trained(base, data, "houlsby(size=8, layers=top:2)")
    assert said
    assert same(alone, after)


def test_other_seeds_sizes_and_methods_find_the_same_states(base: Base, data: Path, cache: Path) -> None:
    trained(base, data, "houlsby(size=8, layers=top:2)")
    for method, seed in [("houlsby(size=4, layers=top:2)", 1), ("pfeiffer(size=8, layers=top:2)", 2), ("top:2", 0)]:
        assert trained(base, data, method, seed=seed)[1] == []
    assert len(list(cache.glob("*.states"))) == 1


def test_filling_is_one_pass_over_the_distinct_texts_and_training_runs_no_lower_layer(tmp_path: Path) -> None:
    base = load_base(tiny_base(tmp_path / "tiny", layers=4))
    with words_csv(tmp_path / "words.csv").open() as file:
        rows = list(csv.reader(file))
    with (tmp_path / "twice.csv").open("w", newline="") as file:
        csv.writer(file).writerows([*rows, *rows[1:]])
    seen: Counter[str] = Counter()

    def listen(path: str) -> None:
        def hook(module: Any, args: tuple[Any, ...], output: Any) -> None:
            seen[path] += len(args[0])

        base.hooked.backbone.get_submodule(path).register_forward_hook(hook)

    queries = [linear.path for linear in base.hooked.sites.linears if linear.role == "query"]
    for path in queries:
        listen(path)  # a run's tree has these hooks too
    trained(base, tmp_path / "twice.csv", "houlsby(size=8, layers=top:2)", epochs=5)
    distinct, probes, scored = len(rows) - 1, 8, 2 * (len(rows) - 1) // 5 + 4
    # Below: the fill, the probes, and what a finished task is scored on.
    assert distinct <= seen[queries[0]] <= distinct + probes + scored
    # Above: five epochs over both parts.
    assert seen[queries[-1]] >= 5 * distinct * 2


@pytest.mark.parametrize(
    ("method", "settings", "why"),
    [
        ("houlsby:8", {}, r"all layers are trained; --fast, or --layers top:3"),
        ("houlsby(size=8, layers=top:2)", {"dropout": True}, "dropout is on"),
        ("houlsby(size=8, layers=top:2)", {"activation_cache": "off"}, "switched off"),
    ],
)
def test_where_there_is_none_training_says_why(base: Base, data: Path, method: str, settings: Any, why: str) -> None:
    _, notes = trained(base, data, method, epochs=1, **settings)
    assert len(notes) == 1
    assert why in notes[0]


def restarted(hooked: HookedModel, depth: int) -> bool:
    """Whether a base goes on from the middle with the same bits, on a batch that the probe did not see."""
    inputs = tiny.batch(hooked.backbone, rows=4, tokens=9)
    form = check_restart(hooked, depth)
    with torch.inference_mode():
        state = states_below(hooked, depth, inputs)
        tree = private_copy(hooked)
        restart(tree, depth, form, lambda: state)
        found, whole = tree.backbone(**inputs), hooked.backbone(**inputs)
    return torch.equal(found.last_hidden_state, whole.last_hidden_state)


@pytest.mark.parametrize("case", [name for name in tiny.CASES if not name.startswith(("roformer", "t5", "albert"))])
def test_a_base_is_restarted_at_each_layer_with_the_same_bits(case: str) -> None:
    hooked = HookedModel(tiny.model(case).eval())
    depths = [1, 2, 3, 5] if case == "bart" else range(1, hooked.sites.depth + 1)
    assert all(restarted(hooked, depth) for depth in depths)


@pytest.mark.parametrize(("case", "depth"), [("t5", 1), ("t5-encoder", 2), ("albert", 1), ("bart", 4)])
def test_a_base_that_cannot_be_restarted_is_refused(case: str, depth: int) -> None:
    with pytest.raises(CannotRestart, match=r"share their weights|same bits"):
        check_restart(HookedModel(tiny.model(case).eval()), depth)


def test_half_precision_halves_the_file_and_hardly_moves_the_answer(base: Base, data: Path, cache: Path) -> None:
    exact, _ = trained(base, data, "houlsby(size=8, layers=top:2)")
    (whole,) = cache.glob("*.states")
    size = whole.stat().st_size
    half, _ = trained(base, data, "houlsby(size=8, layers=top:2)", activation_cache="fp16")
    (other,) = set(cache.glob("*.states")) - {whole}
    line = len(last_line(whole))
    assert 2 * (other.stat().st_size - line) == size - line
    off = max(float((exact[name] - half[name]).abs().max()) for name in exact)
    assert 0 < off < 0.01


def test_a_cache_that_does_not_fit_is_left_out_and_training_goes_on(
    base: Base, data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTREE_CACHE_BYTES", "1000")
    without, notes = trained(base, data, "houlsby(size=8, layers=top:2)")
    assert "ADAPTREE_CACHE_BYTES" in notes[0]
    assert not list(cache.glob("*.states")) if cache.exists() else True
    monkeypatch.delenv("ADAPTREE_CACHE_BYTES")
    assert same(without, trained(base, data, "houlsby(size=8, layers=top:2)")[0])


@pytest.mark.parametrize("bound", ["much", "inf", "-1", "nan"])
def test_a_bound_that_is_no_number_is_refused(
    base: Base, data: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setenv("ADAPTREE_CACHE_BYTES", bound)
    with pytest.raises(UsageError, match="ADAPTREE_CACHE_BYTES is not a number"):
        trained(base, data, "head")


def test_what_was_not_used_for_longest_goes_first(
    base: Base, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [words_csv(tmp_path / f"{seed}.csv", 60, seed=seed) for seed in range(3)]
    made: list[Path] = []
    for file in files[:2]:
        trained(base, file, "head", epochs=1)
        made += set(cache.glob("*.states")) - set(made)
        time.sleep(0.02)
    trained(base, files[0], "head", epochs=1)  # used again: the second is older now
    size = made[0].stat().st_size
    monkeypatch.setenv("ADAPTREE_CACHE_BYTES", str(int(2.5 * size)))
    trained(base, files[2], "head", epochs=1)
    left = set(cache.glob("*.states"))
    assert made[0] in left
    assert made[1] not in left
    assert len(left) == 2
    assert trained(base, files[1], "head", epochs=1)[1], "it is computed again"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["houlsby(size=8, layers=top:2)", "lora(rank=2, layers=top:1)", "head"])
@pytest.mark.parametrize("held", ["fp32", "fp16"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_bits_are_the_same_with_and_without_room_in_every_precision(
    base: Base, data: Path, monkeypatch: pytest.MonkeyPatch, precision: str, held: str, method: str
) -> None:
    how: dict[str, Any] = {"precision": precision, "activation_cache": held}
    cached, notes = trained(base, data, method, **how)
    assert "once for 90 texts" in notes[0]
    again, _ = trained(base, data, method, **how)
    monkeypatch.setenv("ADAPTREE_CACHE_BYTES", "1000")
    os.environ["ADAPTREE_CACHE"] += "-of-another"
    without, why = trained(base, data, method, **how)
    assert "ADAPTREE_CACHE_BYTES" in why[0]
    assert same(cached, again)
    assert same(cached, without)
    if held == "fp32":
        assert same(cached, trained(base, data, method, precision=precision, activation_cache="off")[0])


def test_a_run_in_bf16_can_lose_its_cache_and_be_resumed(
    base: Base, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    how: dict[str, Any] = {
        "base": base, "method": "houlsby(size=8, layers=top:2)", "epochs": 3, "baselines": False, "precision": "bf16",
    }  # fmt: skip
    whole = at.train(data, **how)

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        at.train(data, name="a", store=tmp_path / "store", on_event=stop, **how)
    shutil.rmtree(os.environ["ADAPTREE_CACHE"])
    monkeypatch.setenv("ADAPTREE_CACHE_BYTES", "1000")
    resumed = at.train(data, name="a", store=tmp_path / "store", resume=True, **how)
    assert same(whole.task.weights, resumed.task.weights)


@pytest.mark.parametrize("room", [True, False])
def test_states_too_large_for_fp16_say_so_with_and_without_room(
    base: Base, data: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    real = activation_cache.states_below
    monkeypatch.setattr(activation_cache, "states_below", lambda *args: 1e6 * real(*args))
    if not room:
        monkeypatch.setenv("ADAPTREE_CACHE_BYTES", "1000")
    with pytest.raises(TrainingError, match=r"too large for fp16.*--activation-cache fp32"):
        trained(base, data, "head", activation_cache="fp16")


PLACES = {"first": 0.0, "early": 0.1, "middle": 0.5, "late": 0.9, "last of the states": 0.99}
OTHERS = [each for each in PLACES if each != "middle"]


@pytest.mark.parametrize(
    "place",
    [
        "middle",
        "checksum",
        *(pytest.param(each, marks=pytest.mark.slow) for each in (*OTHERS, "word", "name", "size", "end")),
    ],
)
@pytest.mark.parametrize("bit", [0, pytest.param(7, marks=pytest.mark.slow)])
def test_one_flipped_bit_is_found_and_the_file_is_computed_again(
    base: Base, data: Path, cache: Path, place: str, bit: int
) -> None:
    good, _ = trained(base, data, "head", epochs=1)
    (states,) = cache.glob("*.states")
    whole = bytearray(states.read_bytes())
    line = len(last_line(states))
    behind = {"word": line, "name": line - 20, "size": 15, "checksum": 5, "end": 1}
    where = len(whole) - behind[place] if place in behind else int(PLACES[place] * (len(whole) - line))
    harmed = bytearray(whole)
    harmed[where] ^= 1 << bit
    states.write_bytes(harmed)
    again, notes = trained(base, data, "head", epochs=1)
    assert "was damaged and is dropped: computing the 4 lower layers once for 90 texts" in notes[0]
    assert same(good, again)
    assert states.read_bytes() == whole
    assert trained(base, data, "head", epochs=1)[1] == []


@pytest.mark.parametrize("harm", ["longer", "shorter by one", "empty", "zeros", "of another name", "swapped"])
def test_other_damage_is_found_too(base: Base, data: Path, cache: Path, tmp_path: Path, harm: str) -> None:
    good, _ = trained(base, data, "head", epochs=1)
    (states,) = cache.glob("*.states")
    whole = states.read_bytes()
    half = len(whole) // 2 // 64 * 64
    other = whole.replace(states.stem.encode(), b"0" * len(states.stem))
    states.write_bytes({
        "longer": whole + b"\n", "shorter by one": whole[:-1], "empty": b"", "zeros": bytes(len(whole)),
        "of another name": other, "swapped": whole[64:half] + whole[:64] + whole[half:],
    }[harm])  # fmt: skip
    again, notes = trained(base, data, "head", epochs=1)
    assert "was damaged" in notes[0]
    assert same(good, again)
    assert states.read_bytes() == whole


def test_a_disk_that_does_not_keep_what_is_written_is_no_obstacle(
    base: Base, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, _ = trained(base, data, "head", epochs=1, activation_cache="off")
    monkeypatch.setattr(activation_cache, "last_line", lambda path, states: b"something else\n")
    weights, notes = trained(base, data, "head", epochs=1)
    assert "the disk is damaged" in notes[-1]
    assert same(good, weights)


@pytest.mark.parametrize("left", ["partial", "short"])
def test_what_a_killed_process_leaves_does_no_harm(base: Base, data: Path, cache: Path, left: str) -> None:
    good, _ = trained(base, data, "houlsby(size=8, layers=top:2)")
    (states,) = cache.glob("*.states")
    whole = states.read_bytes()
    if left == "partial":
        states.rename(states.with_suffix(".partial")).write_bytes(b"\x01" * 100)
    else:
        states.write_bytes(whole[: len(whole) // 2])
    again, notes = trained(base, data, "houlsby(size=8, layers=top:2)")
    assert "once for 90 texts" in notes[0]
    assert same(good, again)
    assert states.read_bytes() == whole
    assert not list(cache.glob("*.partial"))


def test_a_cache_that_cannot_be_written_is_no_obstacle(base: Base, data: Path, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file in the way")
    weights, notes = trained(base, data, "houlsby(size=8, layers=top:2)")
    assert "cannot be written" in notes[0]
    assert same(weights, trained(base, data, "houlsby(size=8, layers=top:2)", activation_cache="off")[0])


RUN = """
import sys, hashlib, torch, adaptree as at
torch.set_num_threads(1)
bound = at.train(sys.argv[2], base=sys.argv[1], method="houlsby(size=8, layers=top:2)", epochs=2, baselines=False)
print(hashlib.sha256(b"".join(t.numpy().tobytes() for _, t in sorted(bound.task.weights.items()))).hexdigest())
"""


SLOW = """
import time
from adaptree.models import activation_cache
below = activation_cache.states_below
def wait(*args):
    print("filling", flush=True)
    time.sleep(0.3)
    return below(*args)
activation_cache.states_below = wait
"""


@pytest.mark.slow
def test_two_processes_at_once_get_the_same_bits_and_one_file(tmp_path: Path, data: Path, cache: Path) -> None:
    folder = tiny_base(tmp_path / "tiny", layers=4)
    command = [sys.executable, "-c", SLOW + RUN, str(folder), str(data)]  # slow: both are at it at the same time
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    digests = [process.communicate(timeout=120)[0].split()[-1] for process in running]
    assert digests[0] == digests[1]
    assert len(list(cache.glob("*.states"))) == 1


@pytest.mark.slow
def test_a_process_killed_while_it_fills_leaves_the_next_one_the_same_bits(
    tmp_path: Path, data: Path, cache: Path
) -> None:
    folder = tiny_base(tmp_path / "tiny", layers=4)
    arguments = [str(folder), str(data)]
    process = subprocess.Popen([sys.executable, "-c", SLOW + RUN, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(2):  # the first batches
        process.stdout.readline()
    process.kill()
    process.communicate()
    assert list(cache.glob("*.partial"))
    runs = [subprocess.run([sys.executable, "-c", RUN, *arguments], capture_output=True, text=True) for _ in range(2)]
    assert runs[0].stdout.split()[-1] == runs[1].stdout.split()[-1]
    assert not list(cache.glob("*.partial"))


def test_a_run_that_was_stopped_is_resumed_on_it_bit_for_bit(
    base: Base, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    how: dict[str, Any] = {"base": base, "method": "houlsby(size=8, layers=top:2)", "epochs": 3, "baselines": False}
    whole = at.train(data, **how)

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        at.train(data, name="a", store=tmp_path / "store", on_event=stop, **how)
    resumed = at.train(data, name="a", store=tmp_path / "store", resume=True, **how)
    assert same(whole.task.weights, resumed.task.weights)


@pytest.mark.slow
def test_everything_that_moves_a_bit_is_in_the_name(base: Base, data: Path, cache: Path, tmp_path: Path) -> None:
    trained(base, data, "houlsby(size=8, layers=top:2)")
    trained(base, data, "houlsby(size=8, layers=top:1)")
    trained(base, data, "houlsby(size=8, layers=top:2)", activation_cache="fp16")
    trained(base, data, "houlsby(size=8, layers=top:2)", max_length=8)
    trained(load_base(tiny_base(tmp_path / "other", seed=3, layers=4)), data, "houlsby(size=8, layers=top:2)")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        trained(base, data, "houlsby(size=8, layers=top:2)")
    finally:
        torch.set_num_threads(threads)
    assert len(list(cache.glob("*.states"))) == 6


@pytest.mark.slow
def test_predictions_in_another_thread_and_a_fill_do_not_meet(base: Base, data: Path, cache: Path) -> None:
    right, _ = trained(base, data, "houlsby(size=8, layers=top:2)", activation_cache="off")
    bound = at.train(data, base=base, method="pfeiffer:8", epochs=1, baselines=False)
    expected, wrong, stop = bound.logits(["the lion"]), [], threading.Event()

    def predict() -> None:
        while not stop.is_set():
            try:
                if not torch.equal(bound.logits(["the lion"]), expected):
                    wrong.append("other bits")
            except Exception as error:
                wrong.append(repr(error))

    thread = threading.Thread(target=predict)
    thread.start()
    try:
        for _ in range(8):
            for path in cache.glob("*.states"):
                path.unlink()
            assert same(right, trained(base, data, "houlsby(size=8, layers=top:2)")[0])
    finally:
        stop.set()
        thread.join()
    assert wrong == []


def test_what_others_leave_in_the_cache_is_cleared_before_it_is_full(base: Base, data: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "dead.partial").write_bytes(b"x" * 1000)
    trained(base, data, "head", epochs=1)
    assert not (cache / "dead.partial").exists()


def test_the_record_says_what_was_really_done(base: Base, data: Path) -> None:
    def settings(method: str) -> dict[str, Any]:
        return at.train(data, base=base, method=method, epochs=1, baselines=False).task.record.settings

    assert settings("houlsby(size=8, layers=top:1)")["cached_layers"] == 3
    assert settings("houlsby:8")["cached_layers"] == 0
    assert (settings("head")["processes"], settings("head")["device"]) == (1, "cpu")


def test_a_method_that_touches_more_than_it_says_gets_no_cache(
    base: Base, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Houlsby, "lowest", lambda self, sites: 2)
    _, notes = trained(base, data, "houlsby:8", epochs=1)
    assert "acts below layer 2" in notes[0]


@pytest.mark.parametrize(
    "path", ["embeddings.LayerNorm", "embeddings.word_embeddings.weight", "encoder.layer.2.output"]
)
def test_what_acts_on_the_embeddings_or_a_lower_layer_gets_no_cache(base: Base, path: str) -> None:
    method = parse("houlsby(size=8, layers=top:1)")
    assert activation_cache.depth_for(method, base.hooked, ["encoder.layer.3.output"]) == 3
    with pytest.raises(cache_files.NotCacheable, match="acts below layer 3"):
        activation_cache.depth_for(method, base.hooked, [path])


def test_what_a_killed_process_had_reserved_is_room_again(
    base: Base, data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(base, data, "head", epochs=1)
    (states,) = cache.glob("*.states")
    size = states.stat().st_size
    states.rename(states.with_suffix(".partial"))

    def usage(path: Path) -> Any:
        return SimpleNamespace(free=5 * size // 2 - sum(each.stat().st_size for each in cache.iterdir()))

    monkeypatch.setattr(cache_files.shutil, "disk_usage", usage)
    assert "once for 90 texts" in trained(base, data, "head", epochs=1)[1][0]
    assert states.exists()


def test_states_that_are_there_need_no_room(base: Base, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(base, data, "head", epochs=1)
    monkeypatch.setenv("ADAPTREE_CACHE_BYTES", "1000")
    assert trained(base, data, "head", epochs=1)[1] == []


def test_the_states_do_not_depend_on_an_autocast_around_the_training(base: Base, data: Path, cache: Path) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        trained(base, data, "head", epochs=1)
    (states,) = cache.glob("*.states")
    under = states.read_bytes()
    states.unlink()
    trained(base, data, "head", epochs=1)
    assert states.read_bytes() == under


@contextlib.contextmanager
def precision(matmul: Any, value: str) -> Iterator[None]:
    before = matmul.fp32_precision
    matmul.fp32_precision = value
    try:
        yield
    finally:
        matmul.fp32_precision = before


WITHIN: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "bf16": lambda: precision(torch.backends.mkldnn.matmul, "bf16"),
    "tf32": lambda: precision(torch.backends.cuda.matmul, "tf32"),
    "attention": lambda: sdpa_kernel([SDPBackend.MATH]),
}


@pytest.mark.parametrize("within", WITHIN.values(), ids=WITHIN)
def test_how_torch_computes_is_in_the_name(
    base: Base, within: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    plain = activation_cache._name(base, 2, "fp32", [])
    with within():
        assert activation_cache._name(base, 2, "fp32", []) != plain
    assert activation_cache._name(base, 2, "fp32", []) == plain


@pytest.mark.parametrize("variable", ["MKL_CBWR", "ONEDNN_MAX_CPU_ISA"])
def test_what_the_environment_tells_the_maths_is_in_the_name(
    base: Base, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv(variable, raising=False)
    plain = activation_cache._name(base, 2, "fp32", [])
    monkeypatch.setenv(variable, "AVX2")
    assert activation_cache._name(base, 2, "fp32", []) != plain


def test_the_processor_and_any_device_are_in_the_name(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {activation_cache._name(base, 2, "fp32", [])}
    monkeypatch.setattr(base, "device", "mps")
    names.add(activation_cache._name(base, 2, "fp32", []))
    monkeypatch.setattr(activation_cache, "_processor", lambda: "another")
    names.add(activation_cache._name(base, 2, "fp32", []))
    assert len(names) == 3


def test_states_that_another_process_is_at_are_not_removed(
    base: Base, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    for seed in range(2):
        trained(base, words_csv(tmp_path / f"{seed}.csv", 60, seed=seed), "head", epochs=1)
        made += set(cache.glob("*.states")) - set(made)
        time.sleep(0.02)
    monkeypatch.setenv("ADAPTREE_CACHE_BYTES", str(int(2.5 * made[0].stat().st_size)))
    with made[0].with_suffix(".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        trained(base, words_csv(tmp_path / "2.csv", 60, seed=2), "head", epochs=1)
    assert made[0].exists()
    assert not made[1].exists()


def test_states_that_vanish_while_they_are_opened_are_computed_again(
    base: Base, data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(base, data, "head", epochs=1)
    (states,) = cache.glob("*.states")
    real, removed = np.memmap, []

    def memmap(path: Path, **how: Any) -> Any:
        if path == states and not removed:
            removed.append(path)
            path.unlink()
        return real(path, **how)

    monkeypatch.setattr(np, "memmap", memmap)
    assert "once for 90 texts" in trained(base, data, "head", epochs=1)[1][0]
    assert states.exists()


def test_ctrl_c_while_it_is_computed_is_heeded_and_leaves_nothing(
    base: Base, data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = activation_cache.states_below, []

    def below(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(activation_cache, "states_below", below)
    with pytest.raises(KeyboardInterrupt):
        trained(base, data, "head", epochs=1)
    assert len(calls) == 1
    assert {path.suffix for path in cache.iterdir()} == {".lock"}


def test_ctrl_c_is_heeded_while_another_process_computes_it(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with cache_files.alone(path), pytest.raises(KeyboardInterrupt), cache_files.alone(path, lambda: True):
        pass

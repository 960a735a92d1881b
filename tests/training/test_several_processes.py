"""Two processes over gloo train the task that one does, also when they were killed, each with a disk of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.bases import tiny_base, words_csv

pytest.importorskip("accelerate")

HOW: dict[str, Any] = {"epochs": 1, "batch_size": 8, "name": "words", "baselines": False, "threads": 1}
RATES = {"houlsby:8": 5e-3, "full": 1e-3, "lora:2": 5e-3}
GRADIENTS, DIES_AT = 3, 5


def _join(rank: int, world: dict[str, Any]) -> None:
    """Be one of several processes, as `accelerate launch` would have it."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    if world["size"] > 1:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(world["port"]), "LOCAL_RANK": str(rank)}
        os.environ.update(place, RANK=str(rank), WORLD_SIZE=str(world["size"]), ACCELERATE_USE_CPU="true")
        if world["sharded"]:
            os.environ["ACCELERATE_USE_FSDP"] = "true"


def _train(rank: int, world: dict[str, Any]) -> None:
    """In a process of its own: train, and save the weights and the first steps' gradients, or the error."""
    _join(rank, world)
    from adaptree import api
    from adaptree.errors import AdaptreeError
    from adaptree.models.loading import load_base
    from adaptree.tasks.store import Store
    from adaptree.training import distributed, loop, sharded

    loop.CHECKPOINT_SECONDS = 0.0
    gradients: dict[str, torch.Tensor] = {}
    real, steps = loop.clip, 0

    def clip(method: Any, trained: Any, most: float, group: Any) -> None:
        nonlocal steps
        steps += 1
        if steps <= GRADIENTS:
            gradients.update({f"{steps}.{name}": sharded.whole(p.grad).clone() for name, p in trained.items()})
        real(method, trained, most, group)

    def watch(event: Any) -> None:
        if event["event"] == "step" and event["step"] == world["dies_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.clip = clip
    folder: Path = world["folder"] / str(rank)
    folder.mkdir(parents=True, exist_ok=True)
    data = world["data"][rank % len(world["data"])]
    more = {**HOW, "method": world["method"], "lr": RATES[world["method"]], "resume": world["resume"]}
    try:
        bound = api.train(data, base=load_base(world["base"]), store=Store(folder), on_event=watch, **more)
    except AdaptreeError as error:
        (folder / "error").write_text(str(error))
        distributed.leave()
        raise SystemExit(1) from None
    save_file({name: tensor.contiguous() for name, tensor in bound.task.weights.items()}, folder / "weights")
    save_file(gradients, folder / "gradients")
    distributed.leave()


@pytest.fixture(scope="module")
def forks() -> Any:
    context = multiprocessing.get_context("forkserver")
    preload = ["adaptree.api", "adaptree.training.package", "transformers.models.bert.modeling_bert", "accelerate"]
    context.set_forkserver_preload(preload)
    return context


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("world")
    data = (words_csv(root / "words.csv"),)
    return {"base": tiny_base(root / "base"), "data": data, "sharded": False, "dies_at": 0, "resume": False}


def run(forks: Any, world: dict[str, Any], folder: Path, size: int, **more: Any) -> list[int]:
    """Return the exit codes of `size` processes that train together, in folders 0, 1, …"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**world, "folder": folder, "size": size, "port": port, **more}
    processes = [forks.Process(target=shared.get("target", _train), args=(rank, shared)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in processes]


def furthest(one: Path, other: Path) -> float:
    first, second = load_file(one), load_file(other)
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "sharded"), [("houlsby:8", False), ("full", True)])
def test_two_processes_take_the_steps_of_one_and_resume_to_the_same_bits(
    forks: Any, world: dict[str, Any], tmp_path: Path, method: str, sharded: bool
) -> None:
    how = {"method": method, "sharded": sharded}
    assert run(forks, world, tmp_path / "one", 1, **how) == [0]
    assert run(forks, world, tmp_path / "two", 2, **how) == [0, 0]
    one, two, again = (tmp_path / name / "0" for name in ("one", "two", "again"))
    assert furthest(one / "gradients", two / "gradients") < 1e-6
    if not sharded:  # of full fine-tuning, Adam makes whole steps of gradients that are mere rounding
        assert furthest(one / "weights", two / "weights") < 1e-6
    assert furthest(two / "weights", tmp_path / "two" / "1" / "weights") == 0
    killed = run(forks, world, tmp_path / "again", 2, dies_at=DIES_AT, **how)
    assert killed == [-signal.SIGKILL] * 2
    checkpoint = Path("runs", "words", "checkpoint.safetensors")
    assert (again / checkpoint).is_file()
    assert not (tmp_path / "again" / "1" / checkpoint).exists(), "the second process has a disk of its own"
    assert run(forks, world, tmp_path / "again", 2, resume=True, **how) == [0, 0]
    assert furthest(two / "weights", again / "weights") == 0


def test_processes_with_other_data_are_refused_by_all(forks: Any, world: dict[str, Any], tmp_path: Path) -> None:
    data = (*world["data"], words_csv(tmp_path / "other.csv", seed=1))
    assert run(forks, world, tmp_path, 2, method="houlsby:8", data=data) == [1, 1]
    for rank in "01":
        assert "process 1 of 2 has other data" in (tmp_path / rank / "error").read_text()


def test_a_damaged_checkpoint_is_refused_by_all(forks: Any, world: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "0" / "runs" / "words"
    folder.mkdir(parents=True)
    (folder / "checkpoint.safetensors").write_bytes(b"damaged")
    assert run(forks, world, tmp_path, 2, method="houlsby:8", resume=True) == [1, 1]
    for rank in "01":
        assert "cannot be read" in (tmp_path / rank / "error").read_text()


def test_fsdp_is_for_full_fine_tuning(forks: Any, world: dict[str, Any], tmp_path: Path) -> None:
    assert run(forks, world, tmp_path, 2, method="lora:2", sharded=True) == [1, 1]
    assert "FSDP is for full fine-tuning" in (tmp_path / "1" / "error").read_text()


def _attach(rank: int, world: dict[str, Any]) -> None:
    """In a process of its own: train an attached model over two processes and alone; write how far apart they are."""
    _join(rank, world)
    from accelerate import Accelerator
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import BertConfig, BertForSequenceClassification

    import adaptree as at
    from adaptree.training import distributed, sharded

    def steps(method: str, together: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        config = BertConfig(**shape, vocab_size=28, num_labels=3, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
        tuned: Any = at.attach(BertForSequenceClassification(config), method)
        backward: Any = torch.Tensor.backward
        mine = slice(rank, None, 2) if together else slice(None)
        if together and method == "full":
            fully_shard(tuned, mesh=init_device_mesh("cpu", (2,)))
            tuned.set_force_sum_reduction_for_comms(True)
        optimiser = torch.optim.SGD(tuned.parameters(), lr=0.1)
        if together and method != "full":
            accelerator = Accelerator(cpu=True)
            tuned, optimiser = accelerator.prepare(tuned, optimiser)
            backward = accelerator.backward
        for step in range(3):
            draw = torch.Generator().manual_seed(step)
            ids, labels = torch.randint(4, 28, (8, 7), generator=draw), torch.randint(0, 3, (8,), generator=draw)
            optimiser.zero_grad()
            backward(tuned(input_ids=ids[mine], labels=labels[mine]).loss)
            optimiser.step()
        found = {name.removeprefix("module."): p for name, p in tuned.named_parameters()}
        return {name: sharded.whole(p) for name, p in found.items()} | {
            f"gradient.{name}": sharded.whole(p.grad) for name, p in found.items() if p.grad is not None
        }

    world["folder"].mkdir(exist_ok=True)
    for method in ("houlsby:8", "full"):
        save_file(steps(method, together=True), world["folder"] / f"{method}-two-{rank}")
        if rank == 0:
            save_file(steps(method, together=False), world["folder"] / f"{method}-one")
    distributed.leave()


def test_an_attached_model_trains_under_ddp_and_fsdp(forks: Any, world: dict[str, Any], tmp_path: Path) -> None:
    assert run(forks, world, tmp_path, 2, target=_attach) == [0, 0]
    for method in ("houlsby:8", "full"):
        for rank in (0, 1):
            assert furthest(tmp_path / f"{method}-one", tmp_path / f"{method}-two-{rank}") < 1e-6

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
import yaml

from adaptree.errors import AdaptreeError, BadName, StoreError, TaskCorrupt, TaskNotFound, UsageError, WrongBase
from adaptree.hub import hf
from adaptree.hub.interop.write import write_adapters, write_peft
from adaptree.hub.transfer import pull
from adaptree.models.base import Base
from adaptree.tasks.record import ON, Record
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests.hub import made
from tests.hub.hf_server import READER, TOKEN, Hub, Repository

# huggingface_hub's own, where it uploads as git-LFS does.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """The stand-in, with a token that may write, and a home of its own for the library."""
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return made.base(tmp_path_factory.mktemp("base") / "bert")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(tmp_path / "other")


SCORES = {"metrics": {"validation": {"accuracy": 0.75, "macro_f1": 0.5}}, "data": {"name": "words.csv"}}


def plain(name: str = "reviews", fill: float = 1.0) -> Task:
    record = Record(name=name, kind="classify", labels=["a", "b"], method="houlsby(size=2)", base={"name": "minilm"},
                    **SCORES)  # type: ignore[arg-type]  # fmt: skip
    return Task(record, {"head.bias": torch.full((8,), fill)})


def same(one: Task, two: Task) -> bool:
    return one.tensors.keys() == two.tensors.keys() and all(
        torch.equal(tensor, two.tensors[name]) for name, tensor in one.tensors.items()
    )


def test_a_task_goes_to_the_hub_and_comes_back_with_the_same_bits(
    hub: Hub, base: Base, store: Store, other: Store
) -> None:
    task = store.add(made.task(base, "houlsby:6", name="reviews"))
    done = hf.push(store, "reviews", "hf://me/reviews")
    assert (done.repository, done.url) == ("me/reviews", f"{hub.url}/me/reviews")
    head = hub.repositories["me/reviews"].head
    assert set(head) == {"README.md", "task.json", "task.safetensors"}
    assert hub.repositories["me/reviews"].refs["main"] == done.commit
    assert any("/info/lfs/objects/batch" in request for request in hub.requests), "tensors go through LFS"
    found, new = hf.pull("hf://me/reviews", other)
    assert (found.record.reference, new) == ("reviews@1", True)
    assert same(found, task)
    before, after = (base.bind(where["reviews"]).logits(made.TEXTS) for where in (store, other))
    assert torch.equal(before, after)
    again, new = hf.pull("me/reviews", other)
    assert (again.record.reference, new, other.versions("reviews")) == ("reviews@1", False, [1])
    assert hf.pull("me/reviews", other, name="mine", base=base)[0].record.reference == "mine@1"


def test_a_task_brings_what_it_needs(hub: Hub, base: Base, store: Store, other: Store) -> None:
    lower = store.add(made.task(base, "pfeiffer:5", name="lower"))
    top = made.task(base, "pfeiffer:5", name="top", seed=1)
    extra = {**top.record.extra, ON: "lower@1", "needs": {"lower@1": lower.record.digest}}
    store.add(Task(replace(top.record, extra=extra), top.tensors, {"lower@1": lower}))
    hf.push(store, "top", "me/top")
    assert "parts/0/task.safetensors" in hub.repositories["me/top"].head
    found, _ = hf.pull("me/top", other)
    assert sorted(other) == ["lower", "top"]
    logits = [base.bind(where["top"]).logits(made.TEXTS) for where in (store, other)]
    assert torch.equal(*logits)
    assert found.parts["lower@1"].record.digest == lower.record.digest
    tree = hub.repositories["me/top"].head
    stranger = store.add(made.task(base, "pfeiffer:5", name="stranger", seed=2))
    path = store.path_of(stranger.record.reference)
    swapped = {f"parts/0/{name}": (path / name).read_bytes() for name in ("task.json", "task.safetensors")}
    hub.repositories["me/top"].commit({**tree, **swapped})
    with pytest.raises(TaskCorrupt, match=r"its part 'lower@1' is not with it"):
        hf.pull("me/top", other, name="third")
    assert sorted(other) == ["lower", "top"]


def test_a_second_push_replaces_the_files_and_a_revision_finds_the_first(hub: Hub, store: Store, other: Store) -> None:
    store.add(plain(fill=1))
    first = hf.push(store, "reviews@1", "me/reviews")
    tree = hub.repositories["me/reviews"].head
    hub.repositories["me/reviews"].commit({**tree, "old.svg": b"x", "parts/0/task.json": b"x", "LICENSE": b"mine"})
    store.add(plain(fill=2))
    hf.push(store, "reviews", "me/reviews")
    assert set(hub.repositories["me/reviews"].head) == {"README.md", "task.json", "task.safetensors", "LICENSE"}
    assert hf.pull("me/reviews", other)[0].tensors["head.bias"][0] == 2
    assert hf.pull(f"me/reviews@{first.commit}", other)[0].tensors["head.bias"][0] == 1
    with pytest.raises(TaskNotFound, match="'me/reviews' has no revision 'v7'"):
        hf.pull("me/reviews@v7", other)


def test_the_card_is_the_model_card(hub: Hub, store: Store) -> None:
    store.add(plain())
    hf.push(store, "reviews", "me/reviews", license="mit", language="en", private=True)
    assert hub.repositories["me/reviews"].private
    card = hub.repositories["me/reviews"].head["README.md"].decode()
    front, _, body = card.removeprefix("---\n").partition("\n---\n")
    metadata = yaml.safe_load(front)
    assert metadata["library_name"] == "adaptree"
    assert metadata["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert (metadata["license"], metadata["language"]) == ("mit", "en")
    assert metadata["pipeline_tag"] == "text-classification"
    assert {"adaptree", "classify", "houlsby"} <= set(metadata["tags"])
    (result,) = metadata["model-index"][0]["results"]
    assert result["dataset"]["name"] == "words.csv"
    assert {each["type"]: each["value"] for each in result["metrics"]} == {"accuracy": 0.75, "macro_f1": 0.5}
    assert "adaptree pull hf://me/reviews" in body
    assert body.lstrip().startswith("# reviews@1")


def test_a_base_of_a_folder_is_no_base_model_on_the_hub() -> None:
    record = replace(plain().record, base={"name": "my-folder"}, metrics={})
    metadata = yaml.safe_load(hf.write_card(record, "me/x").split("---\n")[1])
    assert "base_model" not in metadata
    assert "model-index" not in metadata
    assert yaml.safe_load(hf.write_card(replace(record, base={"name": "org/base"}), "me/x").split("---\n")[1])[
        "base_model"
    ] == "org/base"  # fmt: skip


# what can go wrong: one line each


def one_line(error: AdaptreeError) -> str:
    assert "\n" not in str(error)
    assert error.hint
    return str(error)


def test_without_a_token_nothing_is_pushed(
    hub: Hub, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(plain())
    hf.push(store, "reviews", "me/reviews")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(StoreError, match="there is no token") as error:
        hf.push(store, "reviews", "me/reviews")
    assert "hf auth login" in one_line(error.value)
    assert hf.pull("me/reviews", other)[1], "a public one needs none"
    hub.repositories["me/reviews"].private = True
    with pytest.raises(StoreError, match="does not know this token, or it needs one"):
        hf.pull("me/reviews", other)


@pytest.mark.parametrize(
    ("token", "said"), [("hf_wrong", "does not know this token"), (READER, "this token may not do that")]
)
def test_a_token_that_may_not(hub: Hub, store: Store, token: str, said: str) -> None:
    store.add(plain())
    with pytest.raises(StoreError, match=said) as error:
        hf.push(store, "reviews", "me/reviews", token=token)
    one_line(error.value)
    assert hub.repositories == {}


def test_what_is_not_there(hub: Hub, store: Store) -> None:
    with pytest.raises(TaskNotFound, match="there is no repository 'me/nothing'") as error:
        hf.pull("me/nothing", store)
    one_line(error.value)
    with pytest.raises(TaskNotFound, match="no task 'nothing'"):
        hf.push(store, "nothing", "me/nothing")
    hub.repositories["me/gated"] = Repository(gated=True)
    with pytest.raises(StoreError, match="open only to people"):
        hf.pull("me/gated", store, token=READER)


def test_no_network(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    store.add(plain())
    for act in (lambda: hf.pull("me/reviews", store), lambda: hf.push(store, "reviews", "me/reviews")):
        with pytest.raises(StoreError, match="cannot be reached") as error:
            act()
        one_line(error.value)


@pytest.mark.parametrize("text", ["reviews", "hf://me", "me/a/b", "../me/x", "me/..", "me/x@", "me/a b", "hf://"])
def test_a_name_that_is_no_repository(text: str, store: Store) -> None:
    with pytest.raises(UsageError, match="is not a repository"):
        hf.pull(text, store)


def test_a_push_names_no_revision_and_a_pull_a_real_name(hub: Hub, store: Store) -> None:
    with pytest.raises(UsageError, match="not to its revision"):
        hf.push(store, "reviews", "me/reviews@v1")
    with pytest.raises(BadName):
        hf.pull("me/reviews", store, name="Not A Name")
    assert hub.requests == []


def test_a_repository_that_is_no_task(hub: Hub, store: Store) -> None:
    hub.repositories["me/base"] = base = Repository()
    base.commit({"config.json": b"{}", "model.safetensors": b""})
    with pytest.raises(TaskNotFound, match=r"is not a task: it has no task\.json") as error:
        hf.pull("me/base", store)
    assert "--base" in one_line(error.value)
    base.commit({"adapter_config.json": b"{}", "adapter_model.safetensors": b""})
    with pytest.raises(UsageError, match="an adapter of another library") as error_:
        hf.pull("me/base", store)
    assert "--base" in one_line(error_.value)


@pytest.mark.parametrize(("method", "write"), [("lora:3", write_peft), ("pfeiffer:3", write_adapters)])
def test_a_repository_of_another_library_becomes_a_task(
    hub: Hub, base: Base, other: Store, tmp_path: Path, method: str, write: Callable[..., None]
) -> None:
    task = made.task(base, method, name="theirs")
    write(task, base, tmp_path / "saved", head=False)
    hub.repositories["them/theirs"] = repository = Repository()
    repository.commit({path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()})
    (copied,) = pull("hf://them/theirs", store=other, name="mine", base=base)
    assert (copied.task, copied.versions) == ("mine@1", 1)
    own = {name: tensor for name, tensor in task.weights.items() if not name.startswith(("head.", "norm."))}
    assert own
    assert all(torch.equal(other["mine"].weights[name], tensor) for name, tensor in own.items())


# damage, and what does not belong there


@pytest.fixture
def pushed(hub: Hub, base: Base, store: Store) -> Repository:
    store.add(made.task(base, "pfeiffer:5", name="reviews"))
    hf.push(store, "reviews", "me/reviews")
    return hub.repositories["me/reviews"]


def test_only_a_task_s_files_are_fetched(hub: Hub, pushed: Repository, other: Store) -> None:
    more = {
        "evil.pkl": b"x",
        "pytorch_model.bin": b"x",
        "setup.py": b"x",
        "parts/x/task.json": b"x",
        "a/task.json": b"x",
    }
    pushed.commit({**pushed.head, **more})
    hub.requests.clear()
    assert hf.pull("me/reviews", other)[1]
    fetched = {
        request.rpartition("/resolve/")[2].partition("/")[2] for request in hub.requests if "/resolve/" in request
    }
    assert fetched == {"task.json", "task.safetensors", "README.md"}
    assert {path.name for path in other.path_of("reviews").iterdir()} == fetched | {"SHA256SUMS"}


@pytest.mark.parametrize("file", ["task.json", "task.safetensors"])
def test_a_flipped_bit_is_found(file: str, pushed: Repository, other: Store) -> None:
    data = bytearray(pushed.head[file])
    data[len(data) // 2] ^= 1
    pushed.commit({**pushed.head, file: bytes(data)})
    with pytest.raises(AdaptreeError) as error:
        hf.pull("me/reviews", other)
    one_line(error.value)
    assert list(other) == []


def test_a_missing_file_is_named(pushed: Repository, other: Store) -> None:
    pushed.commit({name: data for name, data in pushed.head.items() if name != "task.safetensors"})
    with pytest.raises(TaskCorrupt, match=r"task\.safetensors: the file is missing"):
        hf.pull("me/reviews", other)


def test_a_record_of_another_base_is_refused_if_the_base_is_named(
    pushed: Repository, other: Store, tmp_path: Path
) -> None:
    stranger = made.base(tmp_path / "roberta", "roberta")
    with pytest.raises(WrongBase):
        hf.pull("me/reviews", other, base=stranger)
    assert list(other) == []


def test_a_record_too_large_to_be_one_is_not_fetched(
    hub: Hub, pushed: Repository, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf, "LARGEST_RECORD", len(json.dumps({})))
    hub.requests.clear()
    with pytest.raises(TaskCorrupt, match="which is no task"):
        hf.pull("me/reviews", other)
    assert not any("/resolve/" in request for request in hub.requests)

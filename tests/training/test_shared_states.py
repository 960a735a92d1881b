"""Machines that share the activation cache behind a URL: the second one computes no lower layer, with the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import s3
from tests.bases import tiny_base, words_csv
from tests.training.test_activation_cache import same, trained

from adaptree.models.base import Base
from adaptree.models.loading import load_base
from adaptree.models.shared_states import VARIABLE
from adaptree.tasks.objects import Objects

METHOD = "pfeiffer(size=4, layers=top:1)"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny", layers=2))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("data") / "words.csv", 40)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Go on as another machine, with a cache folder of its own."""

    def use(name: str) -> Path:
        monkeypatch.setenv("ADAPTREE_CACHE", str(tmp_path / name))
        return tmp_path / name

    return use


@pytest.fixture(params=["s3", "folder"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "folder":
        found = str(tmp_path / "shared")
        monkeypatch.setenv(VARIABLE, found)
        yield Path(found).as_uri()
        return
    with s3.running() as endpoint:
        s3.use(endpoint, monkeypatch)
        monkeypatch.setenv(VARIABLE, f"s3://{s3.BUCKET}/activations")
        yield f"s3://{s3.BUCKET}/activations"
    s3.forget()


def test_the_second_machine_fetches_what_the_first_computed(
    base: Base, data: Path, machine: Callable[[str], Path], url: str
) -> None:
    machine("one")
    first, said = trained(base, data, METHOD)
    assert "once for" in said[0]
    (entry,) = [name for name in Objects(url).listing("") if name.endswith(".json")]
    manifest = json.loads(Objects(url).read(entry) or b"")
    assert (manifest["base"], manifest["layers"], manifest["precision"]) == (base.name, 1, "fp32")
    machine("two")
    second, said = trained(base, data, METHOD)
    assert said == [
        f"the lower layers' states come from the shared activation cache ({manifest['bytes'] / 1e6:.1f} MB)."
    ]
    assert same(first, second)
    assert trained(base, data, METHOD)[1] == []  # from its own disk


@pytest.mark.parametrize("damage", ["states", "cut", "entry"])
def test_what_is_damaged_there_is_computed_and_shared_anew(
    base: Base, data: Path, machine: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    shared = tmp_path / "shared"
    monkeypatch.setenv(VARIABLE, str(shared))
    machine("one")
    first, _ = trained(base, data, METHOD)
    (states,), (entry,) = shared.glob("*.states"), shared.glob("*.json")
    whole = bytearray(states.read_bytes())
    if damage == "entry":
        entry.write_text("[]")
    else:
        whole[100] ^= 1
        states.write_bytes(whole if damage == "states" else whole[:-1])
    machine("two")
    second, said = trained(base, data, METHOD)
    assert ("is damaged" in said[0]) == (damage != "entry")
    assert "once for" in said[-1]
    assert same(first, second)
    machine("three")
    assert "come from the shared" in trained(base, data, METHOD)[1][0]


def test_a_url_that_cannot_be_reached_costs_a_note_each_way(
    base: Base, data: Path, machine: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    machine("one")
    alone, _ = trained(base, data, METHOD)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    machine("two")
    found, said = trained(base, data, METHOD)
    assert [each.partition(":")[0] for each in said if "shared" in each][-1].endswith("cannot be written")
    assert same(alone, found)

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptree import Houlsby, Pfeiffer, attach
from adaptree.core.bottleneck import ACTIVATIONS
from adaptree.errors import AdaptreeError, CompositionError, MethodError, UsageError
from adaptree.methods import METHODS, Method, parse
from adaptree.methods.parallel import ParallelAdapter
from adaptree.models.sites import find
from adaptree.training import parents
from tests import tiny

LAYERS = st.one_of(
    st.none(),
    st.integers(0, 40).map(str),
    st.tuples(st.integers(0, 9), st.integers(10, 20)).map(lambda pair: f"{pair[0]}-{pair[1]}"),
    st.integers(1, 12).map(lambda n: f"top:{n}"),
    st.lists(st.integers(0, 12).map(str), min_size=2, max_size=4).map(",".join),
    st.just("0, 2 , 4-5,top:1"),
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "layers": LAYERS,
    "size": st.none() | st.integers(1, 10_000),
    "activation": st.sampled_from(sorted(ACTIVATIONS)),
    "init_std": st.floats(0, 1e6, allow_nan=False) | st.integers(0, 3),
    "norms": st.booleans(),
    "invertible": st.booleans(),
    "depth": st.integers(2, 9),
    "scale": st.floats(0.1, 100),
    "rank": st.integers(1, 300),
    "alpha": st.floats(0.1, 100),
    "dropout": st.floats(0, 0.9),
    "targets": st.sampled_from(["query+value", "all", "up+down"]),
    "scale_init": st.floats(0.5, 2),
    "heads": st.integers(1, 12),
    "output": st.booleans(),
    "bias": st.booleans(),
    "n": st.integers(1, 24),
    "c": st.floats(0.01, 100),
    "ngrams": st.integers(1, 4),
    "queries_and_ffn": st.booleans(),
    "density": st.floats(1e-4, 1),
    "structured": st.booleans(),
    "strength": st.floats(0.1, 100),
    "l1": st.floats(0, 10),
    "freeze_head": st.booleans(),
    "dense_rate": st.floats(0, 1),
}
LAYERLESS = ("top", "head", "tfidf")


@st.composite
def methods(draw: st.DrawFn) -> Method:
    """Any registered method, with some of its fields set. A new field needs a strategy above."""
    cls = METHODS[draw(st.sampled_from(sorted(METHODS)))]
    names = [field.name for field in fields(cls) if field.name != "layers" or cls.name not in LAYERLESS]
    chosen = draw(st.sets(st.sampled_from(names))) if names else set()
    values = {name: draw(FIELDS[name]) for name in chosen}
    if cls.name == "houlsby_norm" and values.get("size") == 1:
        values["size"] = 2  # one number has no spread to norm by
    if cls.name == "pal":
        values["size"] = values.get("heads", 12) * draw(st.integers(1, 30))
    return cls(**values)


def test_every_field_of_every_method_has_a_strategy() -> None:
    assert {field.name for cls in METHODS.values() for field in fields(cls)} <= set(FIELDS)


@given(methods())
def test_repr_parses_back(method: Method) -> None:
    assert parse(repr(method)) == method
    assert parse(f"  {method} ") == method
    assert str(method) == repr(method)


@given(methods())
def test_a_method_is_parsed_to_itself_and_changes_override(method: Method) -> None:
    assert parse(method) == method
    if method.name not in LAYERLESS:
        assert parse(method, layers="0").layers == "0"


@pytest.mark.parametrize(
    ("spelling", "method"),
    [
        ("houlsby", Houlsby()),
        ("houlsby:64", Houlsby(size=64)),
        ("houlsby: 8 ", Houlsby(size=8)),
        ("houlsby()", Houlsby()),
        ("houlsby(size=64, activation=tanh)", Houlsby(size=64, activation="tanh")),
        (" houlsby ( size = 64,activation='tanh' ) ", Houlsby(size=64, activation="tanh")),
        ("houlsby(norms=false)", Houlsby(norms=False)),
        ("houlsby(norms=False)", Houlsby(norms=False)),
        ("houlsby(size=none)", Houlsby(size=None)),
        ("houlsby(init_std=1e-3)", Houlsby(init_std=0.001)),
        ("houlsby(layers=3)", Houlsby(layers="3")),
        ("houlsby(layers=3-5)", Houlsby(layers="3-5")),
        ("houlsby(layers=top:2)", Houlsby(layers="top:2")),
        ("houlsby(layers='0,2,4', size=8)", Houlsby(layers="0,2,4", size=8)),
        ('houlsby(layers="0,2,4")', Houlsby(layers="0,2,4")),
        ("pfeiffer", Pfeiffer()),
        ("pfeiffer:48", Pfeiffer(size=48)),
        ("pfeiffer(norms=true)", Pfeiffer(norms=True)),
    ],
)
def test_spellings(spelling: str, method: Method) -> None:
    assert parse(spelling) == method
    assert type(parse(spelling)) is type(method)


def test_the_full_spelling_shows_what_is_not_at_its_default() -> None:
    assert repr(Houlsby()) == "houlsby(size=64)"
    assert repr(Houlsby(size=8, activation="tanh", norms=False)) == "houlsby(size=8, activation=tanh, norms=false)"
    assert repr(Houlsby(size=None)) == "houlsby(size=none)"
    assert repr(Pfeiffer()) == "pfeiffer"
    assert repr(Pfeiffer(layers="0,2")) == "pfeiffer(layers='0,2')"


@pytest.mark.parametrize(
    ("spelling", "says"),
    [
        ("houlsbi", "Did you mean 'houlsby'?"),
        ("Pfeifer:48", "Did you mean 'pfeiffer'?"),
        ("xyz", "There are: bapna, bitfit"),
        ("", "is not a method"),
        ("houlsby:", "Write houlsby, houlsby:64"),
        ("houlsby(size=64", "is not a method"),
        ("houlsby(64)", "'64' is not field=value"),
        ("houlsby(layers=0,2)", "layers='0,2'"),
        ("houlsby(size=8, size=9)", "says size twice"),
        ("houlsby(sise=64)", "Did you mean 'size'?"),
        ("houlsby(quux=64)", "It has: layers, size, activation, init_std, norms"),
        ("houlsby:0", "size must be a whole number of at least 1, not 0"),
        ("houlsby:-4", "at least 1, not -4"),
        ("houlsby:2.5", "a whole number"),
        ("houlsby:many", "not 'many'"),
        ("houlsby:true", "not True"),
        ("houlsby(init_std=-0.01)", "init_std must be a number of at least 0, not -0.01"),
        ("houlsby(init_std=nan)", "init_std"),
        ("houlsby(init_std=inf)", "init_std"),
        ("houlsby(init_std=true)", "init_std"),
        ("houlsby(activation=gelo)", "Did you mean 'gelu'?"),
        ("houlsby(activation=3)", "There are: gelu, relu, swish, tanh"),
        ("houlsby(norms=maybe)", "norms must be true or false, not 'maybe'"),
        ("houlsby(layers=true)", "layers=True cannot be read"),
        ("houlsby(layers=1.5)", "layers=1.5 cannot be read"),
    ],
)
def test_a_bad_spelling_gets_one_clear_line(spelling: str, says: str) -> None:
    with pytest.raises(MethodError) as caught:
        parse(spelling)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_bad_change_is_refused_like_a_bad_spelling() -> None:
    with pytest.raises(MethodError, match="at least 1"):
        parse("houlsby", size=0)
    with pytest.raises(MethodError, match="layers"):
        parse("houlsby", layers=(0, 1))


@pytest.mark.parametrize("layers", ["3", "1-9", "top:9", "2-1", "top:0", "everything"])
def test_layers_that_the_model_does_not_have_are_refused_when_attached(layers: str) -> None:
    with pytest.raises(UsageError, match=rf"layers='{layers}'"):
        attach(tiny.model("bert"), Houlsby(size=4, layers=layers))


def test_houlsby_has_its_own_norms_and_both_sublayers_and_pfeiffer_neither() -> None:
    model, generator = tiny.model("bert"), torch.Generator()
    sites = find(model)
    houlsby = Houlsby(size=4).init(sites, model, generator)
    pfeiffer = Pfeiffer(size=4).init(sites, model, generator)
    assert {name.split(".")[1] for name in houlsby if name[0].isdigit()} == {"attention", "feedforward"}
    assert {name.rpartition(".")[0] for name in houlsby if name.startswith("norm.")} == {
        f"norm.{norm.path}" for norm in sites.norms
    }
    assert {name.split(".", 1)[1] for name in pfeiffer} == {
        "feedforward.down", "feedforward.down_bias", "feedforward.up", "feedforward.up_bias"
    }  # fmt: skip


def test_a_tasks_norms_are_born_as_the_bases_and_are_its_own() -> None:
    model = tiny.model("bert")
    v = Houlsby(size=4).init(find(model), model, torch.Generator())
    for name in (name for name in v if name.startswith("norm.")):
        p = model.get_parameter(name.removeprefix("norm."))
        assert torch.equal(v[name], p)
        assert v[name].data_ptr() != p.data_ptr()


def test_without_a_size_the_bottleneck_is_a_sixteenth_of_the_width() -> None:
    model = tiny.model("bert")
    for method in (Pfeiffer(), Houlsby(size=None)):
        assert method.init(find(model), model, torch.Generator())["0.feedforward.down"].shape == (32, 2)


def test_a_method_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Houlsby().size = 3  # type: ignore[misc]
    assert issubclass(MethodError, AdaptreeError)
    assert len({Houlsby(), Houlsby(size=64), Pfeiffer()}) == 2


def test_a_new_method_is_a_new_file_and_nothing_else(tmp_path: Path) -> None:
    import adaptree

    copy = tmp_path / "adaptree"
    shutil.copytree(Path(adaptree.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "methods" / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from adaptree.methods.houlsby import Houlsby\n\n\n"
        "@dataclass(frozen=True, kw_only=True, repr=False)\n"
        "class Mine(Houlsby):\n"
        "    name: ClassVar[str] = 'mine'\n"
    )
    program = (
        "import sys, adaptree\n"
        "print(adaptree.Mine(size=8), 'Mine' in dir(adaptree), 'Mine' in adaptree.__all__)\n"
        "from adaptree import *\n"
        "from adaptree.methods import parse\n"
        "print(parse('mine:8') == Mine(size=8))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout.split("\n")[:2] == ["mine(size=8) True True", "True"], done.stderr


def test_every_method_is_a_name_of_the_package_and_nothing_else_is() -> None:
    import adaptree

    assert {cls.__name__ for cls in METHODS.values()} <= set(dir(adaptree)) == set(adaptree.__all__)
    assert all(getattr(adaptree, cls.__name__) is cls for cls in METHODS.values())
    assert all(getattr(adaptree, name) is not None for name in dir(adaptree))
    for name in ("Nothing", "nothing", "_nothing", "Stack", "Parallel", "Name"):
        assert not hasattr(adaptree, name)


@pytest.mark.parametrize("spelling", ["parallel", "parallel:8", "parallel(size=8)", "parallel(size=8, layers=top:1)"])
def test_an_earlier_name_of_a_method_is_read_and_the_new_one_written(spelling: str) -> None:
    method = parse(spelling)
    assert type(method) is ParallelAdapter
    assert repr(method).startswith("parallel_adapter(size=")
    assert parse(repr(method)) == method
    assert "parallel" not in METHODS


def test_the_earlier_name_in_front_of_brackets_is_a_composition_and_says_what_to_write() -> None:
    with pytest.raises(CompositionError, match=r"The method is spelled parallel_adapter\(size=…\)"):
        parents.find_parents("parallel(size=8)", None, None)

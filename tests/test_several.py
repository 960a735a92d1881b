"""parallel(…) and rows(…): the answers are those of each part alone, to 1e-5, and what is shared runs once."""

from __future__ import annotations

import functools
import threading
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

import adaptree as at
from adaptree.compose.merge import together as merge
from adaptree.data.batch import collate
from adaptree.data.encode import Encoding
from adaptree.errors import CompositionError, DataError, UsageError, WrongBase
from adaptree.methods import parse
from adaptree.models.bank import Bank, Place
from adaptree.models.base import Base
from adaptree.models.hooks import HookedModel
from adaptree.models.loading import load_base
from adaptree.models.passes import NotShareable, Passes
from adaptree.models.several import ParallelTasks, RowTasks
from adaptree.tasks.task import Task
from tests import tiny
from tests.bases import FILLER, WORDS, tiny_base

ALL = [
    "houlsby:8", "houlsby(size=8, norms=false)", "pfeiffer:8", "pfeiffer(size=8, invertible=true)", "lora:2", "ia3",
    "pal:12", "bapna:4", "parallel_adapter:4", "scaled_parallel:4", "houlsby_parallel:4", "houlsby_multiplicative:4",
    "houlsby_feedforward:4", "norms", "head",
]  # fmt: skip
TOP = [
    f"{name}(layers=top:1)"
    for name in ("houlsby", "pfeiffer", "lora", "ia3", "pal", "bapna", "parallel_adapter", "norms")
]
REPLACING = ["full", "top:1", "lt_sft:0.05", "bitfit"]


def texts(count: int, seed: int = 0, most: int = 14) -> list[str]:
    rng = np.random.default_rng(seed)
    words = [*FILLER, *" ".join(WORDS.values()).split()]
    return [" ".join(rng.choice(words, rng.integers(1, most))) for _ in range(count)]


TEXTS = texts(30)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny", layers=3, mask=True))


def trained(base: Base, rows: list[dict[str, Any]], name: str, **options: Any) -> Task:
    return at.train(rows, base=base, name=name, epochs=1, baselines=False, **{"method": "pfeiffer:4", **options}).task


@pytest.fixture(scope="module")
def tasks(base: Base) -> dict[str, Task]:
    """A task of every method and of several kinds; what was not trained has weights at random."""
    some = texts(24, seed=1)
    found = {
        "words": trained(base, [{"text": t, "label": "ab"[i % 2]} for i, t in enumerate(some)], "words"),
        "short": trained(base, [{"text": t, "label": "xyz"[i % 3]} for i, t in enumerate(some)], "short", max_length=8),
        "mean": trained(base, [{"text": t, "label": "ab"[i % 2]} for i, t in enumerate(some)], "mean", pooling="mean"),
        "number": trained(base, [{"text": t, "label": i / 3} for i, t in enumerate(some)], "number", method="lora:2"),
        "tags": trained(
            base, [{"tokens": t.split(), "tags": ["B-X"] + ["O"] * t.count(" ")} for t in some], "tags",
            method="houlsby:4",
        ),
        "fill": trained(base, [{"text": t} for t in some], "fill", kind="mlm", method="parallel_adapter:4"),
        "windows": trained(
            base, [{"text": t, "label": "ab"[i % 2]} for i, t in enumerate(some)], "windows", windows=True,
            max_length=10, method="pal:12",
        ),
        "tfidf": trained(
            base, [{"text": t, "label": "ab"[i % 2]} for i, t in enumerate(some)], "tfidf", method="tfidf"
        ),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    hooked = base.hooked
    for i, spelling in enumerate([*ALL, *TOP, *REPLACING[:2]]):
        method = parse(spelling)
        v = {
            name: t + 0.1 * torch.randn(t.shape, generator=generator)
            for name, t in method.init(hooked.sites, hooked.backbone, generator).items()
        }
        head = {
            name: torch.randn(t.shape, generator=generator)
            for name, t in found["words"].weights.items()
            if "head" in name
        }
        found[f"m{i}"] = Task(replace(found["words"].record, name=f"m{i}", method=str(method)), {**v, **head})
    for spelling in REPLACING[2:]:
        rows = [{"text": t, "label": "ab"[i % 2]} for i, t in enumerate(some)]
        found[spelling.partition(":")[0]] = trained(base, rows, spelling.partition(":")[0], method=spelling)
    return found


def methods_of(tasks: dict[str, Task], spellings: list[str]) -> list[str]:
    wanted = {str(parse(spelling)) for spelling in spellings}
    names = [name for name, task in tasks.items() if task.record.method in wanted and name.startswith("m")]
    return [name for name in names if name != "mean"]


@contextmanager
def counted(base: Base) -> Iterator[Counter[int]]:
    """How many rows go through each layer."""
    seen: Counter[int] = Counter()
    backbone, layers = base.hooked.backbone, base.hooked.sites.layers
    # By their tensors, which copies of the base share; a layer that computes nothing does not run its inner modules.
    number = {backbone.get_submodule(f"{path}.output.dense").weight.data_ptr(): i for i, path in enumerate(layers)}

    def count(module: Any, args: Any, output: Any) -> None:
        weight = getattr(module, "weight", None)
        if weight is not None and weight.data_ptr() in number:
            seen.update({number[weight.data_ptr()]: len(output)})

    handle = register_module_forward_hook(count)
    try:
        yield seen
    finally:
        handle.remove()


def assert_as_alone(base: Base, tasks: dict[str, Task], found: dict[str, Any], asked: dict[str, list[Any]]) -> None:
    for name, inputs in asked.items():
        bound = base.bind(name, tasks=tasks)
        out, alone = found[name][2], bound.run(bound.kind.inputs(inputs, bound.task.record))[1]
        assert len(out) == len(alone) > 0, name
        for one, other in zip(out, alone, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_every_method_gives_the_numbers_of_the_task_alone(base: Base, tasks: dict[str, Task]) -> None:
    names = [*methods_of(tasks, ALL + TOP), *methods_of(tasks, REPLACING[:2]), "lt_sft", "bitfit", "tfidf"]
    assert len(names) == len(ALL) + len(TOP) + 5
    bound = base.bind(f"parallel({', '.join(names)})", tasks=tasks)
    assert isinstance(bound, ParallelTasks)
    assert set(bound.apart) == {*methods_of(tasks, REPLACING[:2]), "lt_sft", "tfidf"}
    asked = dict.fromkeys(names, TEXTS)
    assert_as_alone(base, tasks, bound.outputs(asked), asked)
    assert_as_alone(base, tasks, bound.outputs(asked, batch_size=7), asked)


def test_layers_below_all_parts_run_once_for_all_of_them(base: Base, tasks: dict[str, Task]) -> None:
    names = [*methods_of(tasks, TOP), *methods_of(tasks, ["head"])]
    bound = base.bind(f"parallel({', '.join(names)})", tasks=tasks)
    assert bound.apart == {}
    asked = dict.fromkeys(names, TEXTS)
    with counted(base) as seen:
        found = bound.outputs(asked, batch_size=10_000)
    assert seen == {0: len(set(TEXTS)), 1: len(set(TEXTS)), 2: len(names) * len(TEXTS)}
    assert_as_alone(base, tasks, found, asked)


def test_parts_that_touch_no_layer_share_the_whole_pass(base: Base, tasks: dict[str, Task]) -> None:
    (head,) = methods_of(tasks, ["head"])
    other = Task(replace(tasks[head].record, name="other"), {k: t * 2 for k, t in tasks[head].weights.items()})
    bound = base.bind(f"parallel({head}, other)", tasks={**tasks, "other": other})
    with counted(base) as seen:
        found = bound.outputs({head: TEXTS, "other": TEXTS}, batch_size=10_000)
    assert seen == {0: len(set(TEXTS)), 1: len(set(TEXTS)), 2: len(set(TEXTS))}
    assert_as_alone(base, {**tasks, "other": other}, found, {head: TEXTS, "other": TEXTS})


def test_a_batch_of_one_row_is_spread_too(base: Base, tasks: dict[str, Task]) -> None:
    names = methods_of(tasks, TOP)
    bound = base.bind(f"parallel({', '.join(names)})", tasks=tasks)
    for text in TEXTS[:6]:
        asked = {name: [text] for name in names}
        assert_as_alone(base, tasks, bound.outputs(asked), asked)


KINDS = ["words", "short", "mean", "number", "tags", "fill", "windows", "tfidf"]


def test_parts_of_other_kinds_lengths_poolings_and_windows_give_their_own_bits(
    base: Base, tasks: dict[str, Task]
) -> None:
    long = [*TEXTS, *texts(6, seed=3, most=40)]
    bound = base.bind(f"parallel({', '.join(KINDS)})", tasks=tasks)
    asked: dict[str, list[Any]] = dict.fromkeys(KINDS, long)
    assert_as_alone(base, tasks, bound.outputs(asked), asked)
    found = bound.predict(long)
    for name in KINDS:
        assert [each[name] for each in found] == base.bind(tasks[name]).predict(long), name
    assert bound.parts["short"].truncated > 0


@pytest.mark.parametrize("batch_size", [3, 64])
def test_mixed_rows_are_answered_by_the_task_that_each_names(
    base: Base, tasks: dict[str, Task], batch_size: int
) -> None:
    bound = base.bind(f"rows({', '.join(KINDS)})", tasks=tasks)
    assert isinstance(bound, RowTasks)
    some = texts(50, seed=4, most=30)
    wanted = [KINDS[i] for i in np.random.default_rng(0).integers(0, len(KINDS), len(some))]
    found = bound.predict(some, tasks=wanted, batch_size=batch_size)
    alone = {name: dict(zip(some, base.bind(tasks[name]).predict(some), strict=True)) for name in KINDS}
    assert found == [alone[name][text] for name, text in zip(wanted, some, strict=True)]
    assert bound.predict("the lion", tasks="words") == base.bind(tasks["words"]).predict("the lion")


def test_one_batch_mixes_tasks(base: Base, tasks: dict[str, Task]) -> None:
    names = methods_of(tasks, ALL)
    bound = base.bind(f"rows({', '.join(names)})", tasks=tasks)
    passes: list[int] = []
    handle = base.hooked.backbone.register_forward_hook(lambda module, args, output: passes.append(1))
    try:
        bound.predict(["the old lion"] * len(names), tasks=names)
    finally:
        handle.remove()
    assert len(passes) == 1


def test_parts_may_be_compositions_and_are_called_by_their_text(base: Base, tasks: dict[str, Task]) -> None:
    a, b, c = "m1", "m2", "m3"
    parts = [
        f"stack({c}, {b})", f"average({a}, {a}, weights=[0.3, 0.7])", f"average_outputs({a}, {c})",
        f"drop({b}, layers='0-1')", b,
    ]  # fmt: skip
    bound = base.bind(f"parallel({', '.join(parts)})", tasks=tasks)
    assert list(bound.parts) == parts
    assert bound.apart == {}
    asked = dict.fromkeys(parts, TEXTS)
    assert_as_alone(base, tasks, bound.outputs(asked), asked)
    found = bound.predict(TEXTS[:1])[0]
    assert list(found) == parts
    assert set(found.columns()) == {f"{part}.{key}" for part in parts for key in ("prediction", "score")}
    assert found.to_dict()[b] == found[b].to_dict()


@pytest.mark.slow
def test_threads_with_other_compositions_over_one_base_do_not_meet(base: Base, tasks: dict[str, Task]) -> None:
    said = [
        f"parallel({', '.join(methods_of(tasks, TOP))})", f"parallel({', '.join(methods_of(tasks, ALL)[:7])})",
        f"rows({', '.join(methods_of(tasks, ALL)[5:])})",
    ]  # fmt: skip
    wrong: list[str] = []
    alone = {}
    for text in said:
        bound = base.bind(text, tasks=tasks)
        alone[text] = {name: found[2] for name, found in bound.outputs(dict.fromkeys(bound.parts, TEXTS)).items()}

    def run(text: str) -> None:
        bound = base.bind(text, tasks=tasks)
        for _ in range(2):
            found = bound.outputs(dict.fromkeys(bound.parts, TEXTS))
            wrong.extend(name for name, out in alone[text].items() if not torch.equal(found[name][2], out))

    threads = [threading.Thread(target=run, args=(text,)) for text in said for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_language_without_its_first_layer_couples_nothing_and_inverts_nothing(base: Base) -> None:
    language = trained(
        base, [{"text": t} for t in texts(24, seed=1)], "x", kind="mlm", method="pfeiffer(size=4, invertible=true)"
    )
    plain = {name: t for name, t in language.weights.items() if not name.startswith("invertible")}
    tasks = {"x": language, "y": Task(replace(language.record, name="y", method="pfeiffer(size=4)"), plain)}
    out = {
        text: base.bind(text, tasks=tasks).logits(TEXTS[:4]) for text in ("drop(x, layers='0')", "drop(y, layers='0')")
    }
    assert torch.equal(out["drop(x, layers='0')"], out["drop(y, layers='0')"])
    assert not torch.equal(base.bind("drop(x, layers='1')", tasks=tasks).logits(TEXTS[:4]), out["drop(y, layers='0')"])


def test_the_base_and_its_tasks_keep_their_bits(base: Base, tasks: dict[str, Task]) -> None:
    before = {name: p.clone() for name, p in base.hooked.frozen.items()}
    weights = {name: {key: t.clone() for key, t in task.weights.items()} for name, task in tasks.items()}
    features = base.features(TEXTS)
    base.bind(f"parallel({', '.join(KINDS)})", tasks=tasks).predict(TEXTS)
    assert all(torch.equal(p, before[name]) for name, p in base.hooked.frozen.items())
    assert all(torch.equal(t, weights[name][key]) for name, task in tasks.items() for key, t in task.weights.items())
    assert torch.equal(base.features(TEXTS), features)


def test_a_base_whose_rows_meet_runs_its_parts_one_after_the_other(
    base: Base, tasks: dict[str, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer: Any = base.hooked.backbone.get_submodule(base.hooked.sites.layers[-1])
    plain = layer.forward

    def mixing(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(hidden - hidden.mean(0, keepdim=True), *args, **kwargs)

    monkeypatch.setattr(layer, "forward", mixing)
    names = methods_of(tasks, ALL)[:3]
    bound = base.bind(f"parallel({', '.join(names)})", tasks=tasks)
    assert set(bound.apart) == set(names)
    assert "other numbers" in bound.apart[names[0]]
    asked = dict.fromkeys(names, TEXTS)
    assert_as_alone(base, tasks, bound.outputs(asked), asked)


def test_what_the_probe_did_not_meet_is_not_answered_wrongly(
    base: Base, tasks: dict[str, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = methods_of(tasks, TOP)[:3]
    bound = base.bind(f"parallel({', '.join(names)})", tasks=tasks)
    assert bound.apart == {}

    def refuse(*args: Any) -> Any:
        raise NotShareable("a module works on a tensor without a batch axis")

    monkeypatch.setattr(Passes, "states", refuse)
    asked = dict.fromkeys(names, TEXTS)
    assert_as_alone(base, tasks, bound.outputs(asked), asked)
    assert "without a batch axis" in bound.apart[names[0]]


def test_int8_parts_have_passes_of_their_own(base: Base, tasks: dict[str, Task]) -> None:
    names = ["words", "mean"]
    exact = base.bind(f"parallel({', '.join(names)})", tasks=tasks, int8=True)
    assert set(exact.apart) == set(names)
    found = exact.outputs(dict.fromkeys(names, TEXTS[:4]))
    for name in names:
        assert torch.equal(found[name][2], base.bind(tasks[name], int8=True).run(TEXTS[:4])[1])


def test_a_part_may_be_named_in_any_spelling(base: Base, tasks: dict[str, Task], tmp_path: Path) -> None:
    name = next(iter(tasks))
    bound = base.bind(f"rows(stack({name}), drop({name}, layers='0'))", tasks=tasks)
    spelled = [f" stack( {name} )", f'drop({name},layers="0")']
    exact = [f"stack({name})", f"drop({name}, layers='0')"]
    assert bound.predict(TEXTS[:2], tasks=spelled) == bound.predict(TEXTS[:2], tasks=exact)
    assert [bound.line(f"{each}\tapple")[0] for each in spelled] == exact
    read = bound.reader({"task": spelled[0], "text": "apple"}, {"text": None, "pair": None, "label": None})
    assert [read({"task": each, "text": "apple"}, 2, "f.csv")[0] for each in spelled] == exact


def test_nothing_asked_is_nothing_answered(base: Base, tasks: dict[str, Task]) -> None:
    assert base.bind("parallel(words, tags, tfidf)", tasks=tasks).predict([]) == []
    assert base.bind("rows(words, tags)", tasks=tasks).predict([], tasks=[]) == []


def test_bad_input_is_refused_with_the_reason(base: Base, tasks: dict[str, Task], tmp_path: Path) -> None:
    with pytest.raises(CompositionError, match="names a part twice"):
        base.bind("parallel(words, words)", tasks=tasks)
    rows = base.bind("rows(words, short)", tasks=tasks)
    with pytest.raises(UsageError, match=r"'wrds' is not a part of rows.*Did you mean 'words'"):
        rows.predict(["a"], tasks=["wrds"])
    with pytest.raises(UsageError, match="2 inputs and 1 tasks"):
        rows.predict(["a", "b"], tasks=["words"])
    with pytest.raises(UsageError, match="an input must be a text"):
        rows.predict([3], tasks=["words"])
    with pytest.raises(UsageError, match="its name, a tab"):
        rows.line("the lion")
    with pytest.raises(DataError, match=r"needs a column 'task'.*words, short"):
        rows.reader({"text": "a"}, {})
    with pytest.raises(DataError, match=r"row 3 of 'f' asks for 'shrt'.*Did you mean 'short'"):
        rows.reader({"text": "a", "task": "words"}, {})({"text": "a", "task": "shrt"}, 3, "f")
    with pytest.raises(UsageError, match=r"several answers.*adaptree evaluate \"words\" DATA"):
        api_evaluate(rows)
    stranger = load_base(tiny_base(tmp_path / "other", seed=5, layers=3, mask=True))
    with pytest.raises(WrongBase, match="trained on another base"):
        stranger.bind("parallel(words, short)", tasks=tasks)


def api_evaluate(bound: Any) -> None:
    at.evaluate(bound, [{"text": "a", "label": "a"}])


# A bank over every architecture of the table: together they are the same numbers as alone, or they are refused.

SEVERAL = [
    "houlsby(size=4, init_std=0.2)", "pfeiffer(size=4, init_std=0.2)", "lora:2", "ia3", "pal(size=12, init_std=0.3)",
    "bapna(size=4, init_std=0.3)", "parallel_adapter(size=4, init_std=0.3)", "bitfit",
]  # fmt: skip
APART = {("deberta-v2", None), ("deberta-v2", "top:1")}
"""Where a module maps one table of positions for all rows."""


def ground(model: Any) -> Any:
    hooked = HookedModel(model)
    encoder = types.SimpleNamespace(pad_id=tiny.PAD, types=False, writer=None)
    words = hooked.backbone.get_input_embeddings().weight  # type: ignore[operator]
    base = types.SimpleNamespace(hooked=hooked, encoder=encoder, device="cpu", embeddings=words)
    base.hidden = functools.partial(Base.hidden, base)  # type: ignore[arg-type]
    return base


CASES = [
    (name, layers)
    for name, case in tiny.CASES.items()
    for layers in (None, "top:1")
    if case.row is None and name not in ("t5", "t5-generator")  # a base has T5's encoder alone
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers"), [*CASES, ("bart", "top:2")])
def test_on_every_architecture_together_is_as_alone_or_refused(name: str, layers: str | None) -> None:
    where = ground(tiny.model(name))
    sites, backbone = where.hooked.sites, where.hooked.backbone
    generator = torch.Generator().manual_seed(0)
    tasks = {}
    for spelling in SEVERAL:
        for number in range(2):
            try:
                method = parse(spelling, layers=layers)
                v = method.init(sites, backbone, generator)
            except at.AdaptreeError:
                continue  # not for this architecture
            own = {key: t + 0.1 * torch.randn(t.shape, generator=generator) for key, t in v.items()}
            tasks[f"{spelling} {number}"] = types.SimpleNamespace(parts=[(method, own)], expression=spelling)
    bank = Bank(where)
    places = {name: bank.add(task) for name, task in tasks.items()}  # type: ignore[arg-type]
    if (name, layers) in APART:
        assert any(isinstance(place, str) for place in places.values())
        return
    if name == "deberta":  # it has biases outside of its maps
        places = {each: place for each, place in places.items() if not each.startswith("bitfit")}
    assert all(isinstance(place, Place) for place in places.values()), places
    rng = np.random.default_rng(0)
    for n, length in ((8, 8), (5, 24), (1, 16)):
        rows = [
            Encoding(rng.integers(3, 60, rng.integers(length - 7, length + 1)).astype(np.int32), None, False)
            for _ in range(n)
        ]
        together = bank.states([(place, rows) for place in places.values()])  # type: ignore[misc]
        for each, (hidden, mask) in zip(places, together, strict=True):
            plan, replaced = merge(sites, where.hooked.frozen, tasks[each].parts)
            apart = where.hooked.copy(replaced)
            with torch.inference_mode(), apart.running(plan):
                inputs = collate(rows, tiny.PAD)
                alone = apart.backbone(**inputs).last_hidden_state
            torch.testing.assert_close(hidden, alone, rtol=1e-5, atol=1e-5)
            assert torch.equal(inputs["attention_mask"], mask)

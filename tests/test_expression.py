"""The algebra as a value: text, Python and JSON are one thing, and what has no meaning is refused with the reason."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptree.compose import (
    Expression,
    Name,
    average,
    average_outputs,
    drop,
    from_json,
    fuse,
    parallel,
    parse,
    rows,
    stack,
)
from adaptree.errors import AdaptreeError, BadName, CompositionError

names = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,8}(/[a-z0-9][a-z0-9_-]{0,8})?(@[1-9][0-9]{0,3})?", fullmatch=True).map(
    Name
)


def shares(count: int) -> st.SearchStrategy[list[float] | None]:
    several = st.lists(st.floats(0.01, 1), min_size=count, max_size=count)
    return st.none() | several.map(lambda ws: [w / sum(ws) for w in ws])


def weighted(block: Any, parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Expression]:
    made = st.lists(parts, min_size=1, max_size=3)
    return made.flatmap(lambda inside: shares(len(inside)).map(lambda ws: block(*inside, weights=ws)))


averages = st.recursive(weighted(average, names), lambda inner: weighted(average, inner | names), max_leaves=4)
layers = st.sampled_from(["0", "0-4", "top:2", "0,2,4"])
dropped = st.builds(
    lambda part, spec, norms: drop(part, layers=spec, keep_norms=norms), names | averages, layers, st.booleans()
)
blended = weighted(average_outputs, names | averages | dropped)
single = names | averages | dropped | blended
stacks = st.recursive(
    st.lists(single, max_size=3).map(lambda parts: stack(*parts)),
    lambda inner: st.lists(single | inner, max_size=3).map(lambda parts: stack(*parts)),
    max_leaves=4,
)
several = st.lists(single | stacks, min_size=1, max_size=3)
expressions = (
    single
    | stacks
    | several.map(lambda parts: parallel(*parts))
    | several.map(lambda parts: rows(*parts))
    | st.builds(
        lambda parts, amount: fuse(*parts, regularisation=amount),
        st.lists(names, min_size=2, max_size=4, unique=True),
        st.none() | st.floats(0, 10),
    )
)


@given(expressions)
def test_text_python_and_json_are_one_thing(x: Expression) -> None:
    assert parse(repr(x)) == x
    assert from_json(json.loads(json.dumps(x.to_json()))) == x
    if isinstance(x.to_json(), dict):
        assert parse(json.dumps(x.to_json())) == x, "where a text is typed, JSON may be"
    assert hash(parse(repr(x))) == hash(x)
    assert x.renamed({}) == x


@given(expressions)
def test_white_space_and_double_quotes_mean_nothing(x: Expression) -> None:
    spaced = repr(x).replace(",", " , ").replace("(", "( ").replace(")", " )").replace("'0 , 2 , 4'", "'0,2,4'")
    assert parse(spaced.replace("'", '"')) == x


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        found = parse(text)
    except AdaptreeError:  # and nothing else
        return
    assert parse(repr(found)) == found


def test_json_that_breaks_off_is_refused_in_one_line() -> None:
    with pytest.raises(CompositionError, match="is no JSON"):
        parse('{"stack": ["a", ')


def test_names_are_found_in_their_order_and_once() -> None:
    assert parse("stack(lang/qu, average(ner, pos, ner@2))").names == ("lang/qu", "ner", "pos", "ner@2")
    assert parse("average(a, a)").names == ("a",)


def test_a_task_may_be_called_like_a_block() -> None:
    assert parse("stack(stack, drop)") == stack(Name("stack"), Name("drop"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "ends too early"),
        ("stack(a", "ends too early"),
        ("stack(a))", "cannot be read at '[)]'"),
        ("stack(a b)", "cannot be read at 'b'"),
        ("stak(a, b)", "stack"),
        ("fuse(a)", "at least 2 parts"),
        ("fuse(a, a)", "names a task twice"),
        ("fuse(a, stack(b))", "stack cannot stand inside fuse.*fuse takes names"),
        ("stack(fuse(a, b), c)", "Train it first: adaptree compose"),
        ("stack(lang/qu, parallel(a, b))", r"Write parallel\(stack\(lang/qu, a\), stack\(lang/qu, b\)\)"),
        ("stack(parallel(a, b), c)", r"Write parallel\(stack\(a, c\), stack\(b, c\)\)"),
        ("stack(x, rows(a, b), y)", r"Write rows\(stack\(x, a, y\), stack\(x, b, y\)\)"),
        ("average(drop(a, layers='0'), b)", "Write drop"),
        ("average(a, b, weights=[1, 2])", r"sum up to 3, not to 1.*weights=\[0.3333, 0.6667\]"),
        ("average(a, b, weights=[1])", "2 parts and 1 weights"),
        ("average(a, b, weights=[x, 1])", "cannot be read at 'x'"),
        ("average(a, b, weights=nan)", "cannot be read"),
        ("average(a, b, weighs=[0.5, 0.5])", "weights"),
        ("stack(a, layers='0')", "stack has no 'layers'"),
        ("drop(a)", "drop takes one part and its layers"),
        ("drop(a, b, layers='0')", "drop takes one part"),
        ("drop(a, layers='x')", "cannot be read"),
        ("drop(a, layers='0', layers='1')", "says layers twice"),
        ("drop(a, layers='0', keep_norms=maybe)", "Write keep_norms=true"),
        ("drop(a, layers='0', keep_norm=true)", "Did you mean 'keep_norms'"),
        ("rows()", r"at least 1 part,.*rows\(a\)"),
        ("average(a, b, weights=[inf, -inf])", "sum up to nan, not to 1"),
        ("average(a, b, weights=[1e308, 1e308])", "sum up to inf, not to 1"),
        ("average(a, b, weights=[nan, 1])", "sum up to nan, not to 1"),
        ("fuse(a, fuse(b, c))", "name all of the tasks in one fuse"),
        ("fuse(a, b, regularisation=-1)", "regularisation must be a number of at least 0, not -1.0"),
        ("fuse(a, b, regularisation=inf)", "at least 0, not inf"),
        ("fuse(a, b, regularisation=much)", "at least 0, not 'much'"),
        ("stack(a, fuse=3)", "cannot be read at 'fuse'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(CompositionError, match=said):
        parse(text)


def test_a_name_obeys_the_rule_of_names() -> None:
    with pytest.raises(BadName, match="lang/qu"):
        parse("stack(Lang/QU, ner)")


@pytest.mark.parametrize("value", [3, None, [], {}, {"stack": ["a"], "fuse": ["a"]}, {"stick": ["a"]}, {"stack": [3]}])
def test_json_that_is_no_composition_is_refused(value: Any) -> None:
    with pytest.raises(CompositionError):
        from_json(value)


@pytest.mark.parametrize("weights", [[1, 1, 1], [2, 5, 6], [3, -1, 5]])
def test_the_weights_that_an_error_offers_are_taken(weights: list[float]) -> None:
    with pytest.raises(CompositionError) as caught:
        average("a", "b", "c", weights=weights)
    assert parse(f"average(a, b, c, {caught.value.hint})").names == ("a", "b", "c")


@pytest.mark.parametrize("weights", [0.5, "ab", ["x", 1], [True, False], [None, 1], {"a": 1, "b": 0}])
def test_weights_that_are_no_numbers_are_refused_in_python_and_json_too(weights: Any) -> None:
    with pytest.raises(CompositionError, match="cannot be read"):
        average("a", "b", weights=weights)
    with pytest.raises(CompositionError, match="cannot be read"):
        from_json({"average": ["a", "b"], "weights": weights})


def test_weights_may_come_from_an_array() -> None:
    assert average("a", "b", weights=np.asarray([0.25, 0.75], dtype=np.float32)) == average(
        "a", "b", weights=[0.25, 0.75]
    )


@pytest.mark.parametrize("depth", [51, 400, 5000])
def test_what_is_nested_too_deeply_is_refused_in_one_line(depth: int) -> None:
    with pytest.raises(CompositionError, match="50 blocks"):
        parse("stack(" * depth + "a" + ")" * depth)
    value: Any = "a"
    for _ in range(depth):
        value = {"stack": [value]}
    with pytest.raises(CompositionError, match="50 blocks"):
        from_json(value)


def test_what_is_fused_may_say_its_regularisation() -> None:
    said = parse("fuse(a, b, regularisation=0.5)")
    assert said == fuse("a", "b", regularisation=0.5)
    assert said.to_json() == {"fuse": ["a", "b"], "regularisation": 0.5}
    assert said != fuse("a", "b")
    assert parse(repr(fuse("a", "b", regularisation=np.float64(0.1)))) == fuse("a", "b", regularisation=0.1)


@pytest.mark.parametrize("option", ["weights", "regularisation"])
def test_whole_numbers_of_hundreds_of_digits_are_refused_in_one_line(option: str) -> None:
    huge = 10**400
    value = {"average": ["a", "b"], "weights": [huge, 1]} if option == "weights" else {"fuse": ["a", "b"], option: huge}
    with pytest.raises(CompositionError, match=option) as error:
        from_json(value)
    assert len(str(error.value)) < 200

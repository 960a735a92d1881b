"""`predict -` answers each line as it comes, and many lines together where many are waiting."""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.bases import tiny_base, words_csv

from adaptree.cli import main
from adaptree.cli.app import predict as command
from adaptree.errors import DataError
from adaptree.models.bound import Bound

PATIENCE = 60
LINES = ["lion bear wolf", "pear plum apple", "drill saw hammer"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a trained task 'words'."""
    root = tmp_path_factory.mktemp("world")
    args = ["train", words_csv(root / "words.csv", 150), "--name", "words", "--epochs", "12", "--lr", "0.01"]
    assert main([*map(str, args), "--base", str(tiny_base(root / "base")), "--store", str(root / "store"), "-q"]) == 0
    return root / "store"


class Talk:
    """Both ends of a pair of pipes: what is said to the command, and what it answers."""

    def __init__(self, said: int, heard: int) -> None:
        self.said, self.heard = said, heard
        self._rest = b""

    def say(self, text: str) -> None:
        os.write(self.said, text.encode())

    def hear(self) -> str:
        """One line of the answer, which must come while the pipe stays open."""
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.heard], [], [], PATIENCE)
            assert ready, "no answer"
            more = os.read(self.heard, 1 << 16)
            assert more, "the command has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def is_silent(self) -> bool:
        return not self._rest and not select.select([self.heard], [], [], 0.3)[0]


@contextmanager
def talking(store: Path, form: str) -> Iterator[Talk]:
    """A conversation with `predict words -`, run in this process."""
    (asked, said), (heard, told) = os.pipe(), os.pipe()
    codes: list[int] = []
    words = ["predict", "words", "-", "--store", str(store), "--format", form, "--quiet"]
    with open(asked) as stdin, open(told, "w") as stdout, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", stdin)
        patch.setattr(sys, "stdout", stdout)
        thread = threading.Thread(target=lambda: codes.append(main(words)))
        thread.start()
        try:
            yield Talk(said, heard)
        finally:
            os.close(said)
            thread.join(PATIENCE)
            os.close(heard)
    assert codes == [0]


def test_each_line_is_answered_before_the_next_is_written_as_json(store: Path) -> None:
    with talking(store, "jsonl") as talk:
        for line, label in zip(LINES, ["beast", "fruit", "tool"], strict=True):
            talk.say(f"{line}\n")
            assert json.loads(talk.hear())["label"] == label
            assert talk.is_silent()


def test_each_line_is_answered_before_the_next_is_written_as_csv(store: Path) -> None:
    with talking(store, "csv") as talk:
        talk.say(f"{LINES[0]}\n")
        assert talk.hear() == "prediction,score,text"
        assert talk.hear().startswith("beast,0.")
        talk.say("pear plum")  # a line that has not ended is not answered
        assert talk.is_silent()
        talk.say(" apple\n")
        assert talk.hear().startswith("fruit,0.")


def test_each_line_is_answered_before_the_next_is_written_as_a_table(store: Path) -> None:
    with talking(store, "table") as talk:
        talk.say(f"{LINES[2]}\n")
        assert talk.hear().split() == ["prediction", "score", "text"]
        first = talk.hear()
        assert first.split()[0] == "tool"
        talk.say(f"{LINES[0]}\n")
        second = talk.hear()
        assert second.split()[0] == "beast"
        assert first.index(LINES[2]) == second.index(LINES[0])  # one column below the other


@pytest.mark.slow
def test_a_process_in_a_pipe_that_stays_open_answers_at_once(store: Path) -> None:
    args = [sys.executable, "-m", "adaptree", "predict", "words", "-", "--store", str(store), "--format", "jsonl"]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        talk = Talk(process.stdin.fileno(), process.stdout.fileno())
        for line, label in zip(LINES, ["beast", "fruit", "tool"], strict=True):
            talk.say(f"{line}\n")
            assert json.loads(talk.hear())["label"] == label
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_what_is_waiting_is_answered_together(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = Bound.answer

    def answer(self: Bound, inputs: Any, min_score: float | None = None) -> list[Any]:
        sizes.append(len(inputs))
        return real(self, inputs, min_score)

    monkeypatch.setattr(Bound, "answer", answer)
    lines = [LINES[i % 3] for i in range(900)]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    assert main(["predict", "words", "-", "--store", str(store), "--format", "jsonl"]) == 0
    found = [json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()]
    assert found == ["beast", "fruit", "tool"] * 300
    assert sizes in ([899, 1], [900])


class Pieces:
    """A stdin that gives its bytes in pieces, as a pipe does."""

    def __init__(self, *pieces: bytes) -> None:
        self.buffer = self
        self.pieces = list(pieces)

    def read1(self, most: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


@pytest.mark.parametrize(
    ("pieces", "encoding", "lines"),
    [
        ([b"a\nb\n", b"c\n"], "utf-8", [["a", "b"], ["c"]]),
        ([b"a", b"b", b"\n", b"c"], "utf-8", [["ab"], ["c"]]),
        ([b"a\r", b"\nb\r\n"], "utf-8", [["a", "b"]]),
        ([b"caf\xc3", b"\xa9\n"], "utf-8", [["café"]]),
        ([b"\xef\xbb\xbfa\n"], "utf-8", [["a"]]),
        ([b"\n\n"], "utf-8", [["", ""]]),
        (["a\u2028b\x85c\n".encode()], "utf-8", [["a\u2028b\x85c"]]),
        (["né\nb".encode("utf-16")], "utf-16", [["né"], ["b"]]),
        ([b"caf\xe9\n"], "latin-1", [["café"]]),
        ([], "utf-8", []),
    ],
)
def test_lines_are_whole_however_their_bytes_come(
    pieces: list[bytes], encoding: str, lines: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Pieces(*pieces))
    assert list(command._stdin(encoding)) == lines


@pytest.mark.parametrize(("pieces", "encoding"), [([b"caf\xe9 x\n"], "utf-8"), ([b"caf\xc3"], "utf-8"), ([], "utf-9")])
def test_bytes_in_another_encoding_are_an_error(
    pieces: list[bytes], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Pieces(*pieces))
    with pytest.raises(DataError, match="--encoding latin-1"):
        list(command._stdin(encoding))


def rows_of(out: str, form: str) -> list[dict[str, Any]]:
    return json.loads(out) if form == "json" else [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_a_file_s_columns_are_kept_beside_the_prediction(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    (tmp_path / "in.csv").write_text("id,text\n7,lion bear wolf\n3,pear plum apple\n")
    assert main(["predict", "words", "--file", str(tmp_path / "in.csv"), "--store", str(store), "--format", form]) == 0
    out, err = capsys.readouterr()
    found = rows_of(out, form)
    assert [(row["id"], row["text"], row["label"]) for row in found] == [
        ("7", "lion bear wolf", "beast"),
        ("3", "pear plum apple", "fruit"),
    ]
    assert all(set(row["scores"]) == {"fruit", "tool", "beast"} for row in found)
    assert list(found[0]) == ["id", "text", "label", "score", "scores"]
    assert err == ""


def test_a_column_that_is_called_like_the_prediction_s_is_kept_and_said(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "lion bear wolf", "more": {"x": [1, None]}},
        {"text": "pear plum apple", "label": "mine", "weight": float("nan")},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ["predict", "words", "--file", str(tmp_path / "in.jsonl"), "--store", str(store), "--format", "jsonl"]
    assert main(args) == 0
    out, err = capsys.readouterr()
    first, second = rows_of(out, "jsonl")
    assert first["more"] == {"x": [1, None]}
    assert "label" not in first
    assert (second["label"], second["weight"]) == ("mine", None)
    assert [first["predicted_label"], second["predicted_label"]] == ["beast", "fruit"]
    assert err.count("the file has its own 'label': those of the prediction are 'predicted_label'") == 1

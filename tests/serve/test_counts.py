"""What the processes of a server count together."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from adaptree.errors import StoreError
from adaptree.serve import counts as counting
from adaptree.serve.counts import Counts, Used, added
from adaptree.tasks.store import Store

TAKE = """
import sys
from pathlib import Path
from adaptree.serve.counts import Counts
counts = Counts(Path(sys.argv[1]))
took = sum(counts.take_texts("few", 100, 1) is None for _ in range(60))
once = sum(counts.take_request("slow", 0.001) == 0 for _ in range(20))
for _ in range(25):
    counts.use({"words@2": 2, "stack(a, b)": 1})
counts.publish({"total": {"texts": took}, "now": {"waiting": 1}})
print(took, once)
"""


def run(file: Path, count: int) -> list[list[int]]:
    """Count in some processes at once; return what each took."""
    command = [sys.executable, "-c", TAKE, str(file)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return [[int(word) for word in process.communicate(timeout=60)[0].split()] for process in running]


def test_processes_count_together_and_what_those_that_have_ended_counted_stays(tmp_path: Path) -> None:
    counts = Counts(tmp_path / "counts.sqlite")
    took = run(tmp_path / "counts.sqlite", 3)
    assert sum(texts for texts, _ in took) == 100
    assert sum(requests for _, requests in took) == 1
    assert counts.take_texts("few", 100, 1) == 0
    assert counts.take_texts("few", 103, 3) is None
    used = counts.used("words")
    assert (used.requests, used.texts) == (75, 150)
    assert counts.most_used() == {"words": 75, "stack(a, b)": 75}
    for _ in range(2):  # the second time, from the sums
        assert counts.of_others() == {"total": {"texts": 100}}
    counts.publish({"total": {"texts": 5}, "now": {"waiting": 2}})
    assert counts.of_others() == {"total": {"texts": 100}}, "one's own are not others'"
    assert Counts(tmp_path / "counts.sqlite").since == counts.since


def test_a_key_has_its_rate_and_a_burst_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    counts = Counts()
    waits = [counts.take_request("a", 4.0) for _ in range(6)]
    assert waits == [0, 0, 0, 0, 0.25, 0.25]
    clock[0] += 0.5
    assert [counts.take_request("a", 4.0) for _ in range(3)] == [0, 0, 0.25]
    clock[0] += 100
    assert [counts.take_request("a", 4.0) for _ in range(5)] == [0, 0, 0, 0, 0.25]
    assert counts.take_request("b", 0.5) == 0
    assert counts.take_request("b", 0.5) == 2


def test_a_days_texts_come_back_at_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [86_400.0 * 3 - 1]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    counts = Counts()
    assert counts.take_texts("a", 5, 4) is None
    assert counts.take_texts("a", 5, 2) == 1
    clock[0] += 2
    assert counts.take_texts("a", 5, 5) is None


def test_a_quota_outlives_the_server_and_holds_for_all_servers_over_a_store(tmp_path: Path) -> None:
    first = Counts(quotas=tmp_path / "quotas.sqlite")
    assert first.take_texts("a", 5, 3) is None
    second = Counts(quotas=tmp_path / "quotas.sqlite")
    assert second.take_texts("a", 5, 3) == 2
    assert second.take_texts("a", 5, 1) is None
    assert first.take_texts("a", 5, 2) == 1
    assert (tmp_path / "quotas.sqlite-wal").exists()
    assert Store(tmp_path).files() == [], "quotas are none of the files that `verify` wonders about"
    first.close()
    second.close()
    again = Counts(quotas=tmp_path / "quotas.sqlite")
    assert again.take_texts("a", 5, 2) == 1
    assert again.take_texts("a", 3, 1) == 0, "a quota that was made smaller"
    assert Counts().take_texts("a", 5, 5) is None


def test_only_todays_quotas_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = [86_400.0 * 3]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    counts = Counts(quotas=tmp_path / "quotas.sqlite")
    for key in "abc":
        counts.take_texts(key, 5, 1)
    clock[0] += 86_400
    counts.take_texts("a", 5, 1)
    assert counts._quotas.execute("SELECT key, texts FROM texts").fetchall() == [("a", 1)]


def test_a_damaged_file_of_quotas_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "quotas.sqlite").write_text("no database, but a text that is long enough to be taken for one" * 20)
    with pytest.raises(StoreError, match=r"quotas.sqlite.*not a database"):
        Counts(quotas=tmp_path / "quotas.sqlite")


def test_only_so_many_tasks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST", 100)
    counts = Counts()
    for i in range(300):
        monkeypatch.setattr(time, "time", lambda i=i: float(i))
        counts.use({f"t{i}": 1})
    assert set(counts.most_used()) == {f"t{i}" for i in range(200, 300)}
    assert counts.used("t0") == Used()


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([1, 2], 3),
        ([[1, 2.5], [3, 4.5]], [4, 7.0]),
        ([{"a": 1, "b": {"c": 1}}, {"b": {"c": 2, "d": 3}}], {"a": 1, "b": {"c": 3, "d": 3}}),
    ],
)
def test_figures_are_added_by_their_places(values: list[Any], total: Any) -> None:
    assert added(*values) == total
    assert json.loads(json.dumps(added(*values))) == total

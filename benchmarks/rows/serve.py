"""A batch of 32 rows that are each of another task, with up to 2,000 tasks in memory; and loading one of them."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.rows.tasks import reader
from benchmarks.runs import OURS, Setup, stored
from benchmarks.table import Amount, Growth, Measurement, Run, Table, constant

QUICK = False
COUNTS = (64, 512, 2000)
ALONE = "adaptree, one task for all rows"


def before(setup: Setup) -> list[Run]:
    return [stored(setup)]


def tables(setup: Setup) -> list[Table | Growth]:
    common = ("--base", "{base}", "--out", "{out}", "--counts")
    ours = Run(("{python}", "{subjects}/serve_ours.py", *common, _joined(COUNTS), "--task", "{scratch}/store"))
    adapters = Run(
        ("{python}", "{subjects}/serve_peers.py", *common, _joined(COUNTS[:2]), "--method", "adapters"), "peers"
    )
    peft = Run(("{python}", "{subjects}/serve_peers.py", *common, "64", "--method", "peft"), "peers")
    found: list[Table | Growth] = []
    for method in ("houlsby:48", "pfeiffer:48"):
        for n in COUNTS:
            amounts = {
                ALONE: Amount((ours,), _read("plain", f"{method} {n}")),
                OURS: Amount((ours,), _read("mixed", f"{method} {n}")),
            }
            found.append(
                Table(
                    f"32 rows of 32 tasks, {n:,} in memory ({method})", "ms", amounts, reference=ALONE,
                    aims={OURS: "<= 1.15"}, scale=1e3,
                )
            )  # fmt: skip
    many = {OURS: Amount((ours,), _read("mixed", "houlsby:48 512"))}
    found.append(
        Table(
            "32 rows of 32 tasks, 512 in memory, beside adapters (Houlsby's bottleneck, size 48)", "ms",
            {
                **many,
                "adapters, BatchSplit": Amount((adapters,), _read("split", "512")),
                "adapters, one by one": Amount((adapters,), _read("one", "512")),
                "adapters, one task for all rows": Amount((adapters,), _read("plain", "512")),
            },
            aims={"adapters, BatchSplit": ">= 1.4", "adapters, one by one": ">= 10"}, scale=1e3,
            note="22 to 24 tokens a row, hidden states alone. adapters' bottlenecks train no norms; ours have norms by "
            "row, too.",
        )
    )  # fmt: skip
    for where, method, key in (
        ("query and value", "lora:8", "64"), ("all linear maps", "lora(rank=8, targets=all)", "64 all"),
    ):  # fmt: skip
        found.append(
            Table(
                f"32 rows of 32 tasks, 64 in memory, beside peft (LoRA, rank 8, {where})", "ms",
                {
                    OURS: Amount((ours,), _read("mixed", f"{method} 64")),
                    "peft, adapter_names": Amount((peft,), _read("split", key)),
                    "peft, one task for all rows": Amount((peft,), _read("plain", key)),
                    "transformers, the base alone": Amount((peft,), _read("bare", "")),
                },
                aims={"peft, adapter_names": ">= 2.5"}, scale=1e3,
                note="The base alone is the floor of both: what is above it is the price of the tasks.",
            )
        )  # fmt: skip
    http = Run(
        ("{python}", "{subjects}/serve_http.py", "--base", "{base}", "--out", "{out}", "--task", "{scratch}/store")
    )
    engine = "adaptree, the engine alone"
    found += [
        Table(
            "Answers a second, 64 clients that each wait for theirs (64 tasks, houlsby:48)", "a second",
            {
                engine: Amount((http,), _found("engine")),
                "adaptree serve": Amount((http,), _found("http")),
                "pipeline behind FastAPI, one task": Amount((http,), _found("pipeline_1")),
                "pipeline behind FastAPI, 16 models for 16 tasks": Amount((http,), _found("pipeline_16")),
            },
            reference=engine, aims={"adaptree serve": ">= 0.75"},
            note="One short text a request, over HTTP on loopback; clients and server share the cores.",
        ),
        Table(
            "One client that waits for each answer, over HTTP", "ms",
            {
                "one prediction in the process": Amount((http,), _found("forward")),
                "adaptree serve, median": Amount((http,), _found("light_p50")),
                "adaptree serve, 99th percentile": Amount((http,), _found("light_p99")),
            },
            reference="one prediction in the process", aims={"adaptree serve, 99th percentile": "<= 5"}, scale=1e3,
        ),
    ]  # fmt: skip
    limit, weights = "the aim, 10 ms", "a task's weights"
    found += [
        Growth(
            "Loading a task that is asked for", "ms", "tasks in memory",
            {OURS: {n: Amount((ours,), reader("load", n)) for n in COUNTS}}, aims={OURS: "<= 0.1"}, scale=1e3,
            note="Read from the store, checked, compared with the base, and copied into its slot.",
        ),
        Table(
            "Loading a task that is asked for, beside 2,000", "ms",
            {limit: constant(0.01), OURS: Amount((ours,), reader("load", COUNTS[-1]))}, reference=limit,
            aims={OURS: "<= 1"}, scale=1e3,
        ),
        Table(
            "Memory of a task (houlsby:48)", "×",
            {weights: constant(1.0), OURS: Amount((ours,), _read("memory", "houlsby:48"))}, reference=weights,
            aims={OURS: "<= 1.1"},
        ),
    ]  # fmt: skip
    return found


def _joined(counts: tuple[int, ...]) -> str:
    return ",".join(map(str, counts))


def _read(what: str, key: str) -> Callable[[Measurement], float | None]:
    def read(m: Measurement) -> float | None:
        return float(value) if (value := m["found"].get(what, {}).get(key)) is not None else None

    return read


def _found(name: str) -> Callable[[Measurement], float | None]:
    def read(m: Measurement) -> float | None:
        return float(value) if (value := m["found"].get(name)) is not None else None

    return read

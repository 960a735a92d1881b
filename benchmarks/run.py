"""Measure every row in interleaved rounds, and write results.json, the tables of docs/performance.md and its figure.

    python -m benchmarks.run --data DIR [--quick] [--rows epoch,fast] [--rounds N] [--again]

Each measurement is a process of its own and is saved as soon as it is done: a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import pkgutil
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptree.models.cache_files import FOLDER
from benchmarks import data, report, rows, runs
from benchmarks.table import Growth, Run, Table

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = {True: 2, False: 3}
WARM = (
    Run(("{python}", "-c", "import adapters, peft"), "peers"),
    Run(("{python}", "-c", "import adaptree.api, torch, transformers")),
)
"""Run once before the rounds, so that no measurement is the first to read or compile a package."""


class Refused(Exception):
    """Nothing can be measured; the message says why in one line."""


def names() -> list[str]:
    """Return the names of all rows."""
    return sorted(module.name for module in pkgutil.iter_modules(rows.__path__))


def row(name: str) -> Any:
    """Return the module of a row."""
    return importlib.import_module(f"{rows.__name__}.{name}")


class Results:
    """results.json: how it was measured, and every measurement by run and round."""

    def __init__(self, path: Path, how: Mapping[str, Any]) -> None:
        self.path, self.how = path, dict(how)
        self.measurements: list[dict[str, Any]] = []
        if path.is_file():
            kept = json.loads(path.read_text())
            if kept["how"] != self.how:
                changed = sorted(key for key in self.how if kept["how"].get(key) != self.how[key])
                raise Refused(f"{path.name} has another {', '.join(changed)}: remove it, or give --results FILE.")
            self.measurements = kept["measurements"]

    def has(self, run: Run, number: int) -> bool:
        """Return whether a run was measured in a round, and did not fail."""
        return any(m["run"] == run.key and m["round"] == number and "failed" not in m for m in self.measurements)

    def forget(self, keys: Iterable[str]) -> None:
        """Remove the measurements of these runs."""
        gone = set(keys)
        self.measurements = [m for m in self.measurements if m["run"] not in gone]

    def keep(self, measurement: dict[str, Any]) -> None:
        """Add a measurement, in place of an older one of its run and round, and write the file."""
        same = (measurement["run"], measurement["round"])
        self.measurements = [m for m in self.measurements if (m["run"], m["round"]) != same] + [measurement]
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"how": self.how, "measurements": self.measurements}, indent=1) + "\n")
        partial.replace(self.path)

    def rounds(self) -> dict[int, dict[str, dict[str, Any]]]:
        """Return the measurements that did not fail, by round and run."""
        found: dict[int, dict[str, dict[str, Any]]] = {}
        for m in sorted(self.measurements, key=lambda m: int(m["round"])):
            if "failed" not in m:
                found.setdefault(m["round"], {})[m["run"]] = m
        return found


class Machine:
    """The paths and interpreters of this machine; measures runs on it."""

    def __init__(self, places: Mapping[str, str], pythons: Mapping[str, str], scratch: Path, threads: int) -> None:
        self.places, self.pythons, self.scratch, self.threads = dict(places), dict(pythons), scratch, threads

    def words(self, run: Run, out: Path) -> list[str]:
        """Return a run's command with the paths of this machine in it."""
        python = self.pythons[run.place]
        adaptree = str(Path(python).with_name("adaptree"))
        there = {**self.places, "python": python, "adaptree": adaptree, "scratch": str(self.scratch), "out": str(out)}
        words = list(run.words)
        for name, place in there.items():
            words = [word.replace(f"{{{name}}}", place) for word in words]
        return words

    def measure(self, run: Run) -> dict[str, Any]:
        """Run a command in a process; return its times, and as `found` the JSON object that it prints last."""
        cache = self.scratch / "cache"
        shutil.rmtree(cache / FOLDER, ignore_errors=True)  # no run profits from the one before
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            out = Path(folder) / "out"
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": str(self.threads),
                "RAYON_NUM_THREADS": str(self.threads),
                "ADAPTREE_CACHE": str(cache),
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "true",
                "PYTHONPATH": "",
            }
            environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's second start compiles nothing
            with (Path(folder) / "output").open("w+") as output, (Path(folder) / "errors").open("w+") as errors:
                began = time.monotonic()
                environment["BENCH_STARTED"] = repr(began)
                child = subprocess.Popen(
                    self.words(run, out), stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment
                )
                try:
                    _, status, usage = os.wait4(child.pid, 0)
                except BaseException:
                    child.kill()
                    child.wait()
                    raise
                seconds = time.monotonic() - began
                child.returncode = os.waitstatus_to_exitcode(status)
                output.seek(0)
                errors.seek(0)
                lines, complaint = output.read().splitlines(), errors.read().strip().splitlines()
        measured = {"load": round(load, 2), "seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime}
        if child.returncode:
            return measured | {"failed": self._bare((complaint or lines or ["no output"])[-1])}
        return measured | {"found": last_object(lines)}

    def _bare(self, text: str) -> str:
        """Return a text without the paths of this machine."""
        for place in sorted([*self.places.values(), str(self.scratch), *self.pythons.values()], key=len, reverse=True):
            text = text.replace(place, "…")
        return text[:300]


def last_object(lines: Sequence[str]) -> dict[str, Any]:
    """Return the JSON object on the last line; an empty one if there is none."""
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def measure(
    tables: Sequence[Table | Growth], befores: Sequence[Run], machine: Machine, results: Results, rounds: int
) -> None:
    """Measure each run of these tables once in every round; those that are measured already are left out."""
    distinct = list({run.key: run for table in tables for run in table.runs}.values())
    todo = [(number, run) for number in range(1, rounds + 1) for run in distinct if not results.has(run, number)]
    if todo:
        for run in {run.key: run for run in befores}.values():
            say(f"before: {short(run)}")
            if "failed" in (made := machine.measure(run)):
                say(f"  failed: {made['failed']}")
    for at, (number, run) in enumerate(todo, 1):
        say(f"{at}/{len(todo)}, round {number}: {short(run)}")
        found = machine.measure(run)
        results.keep({"run": run.key, "round": number, **found})
        say(f"  {'failed: ' + found['failed'] if 'failed' in found else format(found['seconds'], '.1f') + ' s'}")


def short(run: Run) -> str:
    """Return a run in a few words, without paths."""
    named = re.sub(r"--[a-z]+ \{[^ ]*", "", " ".join(run.words).removeprefix("{python} "))
    return " ".join(re.sub(r"\{[a-z]+\}/?", "", named).split())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def how(setup: runs.Setup, threads: int, base: str) -> dict[str, Any]:
    """Return what must be the same for measurements to be compared."""
    return {
        "setup": dataclasses.asdict(setup),
        "data": str(data.DATASET.parent),
        "base": base,
        "threads": threads,
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__.partition("\n")[0])
    folder = os.environ.get("ADAPTREE_DATA")
    add = parser.add_argument
    add("--data", type=Path, default=Path(folder) if folder else None, help="folder that holds sms_spam/")
    add("--quick", action="store_true", help="the main rows, small, two rounds: under five minutes")
    add("--rows", help=f"only these, by comma: {', '.join(names())}")
    add("--rounds", type=int, help="default: 3, quick 2")
    add("--train-rows", type=int, help="training rows (default: 300, quick 192)")
    add("--epochs", type=int, help="default: 10, quick 2")
    add("--again", action="store_true", help="measure anew what is there")
    add("--threads", type=int, default=os.cpu_count(), help="of every subject; default: all cores")
    add("--base", type=Path, help="folder of a BERT; default: minilm")
    add("--peers", default=str(ROOT / ".venv" / "peers" / "bin" / "python"), help="the peers' python")
    add("--scratch", type=Path, default=ROOT / ".venv" / "bench")
    add("--results", type=Path, help="default: benchmarks/results.json; quick: in the scratch folder")
    add("--docs", type=Path, default=ROOT / "docs")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    chosen = options(words)
    try:
        bench(chosen)
    except (Refused, data.NoData) as why:
        say(f"✘ {why}")
        return 1
    return 0


def bench(chosen: argparse.Namespace) -> None:
    wanted = chosen.rows.split(",") if chosen.rows else names()
    if unknown := sorted(set(wanted) - set(names())):
        raise Refused(f"no row '{unknown[0]}'. There are: {', '.join(names())}.")
    modules = [row(name) for name in wanted]
    if chosen.quick and not chosen.rows:
        modules = [module for module in modules if module.QUICK]
    dataset = data.rows_of(chosen.data)
    if not Path(chosen.peers).is_file():
        raise Refused("the peers' environment is not there: `make bench` makes it, or give its python with --peers.")
    from adaptree.models.embedded import config_of, locate
    from adaptree.models.known import SMOLLM

    base = chosen.base or locate("minilm")
    setup = dataclasses.replace(
        runs.QUICK if chosen.quick else runs.FULL, depth=config_of(base)["num_hidden_layers"],
        **{key: value for key, value in (("rows", chosen.train_rows), ("epochs", chosen.epochs)) if value},
    )  # fmt: skip
    tables: list[Table | Growth] = [table for module in modules for table in module.tables(setup)]
    everything: list[Table | Growth] = [table for name in names() for table in row(name).tables(setup)]
    befores = [*WARM, *(run for module in modules if hasattr(module, "before") for run in module.before(setup))]
    scratch = chosen.scratch.resolve()
    (scratch / "data").mkdir(parents=True, exist_ok=True)
    data.write(dataset, [*befores, *(run for table in tables for run in table.runs)], scratch / "data")
    results = Results(
        chosen.results or (scratch / "quick.json" if chosen.quick else ROOT / "benchmarks" / "results.json"),
        how(setup, chosen.threads, chosen.base.name if chosen.base else "minilm"),
    )
    if chosen.again:
        results.forget(run.key for table in tables for run in table.runs)
    places = {"base": str(base), "data": str(scratch / "data"), "subjects": str(ROOT / "benchmarks" / "subjects"),
              "smollm": str(SMOLLM.folder)}  # fmt: skip
    machine = Machine(places, {"ours": sys.executable, "peers": chosen.peers}, scratch, chosen.threads)
    rounds = chosen.rounds or ROUNDS[chosen.quick]
    shutil.rmtree(scratch / "store", ignore_errors=True)
    try:
        measure(tables, befores, machine, results, rounds)
    except KeyboardInterrupt:
        say("stopped; what is measured is kept, and the same command goes on.")
    print(report.text(tables if chosen.quick or chosen.rows else everything, results.rounds(), results.how))
    if not chosen.quick:
        report.publish(everything, results.rounds(), results.how, chosen.docs)


if __name__ == "__main__":
    sys.exit(main())

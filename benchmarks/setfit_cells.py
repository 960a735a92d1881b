"""SetFit's cells of `adaptree experiment lowdata`: the same rows, the same base, its documented defaults.

    python benchmarks/setfit_cells.py OUT --base DIR [--sizes 8,32] [--samples 3] [--tasks a,b] [--max-steps N]

OUT is the experiment's folder, whose rows it reads and to whose cells.jsonl it adds. It runs in the peers' environment
(`make .venv/peers/.benching`), not with adaptree installed. A cell that is there is not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as adaptree sets it: both are measured the same way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--base", required=True, help="folder of the base")
    parser.add_argument("--sizes", default="8,32")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--tasks", default="")
    parser.add_argument("--max-steps", type=int, default=-1, help="default: one epoch over all pairs, as documented")
    chosen = parser.parse_args()
    cells = chosen.out / "cells.jsonl"
    done = set()
    if cells.is_file():
        lines = [json.loads(line)["asked"] for line in cells.read_text().splitlines()]
        done = {(c["rows"], c["test"], c["sample"]) for c in lines if c["way"] == "setfit"}
    names = [name for name in chosen.tasks.split(",") if name] or sorted(
        path.stem.removesuffix("-tested") for path in (chosen.out / "rows").glob("*-tested.jsonl")
    )
    for number in range(chosen.samples):
        for size in map(int, chosen.sizes.split(",")):
            for name in names:
                training = chosen.out / "rows" / f"{name}-{size}-{number}.jsonl"
                test = chosen.out / "rows" / f"{name}-tested.jsonl"
                if not training.is_file() or (digest(training), digest(test), number) in done:
                    continue
                asked = {
                    "task": name, "rows_per_label": size, "sample": number, "base": Path(chosen.base).name,
                    "rows": digest(training), "test": digest(test), "way": "setfit", "max_steps": chosen.max_steps,
                }  # fmt: skip
                began = time.monotonic()
                found = run(rows(training), rows(test), chosen.base, number, chosen.max_steps)
                cell = {"asked": asked, "found": found, "wall_seconds": round(time.monotonic() - began, 2)}
                with cells.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
                print(json.dumps(cell), flush=True)


def digest(path: Path) -> str:
    """Return the digest by which `adaptree experiment` knows a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def rows(path: Path) -> list[dict[str, Any]]:
    """Return a file's rows with one text each; the two of a pair are joined, as SetFit knows no pairs."""
    found = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        text = row["text"] if "text" in row else f"{row['text_a']} [SEP] {row['text_b']}"
        found.append({"text": text, "label": str(row["label"])})
    return found


def run(training: list[dict[str, Any]], test: list[dict[str, Any]], base: str, seed: int, steps: int) -> dict[str, Any]:
    """Train SetFit with its defaults, and return its accuracy on the test rows and the seconds of the training."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    labels = sorted({row["label"] for row in training})
    number = {label: i for i, label in enumerate(labels)}
    data = Dataset.from_list([{"text": row["text"], "label": number[row["label"]]} for row in training])
    model = SetFitModel.from_pretrained(base)
    arguments = TrainingArguments(seed=seed, max_steps=steps, save_strategy="no", report_to="none", logging_steps=10**6)
    began, cpu = time.monotonic(), time.process_time()
    Trainer(model=model, args=arguments, train_dataset=data).train()
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    predicted = model.predict([row["text"] for row in test])
    right = sum(number.get(row["label"]) == int(found) for row, found in zip(test, predicted, strict=True))
    return {
        "labels": len(labels), "train_rows": len(training), "test_rows": len(test), "accuracy": right / len(test),
        "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2),
    }  # fmt: skip


if __name__ == "__main__":
    main()

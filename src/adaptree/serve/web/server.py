"""The server's own page: throughput, batches, latency, queue and memory as they are now; its keys, for its owner."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from adaptree.errors import AdaptreeError
from adaptree.serve.keys import SCOPES, Caller, new_key, read_keys, remove_key
from adaptree.serve.observe import SECONDS
from adaptree.serve.predicting import as_json
from adaptree.serve.problems import Problem, problem_of
from adaptree.serve.service import Service
from adaptree.serve.web.frame import HEADERS, page, service_of
from adaptree.serve.web.sign_in import form

router = APIRouter(include_in_schema=False)

PREDICTING = ("/v1/predict", "/v1/tasks/{task}/predict", "/v2/models/{task}/infer")
"""Routes whose time to answer is shown."""


def owner(request: Request) -> Caller:
    """Return who asks; raise a Problem unless it is somebody who may know of everybody."""
    caller = service_of(request).caller(request, "admin")
    if caller.tenant:
        raise Problem(403, "not_allowed", "a tenant's key is not for this.", hint="Ask for one that is.")
    return caller


@router.get("/server")
async def show(request: Request) -> Response:
    return await _page(request, owner(request))


async def _page(request: Request, caller: Caller, **more: Any) -> Response:
    service = service_of(request)
    keys = await asyncio.to_thread(read_keys, service.keys.path) if service.keys is not None else []
    found = page(
        request, "server.html", caller,
        figures=await asyncio.to_thread(figures, service), keys=keys, scopes=SCOPES, base=service.engine.base,
        store=service.engine.store.location, stored=len(await service.rows(caller)),
        **{"made": "", "problem": "", **more},
    )  # fmt: skip
    if more.get("made"):
        found.headers["Cache-Control"] = "no-store"
    return found


@router.get("/server/figures")
async def live(request: Request) -> Response:
    """Return the figures, which the page asks for every other second."""
    owner(request)
    found = await asyncio.to_thread(figures, service_of(request))
    return as_json(found, headers={"Cache-Control": "no-store"})


def figures(service: Service) -> dict[str, Any]:
    """Return figures of the engine and of HTTP, and the memory that one model for each task would take."""
    found = service.figures()
    total, now, batches = found["total"], found["now"], found["now"]["batches"]
    stats, base = {**total["engine"], **now["engine"]}, service.base_bytes
    buckets, count, seconds = _latency(total["samples"]["adaptree_http_request_seconds"])
    return {
        **stats,
        "base_bytes": base,
        "shared_bytes": base + stats["bytes"],
        "separate_bytes": base * max(1, stats["tasks"]) + stats["bytes"],
        "texts": int(sum(total["samples"]["adaptree_texts"].values())),
        "latency_buckets": buckets,
        "latency_bounds": [*SECONDS],
        "latency_count": count,
        "latency_seconds": seconds,
        "p50": quantile(0.5, buckets),
        "p95": quantile(0.95, buckets),
        "in_flight": now["in_flight"],
        "since": service.counts.since,
        "rows_per_batch": batches["rows"] / max(1, batches["count"]),
        "tasks_per_batch": batches["tasks"] / max(1, batches["count"]),
        "tokens_per_second": batches["tokens"] / batches["seconds"] if batches["seconds"] else 0.0,
        "batch_tasks": sorted([int(top), count] for top, count in batches["by_tasks"].items()),
        "batch_rows": sorted([int(top), count] for top, count in batches["by_rows"].items()),
    }


def _latency(samples: Mapping[str, float]) -> tuple[list[int], int, float]:
    """Return how many predictions took how long, by the bounds SECONDS and a last one beyond; their count and sum."""
    counts, total = [0.0] * (len(SECONDS) + 1), 0.0
    for spelled, value in samples.items():
        name, labels = json.loads(spelled)
        if labels.get("route") not in PREDICTING:
            continue
        if name.endswith("_bucket"):
            bound = float(labels["le"])
            counts[len(SECONDS) if math.isinf(bound) else SECONDS.index(bound)] += value
        elif name.endswith("_sum"):
            total += value
    each = [int(now - before) for now, before in zip(counts, [0.0, *counts[:-1]], strict=True)]
    return each, int(counts[-1]), total


def quantile(share: float, counts: Sequence[int]) -> float | None:
    """Return the time below which a share of requests was answered, between the bounds of its bucket; None for none."""
    wanted, seen = share * sum(counts), 0
    if not wanted:
        return None
    bounds = [0.0, *SECONDS, SECONDS[-1]]
    for i, count in enumerate(counts):
        if seen + count >= wanted:
            return bounds[i] + (bounds[i + 1] - bounds[i]) * (wanted - seen) / count
        seen += count
    return SECONDS[-1]


# Keys


@router.post("/server/keys")
async def add_key(request: Request) -> Response:
    """Make a key; the answer shows it, and nothing ever again."""
    caller = owner(request)
    said = await form(request)
    keys = service_of(request).keys
    if keys is None:
        raise Problem(409, "no_keys", "this server runs without keys.", hint="Start it with --keys FILE.")
    try:
        rate, quota = float(said.get("rate") or 0), int(said.get("quota") or 0)
    except ValueError:
        return await _page(request, caller, problem="a rate and a quota are numbers.")
    scopes = [scope for scope in SCOPES if said.get(scope)]
    try:
        _, text = await asyncio.to_thread(
            lambda: new_key(
                keys.path, tenant=said.get("tenant", "").strip(), scopes=scopes, rate=rate, quota=quota,
                note=said.get("note", "")[:200],
            )
        )  # fmt: skip
    except AdaptreeError as error:
        return await _page(request, caller, problem=str(error))
    return await _page(request, caller, made=text)


@router.post("/server/keys/remove")
async def take_back(request: Request) -> Response:
    """Remove a key: it is refused within a second."""
    caller = owner(request)
    id = (await form(request)).get("id", "")
    keys = service_of(request).keys
    if keys is None or (caller.key is not None and caller.key.id == id):
        raise Problem(409, "own_key", "this is the key that you use.", hint="Sign in with another one first.")
    try:
        await asyncio.to_thread(remove_key, keys.path, id)
    except AdaptreeError as error:
        raise problem_of(error) from error
    return RedirectResponse("/server#keys", 303, HEADERS)

"""The machine that a task was made on: what the last bits of its numbers depend on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache
from typing import Any

PACKAGES = ("torch", "transformers")
KIND = ("processor", "instructions", *PACKAGES, "threads", "device")
"""Two computations are expected to be equal bit for bit where all of these are the same."""


def here() -> dict[str, Any]:
    """Return what a record says of this machine."""
    import torch

    return {
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.release()}",
    }


def computing(device: str = "cpu") -> dict[str, Any]:
    """Return what the bits of a computation depend on, by the names in KIND."""
    from importlib import metadata

    found = here()
    if device != "cpu":
        import torch

        found["processor"] = torch.cuda.get_device_name(device)
    versions = {name: metadata.version(name) for name in PACKAGES}
    return {**{name: found[name] for name in KIND if name in found}, **versions, "device": device.partition(":")[0]}


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in which parts of KIND two computations differ; all of them where one does not say."""
    return [name for name in KIND if name not in then or then[name] != now.get(name)]


@cache
def _processor() -> str:
    """Return the processor's model as it calls itself."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return " ".join(value.split())
    except OSError:
        pass
    return platform.processor() or platform.machine()

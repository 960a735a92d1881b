"""Let a process that trains step back behind those that serve."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NICE = int(os.environ.get("ADAPTREE_JOB_NICE", "10"))
"""How far a worker steps back, from 0, not at all, to 19. At 10 it has a tenth of a core that others want, too: enough
to get on beside a busy server, which at 19 it does not."""


def step_back(nice: int = NICE) -> None:
    """Give this process, and the threads that it will start, a low priority.

    Where the kernel groups processes by session (autogroup), a nice value counts only within the group, and the
    group's own counts between groups. That is set, too, but only by the process that leads its session: others would
    pull down whoever started them.
    """
    with suppress(OSError, AttributeError):
        os.nice(nice - os.nice(0))
    with suppress(OSError, AttributeError):
        if os.getsid(0) == os.getpid():
            Path("/proc/self/autogroup").write_text(str(nice))

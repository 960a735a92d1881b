"""What all tests share: one thread, so that bits and times do not depend on the machine's other work."""

from __future__ import annotations

import os

from hypothesis import settings

# Set before torch is imported, and inherited by the commands that tests start; CI may say otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

settings.register_profile("adaptree", deadline=None)
settings.load_profile("adaptree")

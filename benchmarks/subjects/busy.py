"""Run a command while other work keeps every core busy, and print what it prints.

    python busy.py [--load N] [--threads N] [--spin] -- COMMAND …

`--load` processes compute all the time (default 0: an idle machine). `--spin` has OpenMP's threads spin while they
wait, as they do where nothing is set.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

SPINS = "300000"
"""libgomp's own number where neither OMP_WAIT_POLICY nor GOMP_SPINCOUNT is set."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--spin", action="store_true")
    at = sys.argv.index("--")
    chosen, command = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    own = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    if chosen.threads:
        environment["OMP_NUM_THREADS"] = str(chosen.threads)
    if chosen.spin:
        environment["GOMP_SPINCOUNT"] = SPINS
    work = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(chosen.load)]
    try:
        return subprocess.run(command, env=environment, check=False).returncode
    finally:
        for process in work:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())

"""What the peers' workers share: options, timing, memory."""

import argparse
import statistics
import time
from pathlib import Path

SECONDS = 3.0  # that each figure is measured for, at least
REPEATS = (4, 40)  # at least, at most


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prefill", default="128,512")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.batch = [int(b) for b in args.batch.split(",")]
    args.prefill = [int(n) for n in args.prefill.split(",")]
    return args


def milliseconds(step):
    """The median time of step(), after one call to warm up."""
    step()
    times = []
    while len(times) < REPEATS[0] or (sum(times) < SECONDS and len(times) < REPEATS[1]):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def memory(field):
    """VmRSS or VmHWM of this process in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    return 0.0

"""What the peers' workers share: options, timing, memory."""

import argparse
import json
import statistics
import time
from pathlib import Path

SECONDS = 3.0  # that each figure is measured for, at least
REPEATS = (4, 40)  # at least, at most


def options(precision=("f32",)):
    """`precision`: those that the worker knows, its default first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prefill", default="128,512")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=precision, default=precision[0])
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


def report(decode_ms, prefill_ms, loaded, steady, **more):
    """The line that bench_peers.py reads: times by batch and by length, memory in MB."""
    print(json.dumps({**more, "decode_ms": decode_ms, "prefill_ms": prefill_ms,
                      "rss_mb": {"loaded": loaded, "steady": steady, "peak": memory("VmHWM")}}))

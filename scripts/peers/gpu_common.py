"""What the GPU's workers share: options, and times of steps."""

import argparse
import json
import statistics
import time

WARM, ALONE, TOGETHER = 10, 100, 200  # steps


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--batch", default="1", type=lambda text: [int(b) for b in text.split(",")])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))  # cpu: to see that a worker works
    return parser.parse_args()


def times(start, wait):
    """Median milliseconds of start() and wait(), which ends with the step's result at hand, and those of a step when
    each starts before the one before it is waited for. `start` runs WARM + ALONE + TOGETHER times."""
    alone = []
    for i in range(WARM + ALONE):
        begin = time.perf_counter()
        start()
        wait()
        if i >= WARM:
            alone.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    for _ in range(TOGETHER):
        start()
    wait()
    return 1000 * statistics.median(alone), 1000 * (time.perf_counter() - begin) / TOGETHER


def report(batches, version, measure):
    """Prints times() of each batch, as measure(batch) returns them, in the words of ark-bench."""
    figures = {str(batch): measure(batch) for batch in batches}
    print(json.dumps({
        "version": version,
        "decode_ms": {batch: alone for batch, (alone, _) in figures.items()},
        "together_ms": {batch: each for batch, (_, each) in figures.items()},
    }))

#!/usr/bin/env python3
"""Requests in time, of ark-serve and of llama.cpp's llama-server, by the same trace on the same weights.

    scripts/goodput_peers.py smollm2.onnx --llama-server PATH [--rates 1.5,3,4.5,6] [--precision bf16|f32] [-- options of ark-serve]

The trace: three of four prompts begin with one of two system prompts of about 400 tokens, questions are short with a heavy tail, answers have 16
to 128 tokens, and arrivals are burstier than by chance. In time is a request whose first token comes within 500 ms and whose
next ones take 60 ms on average. Servers take turns at each rate, each started anew, and warm before it is measured. llama-server is
started with each number of slots in --slots, and the best one counts. Prints one JSON line a run, then the best rates of both:
requests in time a second. `scripts/bench-peers.sh --with-llama-server` builds llama-server."""

import argparse
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import bench_peers

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("ARK_BIN", ROOT / "build" / "bin"))
GOALS = {"ttft": 500, "tpot": 60}  # milliseconds
CONTEXT = 2048  # tokens of one sequence
START = 120  # seconds a server may take until it answers
WORDS = ("the a one this that small old green quick good man woman child river house road garden letter machine kitchen reads finds "
         "opens carries watches in on under behind before after with without and or but because when where slowly often never").split()


def trace(count, seed):
    dice = random.Random(seed)

    def text(words):
        return " ".join(dice.choice(WORDS) for _ in range(words))

    systems, lines = [text(400), text(400)], []
    for _ in range(count):
        question = text(min(1200, int(dice.lognormvariate(3.9, 1.0)) + 4))
        system = dice.choice(systems) if dice.random() < 0.75 else ""
        lines.append({"prompt": f"{system}\n{question}", "output_tokens": dice.choice([16, 32, 32, 64, 64, 96, 128])})
    return "".join(json.dumps(line) + "\n" for line in lines)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Server:
    """A process that is asked for /health until it answers."""

    def __init__(self, command, port):
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([str(part) for part in command], stdout=self.log, stderr=self.log)
        end = time.monotonic() + START
        while self.process.poll() is None and time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        self.log.seek(0)
        said = self.log.read().decode(errors="replace").strip().splitlines()[-3:]
        self.__exit__()
        raise SystemExit(f"{command[0]} did not start: " + " | ".join(said))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()


def measure(command, port, rate, file, args):
    bench = [BIN / "ark-bench", "serve", "--dataset-name", "custom", "--dataset-path", file, "--disable-shuffle", "--ignore-eos",
             "--temperature", "0", "--num-warmups", "4", "--num-prompts", args.requests, "--seed", args.seed, "--burstiness", "0.4",
             "--tokenizer", Path(args.model).parent, "--disable-tqdm", "--json"]
    bench += [part for name, limit in GOALS.items() for part in ("--goodput", f"{name}:{limit}")]
    with Server(command, port) as server:
        done = subprocess.run([str(part) for part in [*bench, "--base-url", server.url, "--request-rate", rate]],
                              capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise SystemExit(f"ark-bench: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--llama-server", default=ROOT / ".venv-peers" / "bin" / "llama-server")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="bf16")
    parser.add_argument("--rates", default="1.5,3,4.5,6", help="requests a second")
    parser.add_argument("--slots", default="4,8,16", help="of llama-server; the best counts")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--seed", type=int, default=1)
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)  # argparse takes options there for its own
    args = parser.parse_args(sys.argv[1:cut])
    if not re.fullmatch(r"[\d.]+(,[\d.]+)*", args.rates) or not re.fullmatch(r"\d+(,\d+)*", args.slots):
        parser.error("--rates and --slots are numbers with commas between them")
    weights = bench_peers.gguf(args.model, "f32")
    if args.precision == "bf16":
        full, weights = weights, Path(args.model).with_name("smollm2.bf16.gguf")
        quantize = Path(args.llama_server).with_name("llama-quantize")
        bench_peers.made(weights, [quantize, full, "PATH", "BF16"])
    best = {"ark": 0.0, "llama-server": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.jsonl"
        file.write_text(trace(args.requests + 4, args.seed))
        for rate in map(float, args.rates.split(",")):
            runs = {"ark": lambda port: [BIN / "ark-serve", args.model, "--port", port, "--threads", args.threads, "--weights", args.precision,
                                         "--slo-ttft", GOALS["ttft"], "--slo-itl", GOALS["tpot"], *sys.argv[cut + 1:]]}
            for slots in map(int, args.slots.split(",")):
                runs[f"llama-server, {slots} slots"] = lambda port, slots=slots: [
                    args.llama_server, "-m", weights, "--port", port, "-t", args.threads, "-tb", args.threads, "-np", slots, "-c", CONTEXT * slots]
            for name, command in runs.items():
                port = free_port()
                found = measure(command(port), port, rate, file, args)
                best[name.split(",")[0]] = max(best[name.split(",")[0]], found["request_goodput"])
                print(json.dumps({"server": name, "rate": rate, "in_time_a_second": round(found["request_goodput"], 3),
                                  "part_in_time": round(found["request_goodput"] * found["duration"] / args.requests, 3),
                                  **{key: round(found[key], 1) for key in ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms")}}), flush=True)
    print(json.dumps({"goals": GOALS, "precision": args.precision, **{name: round(value, 3) for name, value in best.items()},
                      "ratio": round(best["ark"] / best["llama-server"], 2) if best["llama-server"] else None}), flush=True)


if __name__ == "__main__":
    main()

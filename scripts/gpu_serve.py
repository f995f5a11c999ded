#!/usr/bin/env python3
"""ark-serve on a GPU against ark-serve on the CPU, on the same file, and ark-bench serve against the former: a step of
gpu-check.sh. SmolLM2 where its file is, else a decoder of its shape with random weights.

Tokens are compared with their margins: each token's log-probability may differ by BOUND; a token that differs is an error
unless its margin over the other is within two bounds, a near tie, after which that prompt says nothing more."""

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Two orders of adding up some hundred f32 products differ by 2.5e-4 of the largest logit after 20 such sums in a row
# (tests/emulator/decoders_test.cc derives it). Here are 30 layers of seven, ten times as many, and logits of up to 20.
BOUND = 2.5e-4 * 10 * 20
SHAPE = ["--preset", "llama", "--tied", "--layers", "30", "--hidden", "576", "--heads", "9", "--kv-heads", "3",
         "--intermediate", "1536", "--vocab", "49152", "--context", "2048"]
SMALL = ["--preset", "llama", "--layers", "2", "--vocab", "300", "--context", "256"]
PROMPTS, TOKENS = 4, 24
START_SECONDS = 60


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


@contextlib.contextmanager
def serving(binary, model, device):
    """The port of a server that answers."""
    port = free_port()
    # Keys and values of as many bits on both.
    command = [binary, model, "--port", port, "--device", device, "--kv-dtype", "f32", "--max-model-len", 256]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT)
        try:
            end = time.monotonic() + START_SECONDS
            while True:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    if ask(port, "GET", "/health")[0] == 200:
                        break
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    lines = log.read().strip().splitlines()
                    sys.exit(f"ark-serve --device {device}: {lines[-1] if lines else 'no answer'}")
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def complete(port, prompt):
    """Of each generated token: (id, log-probability, those of the best few by text)."""
    status, text = ask(port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0,
                                                         "logprobs": 5, "ignore_eos": True})
    if status != 200:
        sys.exit(f"HTTP {status}: {text.decode(errors='replace')[:300]}")
    choice = json.loads(text)["choices"][0]
    scores = choice["logprobs"]
    return list(zip(choice["token_ids"], scores["token_logprobs"], scores["tokens"], scores["top_logprobs"], strict=True))


def differences(expected, got):
    """(what is wrong or "", tokens compared) of one prompt."""
    if len(expected) != len(got):
        return f"{len(got)} tokens instead of {len(expected)}", 0
    for i, ((want, score, _, others), (token, other_score, text, _)) in enumerate(zip(expected, got)):
        if want != token:
            margin = score - others.get(text, float("-inf"))
            return ("" if margin <= 2 * BOUND else f"token {i} is {token}, not {want} (margin {margin:.3f})"), i
        if not abs(score - other_score) <= 2 * BOUND:
            return f"token {i} ({token}) has log-probability {other_score:.4f}, not {score:.4f}", i
    return "", len(expected)


def compare(answers):
    failed = 0
    for number, (expected, got) in enumerate(zip(*answers)):
        wrong, compared = differences(expected, got)
        failed += bool(wrong)
        print(f"prompt {number}: {wrong or 'equal'} ({compared} tokens compared)", flush=True)
    return failed


def bench(args, port, name):
    command = [args.bin / "ark-bench", "serve", "--base-url", f"http://127.0.0.1:{port}", "--json", "--disable-tqdm",
               "--ignore-eos", "--num-prompts", 6 if args.small else 128, "--max-concurrency", 3 if args.small else 32,
               "--random-input-len", 16 if args.small else 128, "--random-output-len", 8 if args.small else 64]
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"ark-bench serve: {(run.stderr.strip() or run.stdout.strip()).splitlines()[-1]}")
    result = json.loads(run.stdout)
    if result["completed"] != result["num_prompts"]:
        sys.exit(f"ark-bench serve: {result['completed']} of {result['num_prompts']} requests were answered")
    for key, what, unit in (("output_throughput", "tokens", "1/s"), ("median_ttft_ms", "first token", "ms"),
                            ("median_tpot_ms", "each token after it", "ms")):
        row = {"name": f"{name} served, 32 at once: {what}", "value": result[key], "unit": unit, "floor": 0.0}
        print(json.dumps(row), flush=True)
        with open(args.out, "a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "bin")
    parser.add_argument("--out", type=Path, default="/dev/stderr", help="file that lines of figures are added to")
    parser.add_argument("--smollm2", type=Path, default=Path("smollm2.onnx"), help="taken if it is there")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to see that all this works")
    parser.add_argument("--small", action="store_true", help="a small model and few requests, for tests")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end in any case
    with tempfile.TemporaryDirectory(prefix="ark-serve-") as folder:
        model, name = args.smollm2, "SmolLM2-135M"
        if args.small or not model.exists():
            model, name = Path(folder) / "model.onnx", "SmolLM2-shaped f32"
            subprocess.run([sys.executable, ROOT / "models" / "llama_random.py", model, *(SMALL if args.small else SHAPE)],
                           check=True, env=dict(os.environ, LD_LIBRARY_PATH=""))
        numbers = random.Random(1)
        prompts = [[numbers.randrange(1, 300) for _ in range(7 + 20 * p)] for p in range(PROMPTS)]
        answers = []
        for device in ("cpu", args.device):
            with serving(args.bin / "ark-serve", model, device) as port:
                answers.append([complete(port, prompt) for prompt in prompts])
                if len(answers) == 2:
                    bench(args, port, name)
        sys.exit(bool(compare(answers)))


if __name__ == "__main__":
    main()

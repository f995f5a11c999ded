#!/usr/bin/env python3
"""ark, ONNX Runtime's CUDA provider and PyTorch under a CUDA graph on the same ONNX files on a GPU: one JSON line of
each figure, or why it was not measured. A step of decoding: one token more for each sequence."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKERS, MODELS = ROOT / "scripts" / "peers", ROOT / "models"
STEPS = 100  # that ark-bench times; the workers' own number stands in gpu_common.py
LAST_WORDS = 10  # seconds kept for the end, out of what the step of gpu-check.sh has
GPT2 = ["gpt2_random.py", "--dtype", "f16"]
LLAMA = ["llama_random.py", "--preset", "llama", "--dtype", "bf16", "--context", "1024", "--tied"]
LLAMA_1B = ["--layers", "16", "--hidden", "2048", "--heads", "32", "--kv-heads", "8", "--intermediate", "8192",
            "--vocab", "128256"]
PEERS = ("ark", "ONNX Runtime", "PyTorch, CUDA graph")


class NotMeasured(Exception):
    pass


def cases(args):
    """(name, batches, command that makes the file from its path on, or the file)."""
    gpt2 = GPT2 + (["--layers", "1", "--hidden", "96", "--vocab", "300"] if args.small else [])
    return [
        ("GPT-2 124M fp16", [1, 32], gpt2),
        ("Llama-1B-shaped bf16", [1], LLAMA + ([] if args.small else LLAMA_1B)),
        ("SmolLM2-135M f32", [1], args.smollm2),
    ]


def row(case, batch, context, peer, how):
    return f"{case}, batch {batch}, context {context}: {peer}, {how}"


class Race:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.end = time.monotonic() + args.seconds
        self.measured = 0

    def write(self, entry):
        with open(self.args.out, "a", encoding="utf-8") as out:
            out.write(json.dumps(entry) + "\n")
        print(json.dumps(entry), flush=True)

    def run(self, command):
        """What the command prints. Libraries that gpu-check.sh --pack has brought are for ark's binaries alone."""
        left = self.end - time.monotonic()
        if left < 2:
            raise NotMeasured("out of time")
        command, environment = [str(part) for part in command], dict(os.environ)
        if command[0] == sys.executable:
            paths = environment.get("LD_LIBRARY_PATH", "").split(":")
            own = [path for path in paths if path and not Path(path).is_relative_to(self.args.bin)]
            environment["LD_LIBRARY_PATH"] = ":".join(own)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=left, env=environment)
        except subprocess.TimeoutExpired:
            raise NotMeasured("out of time") from None
        if done.returncode:
            words = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
            raise NotMeasured(" ".join(words.split())[:300])
        return done.stdout

    def file_of(self, name, source):
        if isinstance(source, Path):
            if not source.exists():
                raise NotMeasured(f"no {source}")
            return source
        if shutil.disk_usage(self.folder).free < 8 << 30:
            raise NotMeasured(f"less than 8 GiB are free in {self.folder}")
        path = self.folder / name.split()[0] / "model.onnx"
        self.run([sys.executable, MODELS / source[0], path, *source[1:]])
        return path

    def command(self, peer, path, batches):
        shape = [path, "--batch", ",".join(map(str, batches)), "--context", self.args.context]
        device = ["--device", self.args.device]
        if peer == "ark":
            if not (self.args.bin / "ark-bench").exists():
                raise NotMeasured(f"no {self.args.bin / 'ark-bench'}")
            return [self.args.bin / "ark-bench", "model", *shape, *device, "--prefill", 16, "--repeat", STEPS, "--json"]
        worker = "onnxruntime_gpu_worker.py" if peer == "ONNX Runtime" else "torch_worker.py"
        return [sys.executable, WORKERS / worker, *shape, *device]

    def measure(self, name, peer, path, batches):
        result = json.loads(self.run(self.command(peer, path, batches)).strip().splitlines()[-1])
        for batch in batches:
            for how, key in (("step alone", "decode_ms"), ("steps back to back", "together_ms")):
                if key in result:
                    value = 1000 * result[key][str(batch)]
                    label = row(name, batch, self.args.context, peer, how)
                    self.write({"name": label, "value": value, "unit": "us", "floor": 0.0})
                    self.measured += 1

    def refuse(self, name, batches, peer, why):
        for batch in batches:
            label = row(name, batch, self.args.context, peer, "step alone")
            self.write({"name": label, "not_measured": str(why)})

    def case(self, name, batches, source):
        try:
            path = self.file_of(name, source)
        except NotMeasured as why:
            for peer in PEERS:
                self.refuse(name, batches, peer, why)
            return
        for peer in PEERS:
            try:
                self.measure(name, peer, path, batches)
            except NotMeasured as why:
                self.refuse(name, batches, peer, why)
        if not isinstance(source, Path):
            shutil.rmtree(path.parent)


def sees_gpu():
    try:
        return b"GPU" in subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "bin")
    parser.add_argument("--out", type=Path, default="/dev/stderr", help="file that lines are added to")
    parser.add_argument("--smollm2", type=Path, default=Path("smollm2.onnx"), help="measured if it is there")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--seconds", type=float, help="all that may be taken (what the step of gpu-check.sh has)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to see that all this works")
    parser.add_argument("--small", action="store_true", help="small models, for tests")
    args = parser.parse_args()
    args.bin = args.bin.resolve()
    args.seconds = args.seconds or float(os.environ.get("step_seconds", 600)) - LAST_WORDS
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the folder goes in any case
    with tempfile.TemporaryDirectory(prefix="ark-peers-") as folder:
        race = Race(args, Path(folder))
        no_gpu = args.device == "cuda" and not sees_gpu()
        for name, batches, source in cases(args):
            if no_gpu:
                for peer in PEERS:
                    race.refuse(name, batches, peer, "no GPU is here (nvidia-smi -L)")
            else:
                race.case(name, batches, source)
    if race.measured == 0:
        print("no peer could be measured")
        sys.exit(77)  # gpu-check.sh: skipped


if __name__ == "__main__":
    main()

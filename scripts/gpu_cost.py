#!/usr/bin/env python3
"""What ark-inspect predicts of a decode step, phase by phase, beside what a GPU's own timeline shows of it (a step of
gpu-check.sh): GPT-2 124M of random weights, or --model. Without a GPU: the prediction alone, and exit status 77."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPEAT = 30  # steps


def run(*command):
    """What it prints. Raises OSError or CalledProcessError."""
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def predicted(args, model, batch):
    return json.loads(run(args.bin / "ark-inspect", model, "--stage", "cost", "--json", "--arch", args.arch, "--batch",
                          batch, "--context", args.context))


def measured(args, model, batch, folder):
    """Of the step and by phase, or why not."""
    command = [args.bin / "ark-bench", "model", model, "--device", args.device, "--batch", batch, "--context",
               args.context, "--prefill", 16, "--repeat", REPEAT, "--json"]
    try:
        alone = json.loads(run(*command).strip().splitlines()[-1])
        traced = json.loads(run(*command, "--trace", folder / "trace.json").strip().splitlines()[-1])
    except (OSError, subprocess.CalledProcessError) as error:
        words = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        return None, words[-1] if words else str(error)
    return {"us": 1000 * alone["decode_ms"][str(batch)], "phases": traced["trace"]}, ""


def prompt(args, model, tokens, numerics):
    """What a step that reads so many tokens was predicted to take, and what it takes, in ms."""
    said = json.loads(run(args.bin / "ark-inspect", model, "--stage", "cost", "--json", "--arch", args.arch, "--context", 0,
                          "--prompt", tokens, "--numerics", numerics))["us"] / 1000
    try:
        seen = json.loads(run(args.bin / "ark-bench", "model", model, "--device", args.device, "--numerics", numerics,
                              "--batch", 1, "--context", 1, "--prefill", tokens, "--repeat", REPEAT,
                              "--json").strip().splitlines()[-1])["prefill_ms"][str(tokens)]
    except (OSError, subprocess.CalledProcessError):
        seen = None  # why not: said of the steps above
    return {"tokens": tokens, "numerics": numerics, "predicted_ms": said, "measured_ms": seen}


def table(said, seen):
    """A line a phase: us of each time. What is measured has a timeline's own events in it, half a us a phase."""
    spans = {p["number"]: p["span_us"] for p in seen["phases"]} if seen else {}
    yield f"{said['step']}"
    yield " times  predicted   measured  ratio  phase"
    for p in said["phases"]:
        each = p["us"] / p["times"]
        span = spans.get(p["number"])
        right = f"{'-':>10} {'-':>6}"
        if span is not None:
            right = f"{span / p['times']:10.2f} " + (f"{span / p['us']:6.2f}" if p["us"] > 0.005 else f"{'-':>6}")
        yield f"{p['times']:6} {each:10.2f} {right}  {p['phase']}"
    step = f"{seen['us']:10.2f} {seen['us'] / said['us']:6.2f}" if seen else f"{'-':>10} {'-':>6}"
    yield f"{'':6} {said['us']:10.2f} {step}  the step, from the host to the host, without a timeline"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "bin")
    parser.add_argument("--out", type=Path, help="file for all of it as JSON")
    parser.add_argument("--model", type=Path, help="instead of GPT-2 124M")
    parser.add_argument("--arch", default="sm_90a", help="as of ark-inspect")
    parser.add_argument("--device", default="cuda", help="as of ark-bench")
    parser.add_argument("--batch", type=lambda text: [int(b) for b in text.split(",")], default=[1, 32])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prompt", type=lambda text: [int(n) for n in text.split(",")], default=[128, 512])
    parser.add_argument("--small", action="store_true", help="a small model, for tests")
    args = parser.parse_args()
    results, why = [], ""
    with tempfile.TemporaryDirectory(prefix="ark-cost-") as folder:
        model = args.model or Path(folder) / "model.onnx"
        if not args.model:
            shape = ["--layers", "1", "--hidden", "96", "--vocab", "300"] if args.small else []
            run(sys.executable, ROOT / "models" / "gpt2_random.py", model, "--dtype", "f16", *shape)
        for batch in args.batch:
            said = predicted(args, model, batch)
            seen, why = measured(args, model, batch, Path(folder))
            print("\n".join(table(said, seen)), flush=True)
            results.append({"batch": batch, "predicted": said, "measured": seen})
        for tokens in args.prompt:
            for numerics in ("exact", "fast"):
                p = prompt(args, model, tokens, numerics)
                results.append(p)
                seen = f"{p['measured_ms']:.2f} ms" if p["measured_ms"] is not None else "-"
                print(f"prompt of {tokens}, {numerics}: predicted {p['predicted_ms']:.2f} ms, measured {seen}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")
    if why:
        print("not measured: " + why)
        sys.exit(77)


if __name__ == "__main__":
    main()

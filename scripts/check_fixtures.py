#!/usr/bin/env python3
"""Runs the exported decoders of a fixtures folder with ark-run and compares tokens with ONNX Runtime's.

  check_fixtures.py ARK_RUN FIXTURES [--device cuda] [--prompts N] [--least N] [--only NAME ...] [--options TEXT]

Every folder with a model.onnx and an expected.json that has `greedy` is run: prompt ids, so many tokens. A token
that differs where the margin to the runner-up is above twice the tolerance is an error; below it is a near tie,
and the rest of that prompt says nothing. What the device has no code for is named, and no error. Fails if fewer
than N models were compared."""
import argparse
import json
import pathlib
import subprocess
import sys


def tokens_of(args, folder, prompt, count):
    """The generated ids, or the one line that says why there are none."""
    command = [args.ark_run, folder, "--prompt-ids", ",".join(map(str, prompt)), "--max-tokens", str(count),
               "--ignore-eos", "--json", "--device", args.device, *args.options.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout)["token_ids"], ""
    lines = done.stderr.strip().splitlines()
    return None, lines[-1] if lines else f"exit status {done.returncode}"


def compare(expected, tolerance, got):
    """What is wrong with `got`, or nothing."""
    for i, (want, margin) in enumerate(zip(expected["greedy_ids"], expected["margins"])):
        if i >= len(got):
            return f"{len(got)} tokens instead of {len(expected['greedy_ids'])}"
        if got[i] != want:
            return "" if margin <= 2 * tolerance else f"token {i} is {got[i]}, not {want} (margin {margin})"
    return ""


def check(args, folder):
    """(verdict, why) of one model: equal, no device code, or FAIL."""
    expected = json.loads((folder / "expected.json").read_text())
    cases = expected["greedy"][:args.prompts]
    for case in cases:
        got, error = tokens_of(args, folder, case["prompt_ids"], len(case["greedy_ids"]))
        if got is None:
            reasons = ("has no device code", "run on the CPU", "is served plain")
            refused = any(reason in error for reason in reasons)
            return ("refused" if refused else "FAIL"), error
        wrong = compare(case, expected["tolerance"], got)
        if wrong:
            return "FAIL", f"prompt {case['prompt_ids'][:8]}: {wrong}"
    return "equal", f"{len(cases)} prompts"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ark_run")
    parser.add_argument("fixtures", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompts", type=int, default=2, help="of each model, at most (2)")
    parser.add_argument("--least", type=int, default=10, help="models that must be compared (10)")
    parser.add_argument("--only", nargs="+", help="folders; all of them must be compared")
    parser.add_argument("--options", default="", help="more options of ark-run")
    args = parser.parse_args()
    if args.only:
        args.least = len(args.only)
    folders = [file.parent for file in sorted(args.fixtures.glob("*/expected.json"))
               if (file.parent / "model.onnx").exists() and "greedy" in json.loads(file.read_text())
               and (not args.only or file.parent.name in args.only)]
    verdicts = {"equal": 0, "refused": 0, "FAIL": 0}
    for folder in folders:
        verdict, why = check(args, folder)
        verdicts[verdict] += 1
        print(f"{folder.name}: {verdict}: {why}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in verdicts.items()))
    return 1 if verdicts["FAIL"] or verdicts["equal"] < args.least else 0


if __name__ == "__main__":
    sys.exit(main())

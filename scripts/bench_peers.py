"""ark against ONNX Runtime and llama.cpp on SmolLM2-135M-Instruct, float32, two threads.

Each peer is a fresh process that prints one JSON line with the fields of `ark-bench model`. The peers take turns, for
several rounds, so that a slow spell of the machine meets all of them; the figures are medians over the rounds. Ratios
are speeds: above 1 ark is faster. decode is one step for a batch with so many tokens cached, prefill one prompt."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKERS = ROOT / "scripts" / "peers"
ARK_BENCH = Path(os.environ.get("ARK_BIN", ROOT / "build" / "bin")) / "ark-bench"
LLAMA_PYTHON = Path(os.environ.get("ARK_LLAMA_PYTHON", ROOT / ".venv-peers" / "bin" / "python"))
GOALS = {("decode_ms", "1"): 0.8, ("decode_ms", "8"): 1.0}  # of ONNX Runtime's speed
SPARE_MEMORY = 64  # MB that ark may take beside 1.1 x packed weights and what it keeps of keys and values
TIME_LIMIT = 900  # seconds for one peer in one round


class NotMeasured(Exception):
    pass


def commands(args, model):
    """Each peer's command, or why there is none."""
    shape = ["--batch", args.batch, "--context", args.context, "--prefill", args.prefill, "--threads", args.threads]
    peers = {"onnxruntime": [sys.executable, WORKERS / "onnxruntime_worker.py", model, *shape]}
    if ARK_BENCH.exists():
        peers["ark"] = [ARK_BENCH, "model", model, *shape, "--json", *args.ark]
    else:
        peers["ark"] = NotMeasured(f"{ARK_BENCH} is not built")
    if LLAMA_PYTHON.exists():
        peers["llama.cpp"] = [LLAMA_PYTHON, WORKERS / "llama_worker.py", float_gguf(model), *shape]
    else:
        peers["llama.cpp"] = NotMeasured("PyPI has no wheel of llama-cpp-python; scripts/bench-peers.sh --with-llama builds it")
    return peers


def float_gguf(model):
    """The same float32 weights as a GGUF file for llama.cpp, beside the ONNX file."""
    path = Path(model).with_name("smollm2.f32.gguf")
    if not path.exists():
        subprocess.run([sys.executable, WORKERS / "float_gguf.py", path.with_name("smollm2.q4_1.gguf"), path], check=True)
    return path


def measure(command):
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        raise NotMeasured(f"took longer than {TIME_LIMIT} s") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise NotMeasured(f"exit status {done.returncode}: {last}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def run_rounds(peers, rounds):
    """Results by peer, one per round, and for the others why there are none."""
    results, reasons, names = {}, {}, list(peers)
    for turn in range(rounds):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            if name in reasons:
                continue
            try:
                if isinstance(peers[name], NotMeasured):
                    raise peers[name]
                print(f"round {turn + 1} of {rounds}: {name}", file=sys.stderr)
                results.setdefault(name, []).append(measure(peers[name]))
            except NotMeasured as error:
                reasons[name] = str(error)
                results.pop(name, None)
    return results, reasons


def median(runs):
    """One result out of several: medians of the times, the maximum of the memory."""
    merged = {}
    for key in ("load_ms", "first_token_ms"):
        values = [run[key] for run in runs if key in run]
        if values:
            merged[key] = statistics.median(values)
    for key in ("packed_mb", "kv_mb"):
        if key in runs[0]:
            merged[key] = runs[0][key]
    for key, combine in (("decode_ms", statistics.median), ("prefill_ms", statistics.median), ("rss_mb", max)):
        merged[key] = {size: combine([run[key][size] for run in runs]) for size in runs[0].get(key, {})}
    return merged


def rows(figures, args):
    """(label, metric, size, unit) of each line of the table, with values by peer."""
    wanted = [(f"decode, batch {b}, {args.context} cached", "decode_ms", b, "ms") for b in args.batch.split(",")]
    wanted += [(f"prefill, {n} tokens", "prefill_ms", n, "ms") for n in args.prefill.split(",")]
    wanted += [("peak memory", "rss_mb", "peak", "MB")]
    for label, metric, size, unit in wanted:
        yield label, (metric, size), unit, {n: f[metric][size] for n, f in figures.items() if size in f.get(metric, {})}


def report(figures, reasons, args):
    peers = [name for name in ("onnxruntime", "llama.cpp") if name in figures]
    columns = ["ark"] * ("ark" in figures) + peers
    print("| " + " | ".join(["", *columns, *(f"ark : {p}" for p in peers if "ark" in figures)]) + " |")
    print("|---" * (1 + len(columns) + len(peers) * ("ark" in figures)) + "|")
    ratios = {}
    for label, key, unit, values in rows(figures, args):
        cells = [f"{values[name]:.1f} {unit}" if name in values else "-" for name in columns]
        for peer in peers if "ark" in figures else []:
            known = "ark" in values and peer in values
            if known:
                ratios[f"{peer} {key[0]} {key[1]}"] = values[peer] / values["ark"]
            cells.append(f"{values[peer] / values['ark']:.2f}" if known else "-")
        print("| " + " | ".join([label, *cells]) + " |")
    for name, reason in reasons.items():
        print(f"{name}: not measured: {reason}")
    for (metric, size), goal in GOALS.items():
        ratio = ratios.get(f"onnxruntime {metric} {size}")
        if ratio is not None:
            print(f"goal {metric} {size}: {ratio:.2f} x ONNX Runtime, wanted {goal}: {'met' if ratio >= goal else 'MISSED'}")
    memory_goal(figures)
    return ratios


def memory_goal(figures):
    ark = figures.get("ark", {})
    if "packed_mb" not in ark:
        return
    bound, peak = 1.1 * ark["packed_mb"] + ark["kv_mb"] + SPARE_MEMORY, ark["rss_mb"]["peak"]
    print(f"goal peak memory: {peak:.0f} MB, wanted at most {bound:.0f} (1.1 x {ark['packed_mb']:.0f} packed + "
          f"{ark['kv_mb']:.0f} keys and values + {SPARE_MEMORY}): {'met' if peak <= bound else 'MISSED'}")


def best_pair(results, args):
    """The ratios of the round in which both sides were disturbed least, by the sum of their times."""
    pairs = list(zip(results.get("ark", []), results.get("onnxruntime", [])))
    for label, (metric, size), _, _ in rows({}, args):
        if metric == "rss_mb" or not pairs:
            continue
        ark, peer = min(((a[metric][size], b[metric][size]) for a, b in pairs), key=sum)
        print(f"quietest round, {label}: ark {ark:.1f} ms, onnxruntime {peer:.1f} ms, ratio {peer / ark:.2f}")


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return f"{os.cpu_count()} cores"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="ONNX file (default: SmolLM2 in the user's cache)")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--context", default="128")
    parser.add_argument("--prefill", default="128,512")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("ark", nargs="*", help="after --: more options of ark-bench model, such as --tp 2")
    args = parser.parse_args()
    model = args.model
    if not model:
        found = subprocess.run([sys.executable, ROOT / "models" / "smollm2.py"], capture_output=True, text=True, check=True)
        model = found.stdout.strip()
    results, reasons = run_rounds(commands(args, model), args.rounds)
    figures = {name: median(runs) for name, runs in results.items()}
    print(f"{processor()}; {args.threads} threads, float32, medians of {args.rounds} rounds")
    ratios = report(figures, reasons, args)
    best_pair(results, args)
    print(json.dumps({"figures": figures, "speed_ratios": ratios, "not_measured": reasons, "machine": processor()}))


if __name__ == "__main__":
    main()

"""ark against ONNX Runtime, OpenVINO and llama.cpp on the weights of SmolLM2-135M-Instruct, each precision for itself.

Each peer is a fresh process that prints one JSON line with the fields of `ark-bench model`. The peers take turns, for
several rounds, so that a slow spell of the machine meets all of them; the figures are medians over the rounds. Ratios
are speeds: above 1 ark is faster. decode is one step for a batch with so many tokens cached, prefill one prompt.

All start from the same float32 file. f32: as it is; ark keeps its weights in fewer bits where no bit of a result changes,
unless asked for --weights f32 behind --. bf16: ark's --weights bf16, OpenVINO's precision hint, llama.cpp's BF16. int8 and
int4: ark's --weights; ONNX Runtime's quantize_dynamic, and its MatMulNBits quantizer; NNCF's compression; Q8_0, Q4_0."""

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
PEERS_PYTHON = Path(os.environ.get("ARK_PEERS_PYTHON", ROOT / ".venv-peers" / "bin" / "python"))
PEERS = ["onnxruntime", "openvino", "llama.cpp"]
GGUF = {"f32": "f32", "bf16": "bf16", "int8": "q8_0", "int4": "q4_0"}
GOALS = {("decode_ms", "1"): 0.8, ("decode_ms", "8"): 1.0}  # of ONNX Runtime's speed
SPARE_MEMORY = 64  # MB that ark may take beside 1.1 x packed weights and what it keeps of keys and values
TIME_LIMIT = 900  # seconds for one peer in one round


class NotMeasured(Exception):
    pass


def commands(args, model, precision):
    """Each peer's command, or why there is none."""
    shape = ["--batch", args.batch, "--context", args.context, "--prefill", args.prefill, "--threads", args.threads]
    weights = [] if precision == "f32" else ["--weights", precision]

    def ark():
        if not ARK_BENCH.exists():
            raise NotMeasured(f"{ARK_BENCH} is not built")
        return [ARK_BENCH, "model", model, *shape, "--json", *weights, *args.ark]

    def onnxruntime():
        return [sys.executable, WORKERS / "onnxruntime_worker.py", quantized_onnx(model, precision), *shape]

    def openvino():
        need("openvino")
        return [PEERS_PYTHON, WORKERS / "openvino_worker.py", model, *shape, "--precision", precision]

    def llama():
        need("llama_cpp", "llama")
        return [PEERS_PYTHON, WORKERS / "llama_worker.py", gguf(model, GGUF[precision]), *shape]

    peers = {}
    for name, command in zip(["ark", *PEERS], (ark, onnxruntime, openvino, llama)):
        try:
            peers[name] = command()
        except NotMeasured as why:
            peers[name] = why
    return peers


def need(package, option=None):
    if not PEERS_PYTHON.exists() or subprocess.run([PEERS_PYTHON, "-c", f"import {package}"], capture_output=True).returncode:
        raise NotMeasured(f"{package} is not there; scripts/bench-peers.sh --with-{option or package} installs it")


def made(path, command):
    """The file, after the command that makes it from others beside it. `PATH` in the command is where it is written."""
    if not path.exists():
        part = path.with_name("part-" + path.name)
        subprocess.run([str(part) if c == "PATH" else str(c) for c in command], check=True, stdout=sys.stderr)
        part.rename(path)
    return path


def quantized_onnx(model, precision):
    """What ONNX Runtime's own tools make of the file."""
    if precision == "f32":
        return model
    if precision == "bf16":
        raise NotMeasured("ONNX Runtime has no bf16 on CPUs")
    path = Path(model).with_name(f"{Path(model).stem}.ort-{precision}.onnx")
    if precision == "int4":
        need("onnx_ir", "openvino")
    python = PEERS_PYTHON if precision == "int4" else sys.executable
    return made(path, [python, WORKERS / "onnxruntime_quantize.py", model, "PATH", precision])


def gguf(model, kind):
    """The same float32 weights as a GGUF file for llama.cpp, or what llama.cpp makes of them."""
    path = Path(model).with_name(f"smollm2.{kind}.gguf")
    if not path.with_name("smollm2.q4_1.gguf").exists():
        raise NotMeasured("its weights as GGUF are not beside the file")
    if kind == "f32":
        return made(path, [sys.executable, WORKERS / "float_gguf.py", path.with_name("smollm2.q4_1.gguf"), "PATH"])
    return made(path, [PEERS_PYTHON, WORKERS / "llama_quantize.py", gguf(model, "f32"), "PATH", kind])


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


def report(figures, reasons, args, precision):
    peers = [name for name in PEERS if name in figures]
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
    for (metric, size), goal in GOALS.items() if precision == "f32" else ():
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
    for name in PEERS:
        pairs = list(zip(results.get("ark", []), results.get(name, [])))
        for label, (metric, size), _, _ in rows({}, args):
            if metric == "rss_mb" or not pairs:
                continue
            ark, peer = min(((a[metric][size], b[metric][size]) for a, b in pairs), key=sum)
            print(f"quietest round, {label}: ark {ark:.1f} ms, {name} {peer:.1f} ms, ratio {peer / ark:.2f}")


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
    parser.add_argument("--precision", default="f32", help="some of f32,bf16,int8,int4")
    parser.add_argument("ark", nargs="*", help="after --: more options of ark-bench model, such as --tp 2")
    args = parser.parse_args()
    model = args.model
    if not model:
        found = subprocess.run([sys.executable, ROOT / "models" / "smollm2.py"], capture_output=True, text=True, check=True)
        model = found.stdout.strip()
    for precision in args.precision.split(","):
        if precision not in GGUF:
            parser.error(f"--precision '{precision}' is none of {', '.join(GGUF)}")
    everything = {"machine": processor()}
    for precision in args.precision.split(","):
        results, reasons = run_rounds(commands(args, model, precision), args.rounds)
        figures = {name: median(runs) for name, runs in results.items()}
        print(f"{processor()}; {args.threads} threads, {precision}, medians of {args.rounds} rounds")
        ratios = report(figures, reasons, args, precision)
        best_pair(results, args)
        everything[precision] = {"figures": figures, "speed_ratios": ratios, "not_measured": reasons}
    print(json.dumps(everything))


if __name__ == "__main__":
    main()

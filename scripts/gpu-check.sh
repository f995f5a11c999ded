#!/usr/bin/env bash
# One command for a machine with a GPU: is ark right there, and how fast? Builds nothing, needs no network, takes at
# most 10 minutes. Wants emulator_test, cuda_test and ark-run (stripped ones do) in --bin, NVRTC on the machine.
#   --bin DIR   where the binaries lie (build/bin)      --out DIR   for logs, results.json, results.md (gpu-check)
#   --model M   a SmolLM2 folder for its published tokens (default: the cache's, if it is there)
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$root/build/bin
out=gpu-check
model=${XDG_CACHE_HOME:-$HOME/.cache}/ark/smollm2-135m-instruct
while (($#)); do
  case $1 in
    --bin) bin=$2 ;;
    --out) out=$2 ;;
    --model) model=$2 ;;
    *) sed -n '2,6p' "$0"; exit 64 ;;
  esac
  shift 2
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
bin=$(cd "$bin" && pwd)
export ARK_GPU=1 ARK_GPU_RESULTS=$out/figures.jsonl ARK_CACHE_DIR=$out/cache
: >"$ARK_GPU_RESULTS"
: >"$out/steps.tsv"
started=$SECONDS
budget=580

# step NAME LIMIT COMMAND...: runs it within what is left; a log and a line of steps.tsv for each.
step() {
  local name=$1 limit=$2 left=$((budget - (SECONDS - started))) verdict=pass before=$SECONDS
  shift 2
  if ((left < 5)); then
    verdict="skipped (out of time)"
  else
    timeout -k 5 $((limit < left ? limit : left)) "$@" >"$out/$name.log" 2>&1
    local status=$?
    if ((status == 77)); then verdict="skipped ($(tail -1 "$out/$name.log"))"; elif ((status)); then verdict="FAIL ($status)"; fi
  fi
  printf '%s\t%s\t%s\n' "$name" "$verdict" $((SECONDS - before)) | tee -a "$out/steps.tsv"
}

sanitizer() {
  local tool
  tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) || {
    echo "no compute-sanitizer"
    return 77
  }
  "$tool" --error-exitcode 9 "$bin/emulator_test" \
    --gtest_filter='DeviceExecutor.CopiesPages*:DeviceExecutor.TwoStepsInFlight*'
}

# A process that is killed in the middle of a step must leave a GPU that works.
kill_one() {
  "$bin/emulator_test" --gtest_filter='DeviceSoak.Repeated*' --gtest_repeat=100 &
  local victim=$!
  sleep 6
  kill -KILL $victim
  wait $victim 2>/dev/null
  "$bin/emulator_test" --gtest_filter='DeviceExecutor.CopiesPages*'
}

smollm2() {
  [[ -e $model/smollm2.onnx ]] || {
    echo "no $model/smollm2.onnx"
    return 77
  }
  local prompt="The capital of France is"
  diff <("$bin/ark-run" "$model/smollm2.onnx" --prompt "$prompt" --max-tokens 24 --device cpu) \
    <("$bin/ark-run" "$model/smollm2.onnx" --prompt "$prompt" --max-tokens 24 --device cuda)
}

export -f sanitizer kill_one smollm2  # timeout runs commands, not functions
export bin model
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,memory.total --format=csv,noheader \
  >"$out/card.txt" 2>/dev/null || echo "unknown card" >"$out/card.txt"
step conformance 200 "$bin/emulator_test" --gtest_filter='DeviceExecutor.*-*Barriers*:*Abort*'
step barrier-equals-counters 30 "$bin/emulator_test" --gtest_filter='DeviceExecutor.Barriers*'
step repeat-1000 60 "$bin/emulator_test" --gtest_filter='DeviceSoak.Repeated*'
step ranks 40 "$bin/emulator_test" --gtest_filter='DeviceSoak.FourRanks*'
step abort 20 "$bin/emulator_test" --gtest_filter='DeviceExecutor.Abort*'
step kill 40 bash -c kill_one
step smollm2-tokens 60 bash -c smollm2
step compute-sanitizer 90 bash -c sanitizer
step figures 200 "$bin/emulator_test" --gtest_filter='GpuBench.*'

python3 - "$out" <<'PYTHON'
import json, pathlib, sys
out = pathlib.Path(sys.argv[1])
steps = [dict(zip(("name", "verdict", "seconds"), line.split("\t"))) for line in (out / "steps.tsv").read_text().splitlines()]
figures = [json.loads(line) for line in (out / "figures.jsonl").read_text().splitlines()]
card = (out / "card.txt").read_text().strip()
(out / "results.json").write_text(json.dumps({"card": card, "steps": steps, "figures": figures}, indent=1) + "\n")
lines = [f"Card: {card}", "", "| check | verdict | s |", "|---|---|---|"]
lines += [f"| {s['name']} | {s['verdict']} | {s['seconds']} |" for s in steps]
lines += ["", "| figure | value | byte floor |", "|---|---|---|"]
lines += [f"| {f['name']} | {f['value']:.2f} {f['unit']} | {f['floor']:.1f} |" for f in figures]
(out / "results.md").write_text("\n".join(lines) + "\n")
print("\n".join(lines))
sys.exit(any(s["verdict"].startswith("FAIL") for s in steps))
PYTHON

#!/usr/bin/env bash
# One command for a machine with a GPU: is ark right there, and how fast? Builds nothing, needs no network, takes at most
# 10 minutes. Wants emulator_test, ark-run, ark-bench and ark-inspect in --bin, NVRTC on the machine (of a toolkit or
# Python's wheel).
#   --bin DIR   where the binaries lie (build/bin)
#   --out DIR   for logs, results.json, results.md (gpu-check), all but the cache also as DIR.tgz
#   --model M   a SmolLM2 folder for its published tokens (default: the cache's, if it is there)
#   --pack DIR  instead: fills DIR, on the machine that built them, with all that a bare machine's --bin needs
set -uo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$root/build/bin
out=gpu-check
model=${XDG_CACHE_HOME:-$HOME/.cache}/ark/smollm2-135m-instruct
pack=
while (($#)); do
  case $1 in
    --bin) bin=$2 ;;
    --out) out=$2 ;;
    --model) model=$2 ;;
    --pack) pack=$2 ;;
    *) sed -n '2,8p' "$0"; exit 64 ;;
  esac
  shift 2
done

# What check_fixtures.py reads of the exported decoders.
pack_fixtures() {
  local from=$root/../shared/fixtures file folder
  for file in "$from"/*/expected.json; do
    folder=${file%/*}
    [[ -e $folder/model.onnx ]] && grep -q '"greedy"' "$file" || continue
    mkdir -p "$1/${folder##*/}" && cp "$folder"/model.onnx* "$folder"/*.json "$1/${folder##*/}" || return
  done
}

# Binaries, stripped, and in lib/ what they load beside the C library; the compiler's own in lib/compiler, for machines
# whose are older. A machine lends what it calls its own: at most 64 MiB travel there.
pack_binaries() {
  local to=$1 programs=("$bin/emulator_test" "$bin/ark-run" "$bin/ark-bench" "$bin/ark-inspect") library name folder bytes
  mkdir -p "$to/lib/compiler" || return
  for program in "${programs[@]}"; do strip -o "$to/${program##*/}" "$program" || return; done
  ldd "${programs[@]}" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | while read -r library; do
    name=${library##*/} folder=$to/lib
    case $name in
      libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | ld-linux*) continue ;;
      libstdc++.so.* | libgcc_s.so.*) folder=$to/lib/compiler ;;
    esac
    strip -o "$folder/$name" "$(readlink -f "$library")" || return
  done || return
  pack_fixtures "$to/fixtures" || return
  bytes=$(du -sb "$to" | cut -f1)
  echo "$to: $((bytes >> 20)) MiB"
  ((bytes < 64 << 20)) || { echo "more than 64 MiB" && return 1; }
}
if [[ $pack ]]; then
  pack_binaries "$pack"
  exit
fi

mkdir -p "$out"
out=$(cd "$out" && pwd)
bin=$(cd "$bin" && pwd)
starts() { "$bin/emulator_test" --gtest_list_tests >/dev/null 2>"$out/start.log"; }
starts || export LD_LIBRARY_PATH=$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
starts || export LD_LIBRARY_PATH=$bin/lib/compiler:$LD_LIBRARY_PATH
starts || { echo "emulator_test does not start: $(head -1 "$out/start.log"); see --pack" && exit 69; }

# NVRTC of a Python wheel that no virtual environment leads to; one of the driver's version of CUDA first.
if [[ -z ${ARK_NVRTC:-} ]] && ! ldconfig -p 2>/dev/null | grep -q libnvrtc.so &&
  ! ls /usr/local/cuda/lib64/libnvrtc.so* >/dev/null 2>&1; then
  major=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -1)
  wheel=$(python3 -c '
import glob, site, sys
folders = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
files = [f for d in folders for f in sorted(glob.glob(d + "/nvidia/*/lib/libnvrtc.so.*"))]
files.sort(key=lambda f: f".so.{sys.argv[1]}" not in f)
print(files[0].rpartition("/")[0] if files else "")' "$major") || wheel=
  if [[ $wheel ]]; then export ARK_NVRTC=$wheel; fi
fi

export ARK_GPU=1 ARK_GPU_RESULTS=$out/figures.jsonl ARK_CACHE_DIR=$out/cache
: >"$ARK_GPU_RESULTS"
: >"$out/steps.tsv"
started=$SECONDS
budget=580

# step NAME LIMIT COMMAND...: runs it within what is left; a log and a line of steps.tsv for each.
step() {
  local name=$1 limit=$2 left=$((budget - (SECONDS - started))) verdict=pass before=$SECONDS
  shift 2
  export step_seconds=$((limit < left ? limit : left))  # gpu_peers.py reads it
  if ((left < 5)); then
    verdict="skipped (out of time)"
  else
    timeout -k 5 $step_seconds "$@" >"$out/$name.log" 2>&1
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
  "$bin/emulator_test" --gtest_filter='DeviceSoak.Repeated*' --gtest_repeat=100000 &
  local victim=$!
  sleep 6
  kill -KILL $victim || { echo "it ended before it was killed" && return 1; }
  wait $victim 2>/dev/null
  (($? == 137)) || { echo "it ended otherwise than by the kill" && return 1; }
  "$bin/emulator_test" --gtest_filter='DeviceExecutor.CopiesPages*'
}

smollm2() {
  [[ -e $model/smollm2.onnx ]] || {
    echo "no $model/smollm2.onnx"
    return 77
  }
  local prompt="The capital of France is" device
  for device in cpu cuda; do
    "$bin/ark-run" "$model/smollm2.onnx" --prompt "$prompt" --max-tokens 24 --device $device >"$out/tokens-$device" &&
      [[ -s $out/tokens-$device ]] || { echo "no tokens from --device $device" && return 1; }
  done
  diff "$out/tokens-cpu" "$out/tokens-cuda"
}

# Exported decoders: the tokens that ONNX Runtime gives. "$@": what check_fixtures.py is told beside.
fixtures() {
  local folder=$bin/fixtures
  [[ -d $folder ]] || folder=$root/../shared/fixtures
  [[ -d $folder ]] || {
    echo "no fixtures"
    return 77
  }
  python3 "$root/scripts/check_fixtures.py" "$bin/ark-run" "$folder" --device cuda --prompts 1 "$@"
}

export -f sanitizer kill_one smollm2 fixtures  # timeout runs commands, not functions
export bin model out root
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,memory.total --format=csv,noheader \
  >"$out/card.txt" 2>/dev/null || echo "unknown card" >"$out/card.txt"
# Figures first: they are what a card is lent for. The last ones may run out of time: conformance compiles dozens of
# kernels, and launches side by side may have to wait for a deadline.
step figures 120 "$bin/emulator_test" --gtest_filter='GpuBench.*'
# Predicted beside measured, phase by phase: the log is what the table of rates is corrected from.
step cost 60 python3 "$root/scripts/gpu_cost.py" --bin "$bin" --out "$out/cost.json"
grep -h . "$out/cost.log"
step peers 150 python3 "$root/scripts/gpu_peers.py" --bin "$bin" --out "$ARK_GPU_RESULTS" \
  --smollm2 "$model/smollm2.onnx"
step barrier-equals-counters 30 "$bin/emulator_test" --gtest_filter='DeviceExecutor.Barriers*'
step repeat-1000 60 "$bin/emulator_test" --gtest_filter='DeviceSoak.Repeated*'
step ranks 60 "$bin/emulator_test" --gtest_filter='DeviceSoak.FourRanks*:PostedLinks.*'
step abort 20 "$bin/emulator_test" --gtest_filter='DeviceExecutor.Abort*'
step kill 40 bash -c kill_one
step smollm2-tokens 60 bash -c smollm2
step fixtures 120 bash -c fixtures
# Processes that take turns on one GPU: slow, but they exchange through the host's memory as those of several do.
step processes 60 bash -c 'fixtures --only gpt2-optimum llama-optimum --options "--tp 2 --processes"'
step compute-sanitizer 60 bash -c sanitizer
step conformance 300 "$bin/emulator_test" --gtest_filter='DeviceExecutor.*-*Barriers*:*Abort*'
step host-links 120 "$bin/emulator_test" --gtest_filter='*GpuPerRank*'

python3 "$root/scripts/gpu_results.py" "$out"
status=$?
tar -czf "$out.tgz" --exclude=cache -C "$(dirname "$out")" "$(basename "$out")"  # some machines send back few files
exit $status

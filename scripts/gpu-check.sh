#!/usr/bin/env bash
# One command for a machine with a GPU: is ark right there, and how fast? Builds nothing, needs no network, takes at
# most 10 minutes. Wants emulator_test, ark-run, ark-serve, ark-bench and ark-inspect in --bin, NVRTC on the machine (of a
# toolkit or Python's wheel).
#   --part P    first: first light, right or wrong, figures, where the time goes, in 270 s; then peers (served and
#               compared) and long (what may hang comes last), into the same --out. Without: all of it
#   --dry-run   the same without a card: tests on the emulator, programs on the CPU, with small models
#   --bin DIR   where the binaries lie (build/bin)
#   --out DIR   for logs, results.json, results.md (gpu-check), all but the cache also as DIR.tgz
#   --model M   a SmolLM2 folder (default: the cache's, if it is there); without, a decoder of its shape
#   --pack DIR  instead: fills DIR, on the machine that built them, with all that a bare machine's --bin needs
set -uo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$root/build/bin
out=gpu-check
model=${XDG_CACHE_HOME:-$HOME/.cache}/ark/smollm2-135m-instruct
pack='' part=all dry_run=''
usage() { sed -n '2,13p' "$0" && exit 64; }
while (($#)); do
  case $1 in
    --dry-run) dry_run=yes && shift && continue ;;
    --part | --bin | --out | --model | --pack) (($# > 1)) || usage ;;
    *) usage ;;
  esac
  declare "${1#--}=$2"
  shift 2
done
case $part in
  first) budget=270 ;;
  peers) budget=300 ;;
  long | all) budget=580 ;;
  *) usage ;;
esac

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
  local to=$1 programs=("$bin"/{emulator_test,ark-run,ark-serve,ark-bench,ark-inspect}) library name folder bytes
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

python=python3  # with numpy, for models of random weights
if [[ -x $root/.venv/bin/python ]]; then python=$root/.venv/bin/python; fi
export ARK_GPU_RESULTS=$out/figures.jsonl ARK_CACHE_DIR=$out/cache
device=cuda small=()
if [[ $dry_run ]]; then device=cpu small=(--small) && unset ARK_GPU; else export ARK_GPU=1; fi
[[ -d $bin/fixtures ]] && export ARK_FIXTURES=$bin/fixtures
# Later parts go on in the files of the first.
if [[ $part == first || $part == all || ! -e $out/steps.tsv ]]; then
  : >"$ARK_GPU_RESULTS"
  : >"$out/steps.tsv"
fi
started=$SECONDS

# step NAME LIMIT COMMAND...: runs it within what is left; a log and a line of steps.tsv for each.
step() {
  local name=$1 limit=$2 left=$((budget - (SECONDS - started))) verdict=pass before=$SECONDS
  shift 2
  if [[ $dry_run ]]; then limit=$left; fi  # kernels of the emulator take a C++ compiler's time
  export step_seconds=$((limit < left ? limit : left))  # gpu_peers.py reads it
  if [[ -e $out/dark ]]; then
    verdict="skipped (no first light)"
  elif ((left < 5)); then
    verdict="skipped (out of time)"
  else
    timeout -k 5 $step_seconds "$@" >"$out/$name.log" 2>&1
    local status=$?
    if ((status == 77)); then verdict="skipped ($(tail -1 "$out/$name.log"))"; elif ((status)); then verdict="FAIL ($status)"; fi
  fi
  printf '%s\t%s\t%s\n' "$name" "$verdict" $((SECONDS - before)) | tee -a "$out/steps.tsv"
  [[ $verdict != FAIL* ]]
}
tests() { "$bin/emulator_test" --gtest_brief=1 --gtest_filter="$1"; }

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
  tests 'DeviceExecutor.CopiesPages*'
}

# Exported decoders: the tokens that ONNX Runtime gives. "$@": what check_fixtures.py is told beside.
fixtures() {
  local folder=${ARK_FIXTURES:-$root/../shared/fixtures}
  [[ -d $folder ]] || {
    echo "no fixtures"
    return 77
  }
  $python "$root/scripts/check_fixtures.py" "$bin/ark-run" "$folder" --device $device --prompts 1 "$@"
}

export -f tests sanitizer kill_one fixtures  # timeout runs commands, not functions
export bin out root device python
if [[ $dry_run ]]; then
  echo "none: a dry run, the emulator and the CPU in its place"
else
  nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,memory.total --format=csv,noheader \
    2>/dev/null || echo "unknown card"
fi >"$out/card.txt"

# Right or wrong, how fast, where the time goes. Without first light nothing else is tried: the lease is kept.
first() {
  rm -f "$out/dark"
  step first-light 40 bash -c "tests 'DeviceExecutor.CopiesPages*'" || : >"$out/dark"
  step correctness 60 bash -c \
    "tests 'DeviceExecutor.Barriers*:DeviceSoak.*:DeviceExecutor.Abort*:PostedLinks.Give*:Exported/Fixture.*/llama_optimum'"
  step figures 90 bash -c "tests 'GpuBench.*'"
  # Predicted beside measured, phase by phase: the log is what the table of rates is corrected from.
  step cost 60 $python "$root/scripts/gpu_cost.py" --bin "$bin" --out "$out/cost.json" --device $device "${small[@]}"
  [[ -e $out/cost.log ]] && grep -h . "$out/cost.log"
}
peers() {
  step peers 150 $python "$root/scripts/gpu_peers.py" --bin "$bin" --out "$ARK_GPU_RESULTS" \
    --smollm2 "$model/smollm2.onnx" --device $device "${small[@]}"
  step served 120 $python "$root/scripts/gpu_serve.py" --bin "$bin" --out "$ARK_GPU_RESULTS" \
    --smollm2 "$model/smollm2.onnx" --device $device "${small[@]}"
}
# What may hang comes last: launches side by side may have to wait for a deadline, of 5 s on a card.
long() {
  step exported 90 bash -c "tests 'Exported/Fixture.*'"
  step fixtures 120 bash -c fixtures
  # Processes that take turns on one GPU: slow, but they exchange as those of several do.
  step processes 60 bash -c 'fixtures --only gpt2-optimum llama-optimum --options "--tp 2 --processes"'
  step kill 40 bash -c kill_one
  step compute-sanitizer 60 bash -c sanitizer
  step conformance 300 bash -c "tests 'DeviceExecutor.*-*Barriers*:*Abort*'"
  step host-links 120 bash -c "tests '*GpuPerRank*'"
}
if [[ $part == all ]]; then first; peers; long; else $part; fi

$python "$root/scripts/gpu_results.py" "$out"
status=$?
tar -czf "$out.tgz" --exclude=cache -C "$(dirname "$out")" "$(basename "$out")"  # some machines send back few files
exit $status

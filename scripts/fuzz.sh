#!/usr/bin/env bash
# Builds one fuzzer with clang's address and undefined-behaviour sanitizers and runs it.
#   scripts/fuzz.sh TARGET [--hours N | --seconds N]    tests/fuzz/TARGET.cc; 300 s unless told otherwise
# It begins with the seeds in tests/fuzz/corpus/TARGET; what it learns stays in build-asan/corpus/TARGET, what breaks it
# in build-asan/TARGET-*. To run one input again: build-asan/bin/TARGET FILE.
set -euo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/packages.sh"
usage() { sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
if (($# < 1)) || [[ $1 == --help || $1 == -h ]]; then usage && exit $(($# < 1 ? 64 : 0)); fi
target=$1 seconds=300
if [[ ! -f $root/tests/fuzz/$target.cc ]]; then
  echo "fuzz.sh: there is no tests/fuzz/$target.cc; there are: $(cd "$root/tests/fuzz" && echo *_fuzz.cc)" >&2 && exit 64
fi
case ${2:-} in
  --hours) seconds=$((${3:?} * 3600)) ;;
  --seconds) seconds=${3:?} ;;
  "") ;;
  *) usage >&2 && exit 64 ;;
esac
options=$root/tests/fuzz/$target.options length=4096
if [[ -f $options ]]; then length=$(sed -n 's/^max_len = //p' "$options"); fi
install_packages clang libclang-rt-14-dev
"$root/scripts/build.sh" --with-tests --dir build-asan -DARK_SANITIZE=address,undefined -DARK_FUZZ=ON \
  -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang "$target"
corpus=$root/build-asan/corpus/$target seeds=$root/tests/fuzz/corpus/$target
mkdir -p "$corpus"
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
exec "$root/build-asan/bin/$target" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=1024 -max_len="$length" \
  -artifact_prefix="$root/build-asan/$target-" -print_final_stats=1 "$corpus" "$seeds"

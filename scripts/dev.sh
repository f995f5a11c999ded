#!/usr/bin/env bash
# After an edit: builds one folder's tests, each file compiled alone, and runs them.
#   scripts/dev.sh FOLDER [FILTER]
#     base importer dma engine server text scheduler cuda emulator   GoogleTest; FILTER as *FILTER*
#     end_to_end models rules                                        pytest; FILTER as -k FILTER
# Its build is build-dev/: by clang where it is installed (half of gcc's time), little optimised. ARK_DEV_CMAKE holds
# further options for cmake, for instance -DCMAKE_BUILD_TYPE=Debug.
set -euo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage() { sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
if (($# < 1)) || [[ $1 == --help || $1 == -h ]]; then usage && exit $(($# < 1 ? 64 : 0)); fi
folder=$1 filter=${2:-}
dir=build-dev

build() {
  local options=()
  if [[ $dir == build-dev && ! -f $root/$dir/build.ninja ]]; then
    options=(-DARK_UNITE=OFF -DARK_OPTIMIZE=-O1)
    # The emulator's kernels need gcc's instrumentation; its build is the tests' own.
    if command -v clang++ >/dev/null; then options+=(-DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang); fi
    read -ra more <<<"${ARK_DEV_CMAKE:-}"
    options+=("${more[@]}")
  fi
  "$root/scripts/build.sh" --with-tests --dir "$dir" "${options[@]}" "$@"
}

case $folder in
  end_to_end | models)
    "$root/scripts/venv.sh"
    build ark-serve ark-run ark-inspect ark-bench ark-render ark-tokenize
    ARK_BIN=$root/$dir/bin exec "$root/.venv/bin/python" -m pytest -q -p no:cacheprovider "$root/tests/$folder" \
      ${filter:+-k "$filter"}
    ;;
  rules)
    "$root/scripts/venv.sh"
    exec "$root/.venv/bin/python" -m pytest -q -p no:cacheprovider "$root/tests/rules" ${filter:+-k "$filter"}
    ;;
  emulator) dir=build ;;
esac
if [[ ! $folder =~ ^[a-z]+$ ]]; then echo "dev.sh: '$folder' is no folder of tests; --help lists them" >&2 && exit 64; fi
build "${folder}_test"
exec "$root/$dir/bin/${folder}_test" --gtest_brief=1 ${filter:+--gtest_filter="*$filter*"}

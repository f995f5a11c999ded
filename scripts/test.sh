#!/usr/bin/env bash
# Installs, builds and runs every test; the last line is `N passed, N failed, N skipped`.
#   --quick   without sanitizer and fuzzer builds        --full   longer random tests (ARK_FULL=1)
#   --install-rest   only installs what tests need and the build does not, which run_tests.py does beside the build
set -euo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/packages.sh"

if [[ " $* " == *" --install-rest "* ]]; then
  if [[ " $* " != *" --quick "* ]]; then
    install_packages clang libclang-rt-14-dev || echo "no clang: the fuzzers will be skipped" >&2
  fi
  install_packages clang-format graphviz || echo "no clang-format, no dot: formatting and pictures will not be checked" >&2
  install_packages prometheus || echo "no promtool: the metrics will not be checked by it" >&2
  if [[ -n ${CI:-} ]]; then  # elsewhere only if it is there: it starts a web server
    install_packages nginx || echo "no nginx: the proxy of docs/serving.md will not be tried" >&2
  fi
  exit 0
fi

# What the build looks for.
"$root/scripts/build.sh" --install-only --with-tests
install_packages libibverbs-dev || echo "no libibverbs: transport verbs will be neither built nor tested" >&2
install_packages libucx-dev || echo "no libucx: transport ucx will be neither built nor tested" >&2
if [[ -n ${CI:-} ]]; then  # elsewhere only if it is there: it is large
  install_packages libopenmpi-dev openmpi-bin || echo "no Open MPI: mpirun will not be tried" >&2
fi
exec python3 "$root/scripts/run_tests.py" "$@"

#!/usr/bin/env bash
# Installs, builds and runs every test; the last line is `N passed, N failed, N skipped`.
#   --quick   without sanitizer and fuzzer builds        --full   longer random tests (ARK_FULL=1)
set -euo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/packages.sh"
"$root/scripts/build.sh" --install-only --with-tests
if [[ " $* " != *" --quick "* ]]; then
  install_packages clang libclang-rt-14-dev || echo "no clang: the fuzzers will be skipped" >&2
fi
install_packages clang-format graphviz || echo "no clang-format, no dot: formatting and pictures will not be checked" >&2
if [[ -n ${CI:-} ]]; then  # elsewhere only if they are there: one starts a web server, the other is large
  install_packages libopenmpi-dev openmpi-bin || echo "no Open MPI: mpirun will not be tried" >&2
  install_packages nginx || echo "no nginx: the proxy of docs/serving.md will not be tried" >&2
fi
install_packages libibverbs-dev || echo "no libibverbs: transport verbs will be neither built nor tested" >&2
install_packages libucx-dev || echo "no libucx: transport ucx will be neither built nor tested" >&2
install_packages prometheus || echo "no promtool: the metrics will not be checked by it" >&2
exec python3 "$root/scripts/run_tests.py" "$@"

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
if [[ -n ${CI:-} ]]; then  # elsewhere only if it is there: its package starts a web server
  install_packages nginx || echo "no nginx: the proxy of docs/serving.md will not be tried" >&2
fi
install_packages prometheus || echo "no promtool: the metrics will not be checked by it" >&2
exec python3 "$root/scripts/run_tests.py" "$@"

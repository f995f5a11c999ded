#!/usr/bin/env bash
# Installs what the build needs, then builds into build/ (executables in build/bin).
# usage: scripts/build.sh [--install-only] [--with-tests] [--with-cluster] [--dir DIR] [-DNAME=VALUE ...] [TARGET ...]
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/packages.sh

dir=build install_only=no with_tests=no with_cluster=no options=() targets=()
while (($#)); do
  case $1 in
    --install-only) install_only=yes ;;
    --with-tests) with_tests=yes ;;
    --with-cluster) with_cluster=yes ;;
    --dir)
      if (($# < 2)); then echo "build.sh: --dir needs a folder" >&2 && exit 64; fi
      dir=$2 && shift ;;
    -D*) options+=("$1") ;;
    -*) echo "build.sh: unknown option $1" >&2 && exit 64 ;;
    *) targets+=("$1") ;;
  esac
  shift
done

install_packages g++ cmake ninja-build ccache mold pkg-config git curl ca-certificates python3 python3-venv \
  libprotobuf-dev libcpp-httplib-dev nlohmann-json3-dev libcli11-dev libssl-dev libpcre2-dev libutf8proc-dev
if [[ $with_tests == yes ]]; then install_packages libgtest-dev libgmock-dev; fi
# For several machines: what starts ranks by MPI, what RDMA and other fabrics are reached by. Options of CMake look for the headers.
if [[ $with_cluster == yes ]]; then
  install_packages libopenmpi-dev openmpi-bin libibverbs-dev libucx-dev
  options+=(-DARK_MPI=ON)  # looks again
fi
if [[ $install_only == yes ]]; then exit 0; fi

# One build of a directory at a time.
mkdir -p "$dir"
exec 9>"$dir/.lock"
flock 9
if [[ ! -f $dir/build.ninja ]] || ((${#options[@]})); then
  cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=Release "${options[@]}" >"$dir/cmake.log" 2>&1 ||
    { tail -n 40 "$dir/cmake.log" >&2 && exit 1; }
fi
# One line that counts on a terminal; standard output belongs to what is started next.
NINJA_STATUS='[%f/%t, %e s] ' ninja -C "$dir" "${targets[@]}" >&2 9>&-

#!/usr/bin/env bash
# Runs a command in a virtual machine with soft-RoCE devices, over this machine's files (written ones are lost):
#   scripts/rdma-vm.sh [--devices N] [--two-nodes] [--seconds N] COMMAND [ARGUMENT...]
# Its exit status is the command's; 124: out of time; 125: there is no such machine here, and why.
set -uo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/packages.sh"
install_packages qemu-system-x86 busybox-static iproute2 ibverbs-providers python3 ||
  { echo "rdma-vm.sh: its Debian packages cannot be had" >&2 && exit 125; }
exec python3 "$root/scripts/rdma_vm.py" "$@"

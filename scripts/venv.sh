#!/usr/bin/env bash
# Makes the project's Python environment .venv, or brings it up to date when the requirements changed.
# Quick when nothing did; two runs at once are safe.
set -euo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${ARK_VENV:-$root/.venv}
requirements=$root/scripts/requirements.txt
stamp=$venv/.requirements.sha256

mkdir -p "$venv"
exec 9>"$venv/.lock"
flock 9
wanted="$(sha256sum <"$requirements") $(python3 --version)"
if [[ -f $stamp && $(<"$stamp") == "$wanted" && -x $venv/bin/python ]]; then exit 0; fi
echo "installing Python packages into $venv" >&2
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$requirements"
printf '%s' "$wanted" >"$stamp"

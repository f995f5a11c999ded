#!/usr/bin/env bash
# A CycloneDX 1.5 bill of materials on standard output: what an executable is linked with, the headers it is built
# from, and the Python packages of the tests and of scripts/serve.sh.
#   scripts/sbom.sh [EXECUTABLE]      default: build/bin/ark-serve
set -euo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
executable=${1:-$root/build/bin/ark-serve}
if [[ ! -x $executable ]]; then echo "sbom.sh: $executable is missing; scripts/build.sh makes it" >&2 && exit 66; fi
exec python3 - "$executable" "$root/scripts/requirements.txt" <<'PYTHON'
import json, re, subprocess, sys
from pathlib import Path

HEADERS = ["libcli11-dev", "nlohmann-json3-dev"]  # libraries without a shared object


def output(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout


def owner(library):
    """The Debian package of a file, which may lie behind /usr's links."""
    for path in library, str(Path(library).resolve()), "/usr" + library:
        found = output("dpkg-query", "-S", path)
        if found:
            return found.split(": ")[0].split(",")[0]
    return None


def debian(package):
    name, version, arch = output("dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}", package).split()
    return {"type": "library", "name": name, "version": version, "purl": f"pkg:deb/debian/{name}@{version}?arch={arch}"}


executable, requirements = sys.argv[1:]
linked = re.findall(r"(/\S+) \(0x", output("ldd", executable))
packages = {owner(library) for library in linked} - {None} | {p for p in HEADERS if output("dpkg-query", "-W", p)}
components = [debian(package) for package in sorted(packages)]
for name, version in re.findall(r"^([\w.-]+)==(\S+)", Path(requirements).read_text(), re.M):
    components.append({"type": "library", "name": name, "version": version, "scope": "optional",
                       "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"})
version = output(executable, "--version").split()[-1]
json.dump({"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
           "metadata": {"component": {"type": "application", "name": "ark", "version": version,
                                      "licenses": [{"license": {"id": "Apache-2.0"}}]}},
           "components": components}, sys.stdout, indent=1)
print()
PYTHON

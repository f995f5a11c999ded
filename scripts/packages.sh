# Sourced by the other scripts: installs Debian packages that are missing. Quick when none is.

install_packages() {
  local missing=() package
  for package in "$@"; do
    if [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
      missing+=("$package")
    fi
  done
  if ((${#missing[@]} == 0)); then return 0; fi
  local as_root=()
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      echo "missing Debian packages: ${missing[*]}; install them as root, or install sudo" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "installing Debian packages: ${missing[*]}" >&2
  if [[ -z ${package_lists:-} ]]; then  # once a script
    "${as_root[@]}" apt-get update -qq
    package_lists=new
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

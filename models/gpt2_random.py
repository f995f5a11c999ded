#!/usr/bin/env python3
"""A GPT-2-shaped ONNX model of any size with random weights, as optimum exports it.
The defaults are GPT-2's own (124 M); `--layers 48 --heads 25 --hidden 1600` is GPT-2 XL."""

import argparse
import sys
from pathlib import Path

from graph import DTYPES
from llama_random import write
from presets import preset


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", metavar="OUT.onnx", type=Path)
    for name, value in (("layers", 12), ("heads", 12), ("hidden", 768), ("vocab", 50257), ("context", 1024)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--intermediate", type=int, help="default: 4 x hidden")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--seed", type=int, default=0)
    args = vars(parser.parse_args())
    out, seed = args.pop("out"), args.pop("seed")
    args["intermediate"] = args["intermediate"] or 4 * args["hidden"]
    try:
        write(preset("gpt2", **args), out, seed)
    except (ValueError, OSError) as error:
        sys.exit(f"{out}: {error}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A decoder with random weights as ONNX: a preset, changed by options. Equal seeds give equal files."""

import argparse
import sys
import zlib
from pathlib import Path

import numpy as np

from config import Config, add_options, options_of
from decoder import build
from presets import preset
from tokenizer import write_json


def random_weights(seed):
    """weights(name, shape) for decoder.build(): each tensor depends on the seed and its name only."""

    def weights(name, shape):
        random = np.random.default_rng([seed, zlib.crc32(name.encode())])
        array = random.standard_normal(shape, dtype=np.float32)
        if len(shape) == 2:
            return array * (0.5 if "embed" in name else shape[1] ** -0.5)
        return 1 + 0.1 * array if name.endswith("weight") else 0.1 * array

    return weights


def config_json(config):
    """What a server needs beside the graph: sizes, in transformers' words."""
    return {
        "model_type": "gpt2" if config.positions == "learned" else "llama",
        "hidden_size": config.hidden, "intermediate_size": config.intermediate, "vocab_size": config.vocab,
        "num_hidden_layers": config.layers, "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads, "head_dim": config.head_dim,
        "max_position_embeddings": config.context, "tie_word_embeddings": config.tied,
    }


def write(config, path, seed=0):
    """The model at `path` and config.json beside it."""
    build(config, random_weights(seed)).save(path)
    write_json(Path(path).parent / "config.json", config_json(config))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", metavar="OUT.onnx", type=Path)
    parser.add_argument("--preset", help="start from a named decoder (models/presets.py)")
    parser.add_argument("--seed", type=int, default=0)
    add_options(parser)
    args = parser.parse_args()
    try:
        changes = options_of(args)
        write(preset(args.preset, **changes) if args.preset else Config(**changes), args.out, args.seed)
    except (ValueError, OSError) as error:
        sys.exit(f"{args.out}: {error}")


if __name__ == "__main__":
    main()

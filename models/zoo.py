#!/usr/bin/env python3
"""Writes every preset as OUT_DIR/NAME: model.onnx, config.json, test_data_set_N and expected.json as the
fixtures have them, the expected values by ONNX Runtime. `--random N` adds N decoders of mixed features."""

import argparse
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from onnx import numpy_helper

from config import CHOICES, Config
from llama_random import write
from oracle import Oracle
from presets import PRESETS, preset

TOLERANCE = {"f32": 1e-4, "f16": 2e-2}
PAST, CHUNK, PADDING = 6, 3, 2
NEW_TOKENS = 16


def mixed(seed):
    """A Config of random features that fit together."""
    dice = random.Random(seed)
    fixed = {"dtype", "stored", "breaks"}
    while True:
        changes = {name: dice.choice(values) for name, values in CHOICES.items() if name not in fixed}
        flags = ("embed_norm", "tied", "qkv_bias", "out_bias", "mlp_bias", "mask_input")
        changes |= {name: dice.random() < 0.5 for name in flags}
        changes |= dict(heads=dice.choice([2, 4, 6]), head_dim=8, hidden=24, intermediate=dice.choice([32, 40]),
                        kv_heads=dice.choice([1, 2, 0]), rotary_dim=dice.choice([0, 4]),
                        attention_cap=dice.choice([0.0, 20.0]), logit_cap=dice.choice([0.0, 5.0]),
                        window=dice.choice([0, 0, 4]), window_every=dice.choice([1, 2]),
                        position_offset=dice.choice([0, 2]), residual_scale=dice.choice([1.0, 0.5]),
                        opset=dice.choice([17, 18, 20]))
        try:
            return Config(**changes)
        except ValueError:
            continue


def write_set(folder, oracle, feeds):
    folder.mkdir(parents=True, exist_ok=True)
    outputs = oracle.session.run(None, feeds)
    named = {"input": feeds.items(), "output": zip(oracle.output_names, outputs)}
    for kind, tensors in named.items():
        for index, (name, array) in enumerate(tensors):
            tensor = numpy_helper.from_array(np.ascontiguousarray(array), name)
            (folder / f"{kind}_{index}.pb").write_bytes(tensor.SerializeToString())


def padded_chunk(oracle, tokens):
    """Two sequences of PAST + CHUNK tokens; the second is PADDING shorter, padded on the left, and its
    cache holds garbage there. Only the mask hides it."""
    ids = tokens(2, PAST + CHUNK)
    mask = np.ones((2, PAST + CHUNK))
    mask[1, :PADDING] = 0
    _, past = oracle.step(ids[:, :PAST], oracle.empty_past(2), mask[:, :PAST])
    for name, _, shape, axis in oracle.config.caches():
        at = [slice(None)] * len(shape)
        at[shape.index("batch_size")], at[axis] = 1, slice(0, PADDING)
        past[name][tuple(at)] = 7.5
    return oracle.feeds(ids[:, PAST:], past, mask)


def write_model(folder, config, seed):
    path = folder / "model.onnx"
    write(config, path, seed)
    oracle, plain = Oracle(str(path), config, 1), Oracle(str(path), config, 1, optimise=False)
    random = np.random.default_rng(seed)
    tokens = lambda *shape: random.integers(3, config.vocab, shape)
    length = PAST if config.cache else config.window + PAST  # files without caches show their window at once
    prompt = tokens(1, length)
    first = oracle.feeds(prompt, oracle.empty_past(1))
    sets = [(f"prefill: batch 1, {length} tokens, past 0", first)]
    if config.cache:
        _, past = oracle.step(prompt, oracle.empty_past(1))
        sets.append(("decode: batch 1, 1 token, past 6", oracle.feeds(tokens(1, 1), past)))
    if config.cache and config.mask_input:
        sets.append(("chunk: batch 2, 3 tokens, past 6, row 1 left-padded by 2", padded_chunk(oracle, tokens)))
    for index, (_, feeds) in enumerate(sets):
        write_set(folder / f"test_data_set_{index}", oracle, feeds)
    run = lambda o: o.session.run(None, first)[0].astype(np.float64)
    greedy = []
    for length in (5, 8):
        ids = tokens(length).tolist()
        best, margins = oracle.greedy(ids, NEW_TOKENS)
        greedy.append({"prompt_ids": ids, "greedy_ids": best, "margins": margins})
    expected = {
        "sets": {f"test_data_set_{i}": {"what": what, "padding_rows_to_ignore": []} for i, (what, _) in enumerate(sets)},
        "tolerance": TOLERANCE[config.dtype], "session_optimisations": True,
        "max_abs_diff_other_optimisation": float(np.abs(run(oracle) - run(plain)).max()),
        "decoder": config.breaks == "none", "config": asdict(config), "greedy": greedy,
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", metavar="OUT_DIR", type=Path)
    parser.add_argument("names", metavar="NAME", nargs="*", help="presets to write (default: all)")
    parser.add_argument("--preset", metavar="NAME", action="append", default=[], help="the same as NAME")
    parser.add_argument("--random", metavar="N", type=int, default=0, help="so many mixed decoders too")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    names = args.names + args.preset or ([] if args.random else sorted(PRESETS))
    try:
        configs = {name: preset(name) for name in names}
        configs |= {f"random-{args.seed + i}": mixed(args.seed + i) for i in range(args.random)}
        for name, config in configs.items():
            write_model(args.out / name, config, args.seed)
    except (ValueError, OSError) as error:
        sys.exit(f"{args.out}: {error}")


if __name__ == "__main__":
    main()

"""--weights: f32 files kept in fewer bits, exactly or rounded; told, and equal for ranks, processes and instruction sets."""

import json
import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ark_server import BIN, FIXTURES, ark
from test_activations import SIZES
from llama_random import write
from presets import preset

pytestmark = pytest.mark.skipif(not (BIN / "ark-run").exists(), reason="no ark-run (scripts/build.sh makes it)")


def q4_1(rows):
    """[..., 32]: what is left of numbers after GGUF's Q4_1."""
    low, high = rows.min(-1, keepdims=True), rows.max(-1, keepdims=True)
    step = (high - low) / np.float32(15)
    codes = np.round((rows - low) / np.where(step == 0, 1, step)).astype(np.float32)
    half = lambda x: x.astype(np.float16).astype(np.float32)  # noqa: E731
    return codes * half(step) + half(low)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A decoder in f32 whose matrices were 4-bit codes once: [K, N], blocks along K; the table [V, K]."""
    path = tmp_path_factory.mktemp("weights") / "model.onnx"
    write(preset("llama", hidden=96, intermediate=128, **SIZES), path)
    made = onnx.load(path)
    for weight in made.graph.initializer:
        w = numpy_helper.to_array(weight)
        if w.dtype != np.float32 or w.ndim != 2 or w.size < 4096:
            continue
        across = w.shape[0] == SIZES["vocab"]
        rows = np.ascontiguousarray(w if across else w.T)
        if rows.shape[1] % 32 == 0:
            rows = q4_1(rows.reshape(len(rows), -1, 32)).reshape(rows.shape)
            weight.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(rows if across else rows.T), weight.name))
    onnx.save(made, path)
    return path


def types(model, policy):
    program = ark("ark-inspect", model, "--stage", "program", "--weights", policy).stdout
    return set(re.findall(r" panels=64 .*?(\w+) \[", program))


def tokens(model, *options, **environment):
    return json.loads(ark("ark-run", model, "--prompt-ids", "5,17,3,42,9", "--max-tokens", 12, "--ignore-eos", "--json",
                          *options, **environment).stdout)["token_ids"]


def logits(model, folder, *options):
    folder.mkdir()
    ids = np.arange(11)[None] % SIZES["vocab"]
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(11)[None]}
    inputs = []
    for value in onnx.load(model, load_external_data=False).graph.input:
        sizes = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = given.get(value.name)
        if array is None:
            array = np.zeros([1, sizes[1], 0, sizes[3]], np.float32)
        np.save(folder / f"{value.name}.npy", array)
        inputs += ["--input", f"{value.name}={folder / value.name}.npy"]
    ark("ark-run", model, "--driver", "decoder", *inputs, "--output-dir", folder, *options)
    return np.load(folder / "logits.npy")


def test_codes_are_found_and_change_nothing(model, tmp_path):
    assert "u4" in types(model, "exact") and types(model, "f32") == {"f32"}
    assert tokens(model) == tokens(model, "--weights", "f32")
    exact, plain = (logits(model, tmp_path / p, "--weights", p) for p in ("exact", "f32"))
    assert exact.tobytes() == plain.tobytes()


@pytest.mark.parametrize("policy, kind, bound", [("bf16", "bf16", 0.05), ("f16", "f16", 0.01), ("int8", "u8", 0.05),
                                                 ("int4", "u4", 0.2)])
def test_rounded_weights_are_near_and_equal_everywhere(model, tmp_path, policy, kind, bound):
    assert kind in types(model, policy)
    near, plain = (logits(model, tmp_path / p, "--weights", p, "--activations", "f32") for p in (policy, "f32"))
    error = np.abs(near - plain).max() / np.abs(plain).max()
    assert error < bound and (error > 0 or policy == "int4"), error  # rounding codes of 4 bits finds them again
    one = tokens(model, "--weights", policy)
    assert tokens(model, "--weights", policy, "--tp", 2) == one
    assert tokens(model, "--weights", policy, "--tp", 2, "--processes") == one
    # Rows are rounded to bf16 where the CPU multiplies that; by an option everywhere.
    options = ("--weights", policy, *(["--activations", "f32"] if policy == "bf16" else []))
    one = tokens(model, *options)
    for isa in ("scalar", "avx2", "avx512"):
        assert tokens(model, *options, ARK_ISA=isa) == one, isa


@pytest.mark.skipif(not FIXTURES.exists(), reason=f"no {FIXTURES}")
@pytest.mark.parametrize("policy", ["int8", "int4"])
@pytest.mark.parametrize("name", ["llama-optimum", "mistral-sliding", "gpt2-optimum"])
def test_borders_between_ranks_may_lie_inside_blocks(name, policy):
    """Tables are split by their columns, blocks of which are quantized together."""
    def chosen(ranks):
        return tokens(FIXTURES / name, "--weights", policy, "--activations", "f32", "--tp", ranks)

    one = chosen(1)
    assert one and all(chosen(ranks) == one for ranks in (2, 3, 4))

"""--kv-dtype: what the cache holds is what numpy rounds, told everywhere, and equal for ranks, processes and instruction sets."""

import json
import subprocess

import ml_dtypes
import numpy as np
import onnx
import pytest

from ark_server import BIN, ark
from llama_random import write
from presets import preset

pytestmark = pytest.mark.skipif(not (BIN / "ark-run").exists(), reason="no ark-run (scripts/build.sh makes it)")

HEAD, KV_HEADS, LAYERS = 16, 2, 2
TOKENS = [5, 17, 3, 42, 9, 77, 12, 5, 60, 31, 8, 2, 90, 44, 1, 23, 71, 66, 19, 4]  # of two pages
BITS = {"f32": 32, "f16": 16, "bf16": 16, "int8": 8, "fp8_e4m3": 8}


def write_model(path, dtype):
    write(preset("llama", dtype=dtype, layers=LAYERS, heads=4, kv_heads=KV_HEADS, hidden=64, head_dim=HEAD, intermediate=96,
                 vocab=100), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("kv") / "model.onnx", "f32")


def rounded(x, kv_dtype):
    """As engine/program/kv_codec.h says, in numpy: x is [..., a head's elements]."""
    if kv_dtype == "f16":
        return x.astype(np.float16).astype(np.float32)
    if kv_dtype == "bf16":
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)
    if kv_dtype == "f32":
        return x
    most = np.float32({"int8": 127, "fp8_e4m3": 448}[kv_dtype])
    largest = np.abs(x).max(-1, keepdims=True)
    codes = x * (most / largest)
    codes = np.rint(codes) if kv_dtype == "int8" else np.clip(codes, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return codes.astype(np.float32) * (largest / most)


def outputs(model, folder, kv_dtype):
    """Logits and caches of the decoder, with an empty past."""
    folder.mkdir()
    count = len(TOKENS)
    feeds = {"input_ids": np.array([TOKENS]), "attention_mask": np.ones((1, count), np.int64),
             "position_ids": np.arange(count)[None]}
    command = []
    for name in (i.name for i in onnx.load(model, load_external_data=False).graph.input):
        np.save(folder / f"in_{name}.npy", feeds.get(name, np.zeros((1, KV_HEADS, 0, HEAD), np.float32)))
        command += ["--input", f"{name}={folder}/in_{name}.npy"]
    ark("ark-run", model, "--driver", "decoder", *command, "--output-dir", folder, "--kv-dtype", kv_dtype)
    return {file.stem: np.load(file) for file in folder.glob("*.npy") if not file.stem.startswith("in_")}


def test_the_cache_holds_what_numpy_rounds(model, tmp_path):
    exact = outputs(model, tmp_path / "f32", "f32")
    assert exact["logits"].dtype == np.float32, exact.keys()
    for kv_dtype in BITS:
        got = outputs(model, tmp_path / f"as_{kv_dtype}", kv_dtype)
        for part in "key", "value":  # of layer 0: later ones are computed from what attention made of these
            name = f"present.0.{part}"
            assert np.array_equal(got[name], rounded(exact[name], kv_dtype)), (kv_dtype, name)
        worst = np.abs(got["logits"] - exact["logits"]).max()
        assert worst <= {32: 0, 16: 0.02, 8: 0.2}[BITS[kv_dtype]] * np.abs(exact["logits"]).max(), (kv_dtype, worst)
        assert (worst == 0) == (kv_dtype == "f32")


@pytest.mark.parametrize("kv_dtype", BITS)
def test_nothing_else_changes_a_token(model, kv_dtype):
    def run(*more, **environment):
        return json.loads(ark("ark-run", model, "--kv-dtype", kv_dtype, "--prompt-ids", ",".join(map(str, TOKENS)), "--max-tokens", 12,
                              "--ignore-eos", "--json", *more, **environment).stdout)["token_ids"]

    one = run("--tp", 1)
    assert run("--tp", 2, "--processes") == one
    assert run("--tp", 2, ARK_ISA="scalar") == one
    assert run("--tp", 1, ARK_ISA="avx2") == one


def test_it_is_told(model):
    for kv_dtype, bits in BITS.items():
        each = LAYERS * KV_HEADS * 2 * (HEAD * bits // 8 + (4 if bits == 8 else 0))
        card = json.loads(ark("ark-inspect", model, "--kv-dtype", kv_dtype, "--json").stdout)
        assert card["kv_bytes_per_token"] == each
        log = ark("ark-serve", model, "--kv-dtype", kv_dtype, "--check", "--kv-memory", each * 16 * 100).stdout
        assert f"1600 tokens in {kv_dtype}, 100 pages" in log, log
    assert " kv_page i8 " in ark("ark-inspect", model, "--stage", "program", "--kv-dtype", "int8").stdout


def test_a_gpu_takes_16_bits_where_the_weights_have_as_many(model, tmp_path):
    assert "Attention<float, " in ark("ark-inspect", model, "--stage", "cuda").stdout
    assert "Attention<Int8, " in ark("ark-inspect", model, "--stage", "cuda", "--kv-dtype", "int8").stdout
    narrow = write_model(tmp_path / "bf16.onnx", "bf16")
    assert "Attention<dev::bf16, " in ark("ark-inspect", narrow, "--stage", "cuda").stdout
    assert "Attention<float, " in ark("ark-inspect", narrow, "--stage", "cuda", "--kv-dtype", "f32").stdout
    assert " kv_page f32 " in ark("ark-inspect", narrow, "--stage", "program").stdout


def test_other_types_are_refused(model):
    done = subprocess.run([BIN / "ark-run", model, "--kv-dtype", "int4", "--prompt-ids", "5"], capture_output=True, text=True)
    assert done.returncode == 64 and "int8" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr

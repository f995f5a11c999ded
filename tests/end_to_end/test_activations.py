"""Products in bf16 and int8: chosen by the file or by --activations, told, and equal for ranks, processes and instruction sets."""

import json
from pathlib import Path

import onnx
import pytest
from onnx import helper

from ark_server import BIN, ark
from llama_random import write
from presets import preset

pytestmark = pytest.mark.skipif(not (BIN / "ark-run").exists(), reason="no ark-run (scripts/build.sh makes it)")

SIZES = {"layers": 2, "heads": 4, "vocab": 100}
CPU = Path("/proc/cpuinfo").read_text()
HAS_BF16 = "amx_bf16" in CPU or ("avx512_bf16" in CPU and "AuthenticAMD" in CPU)  # faster than f32


def four_bits(path, level):
    """MatMulNBits that ask for `level`."""
    write(preset("llama", stored="nbits", hidden=64, intermediate=96, **SIZES), path)
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            node.attribute.append(helper.make_attribute("accuracy_level", level))
    onnx.save(model, path)


def bf16(path, _):
    write(preset("llama", dtype="bf16", hidden=96, intermediate=128, **SIZES), path)  # smaller weights become f32


@pytest.mark.parametrize("made, level, option, precision", [
    (four_bits, 4, "auto", "int8"), (four_bits, 1, "auto", ""), (four_bits, 1, "int8", "int8"), (four_bits, 4, "f32", ""),
    (four_bits, 4, "bf16", ""), (bf16, 0, "auto", "bf16" * HAS_BF16), (bf16, 0, "bf16", "bf16"), (bf16, 0, "f32", ""), (bf16, 0, "int8", "")])
def test_products_are_what_the_file_or_the_option_says(tmp_path, made, level, option, precision):
    path = tmp_path / "model.onnx"
    made(path, level)
    program = ark("ark-inspect", path, "--stage", "program", "--activations", option).stdout
    products = [line for line in program.splitlines() if line.startswith("variant") and "MatMul " in line]
    assert products
    tiles = precision == "bf16" and "precision=bf16_tiles" in products[0]  # of a CPU with AMX
    for line in products:
        assert f" precision={precision + '_tiles' * tiles} " in f"{line} " if precision else "precision=" not in line, line
    assert "precision=" not in ark("ark-inspect", path, "--stage", "cuda", "--activations", option).stdout

    def run(*more, **environment):
        return json.loads(ark("ark-run", path, "--activations", option, "--prompt-ids", "5,17,3,42,9", "--max-tokens", 12,
                              "--ignore-eos", "--json", *more, **environment).stdout)["token_ids"]

    one = run("--tp", 1)
    assert run("--tp", 2) == one
    assert run("--tp", 2, "--processes") == one
    plan = tmp_path / "program.txt"
    plan.write_text(program)
    for isa in ("scalar", "avx2", "avx512", "avx512_vnni"):  # which would choose neither bf16 nor its tiles
        assert run(*(["--plan", plan] if precision == "bf16" else ["--tp", 1]), ARK_ISA=isa) == one, isa

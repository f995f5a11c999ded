"""Files that ark-run and ark-bench read: broken .npy files, odd data sets, and how outputs are compared."""

import json
import os
import struct
import subprocess

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ark_server import BINARY

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")


def run(*arguments, tool="ark-run", code=0):
    done = subprocess.run([BINARY.with_name(tool), *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.count("\n") == (code > 1), done.stderr
    return done.stdout + done.stderr


def identity(folder, kind=TensorProto.FLOAT, outputs=1):
    """A model whose outputs are its input."""
    folder.mkdir(parents=True, exist_ok=True)
    value = lambda name: helper.make_tensor_value_info(name, kind, ["n"])
    names = [f"y{i}" for i in range(outputs)]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], [n]) for n in names], "g", [value("x")],
                              [value(n) for n in names])
    file = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    return file


def npy(shape, data=b"", descr="<f4", version=1):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + data


BROKEN = {"(562949953421312,4096)": "shape", "(4611686018427387904,)": "shorter", "(9223372036854775807,9)": "2^62",
          "(0,9223372036854775807,9)": "2^62", "(-1,3)": "axis of -1", "(1.5,)": "axis of 1.5", "(1e3,)": "axis of 1e3",
          "(99999999999999999999,)": "axis of", "(" + "9" * 5000 + ",)": "axis of", "(1,,2)": "axis of nothing",
          "(" + "1," * 5000 + ")": "axes", "3": "brackets", "(3": "brackets", "": "brackets"}


@pytest.mark.parametrize("shape", BROKEN, ids=lambda shape: shape[:24])
def test_broken_shapes_of_npy_files_are_named(tmp_path, shape):
    file = tmp_path / "x.npy"
    file.write_bytes(npy(shape, bytes(64), "<i8"))
    line = run(identity(tmp_path), "--input", f"x={file}", code=64)
    assert "x.npy" in line and BROKEN[shape] in line and len(line) < 300


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", npy("(3,)")[:20], npy("(3,)", bytes(11)),
                                     npy("(3,)", bytes(12), version=3), npy("(3,)", bytes(12), descr="<c8")],
                         ids=["empty", "magic", "header", "data", "version", "type"])
def test_broken_npy_files_are_named(tmp_path, content):
    file = tmp_path / "x.npy"
    file.write_bytes(content)
    assert "x.npy" in run(identity(tmp_path), "--input", f"x={file}", code=64)


def test_both_versions_of_npy_files_are_read(tmp_path):
    for version in (1, 2):
        (tmp_path / "x.npy").write_bytes(npy("(3,)", numpy.float32([1, 2, 3]).tobytes(), version=version))
        run(identity(tmp_path), "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out")
        assert numpy.load(tmp_path / "out" / "y0.npy").tolist() == [1, 2, 3]


def test_only_regular_npy_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    for name in ("pipe.npy", ""):
        assert "regular" in run(identity(tmp_path), "--input", f"x={tmp_path / name}", code=64)
    assert "none.npy" in run(identity(tmp_path), "--input", f"x={tmp_path / 'none.npy'}", code=66)


def test_the_bench_wants_numbers(tmp_path):
    for option in ("--batch", "--prefill"):
        assert option in run("model", identity(tmp_path), f"{option}=", tool="ark-bench", code=64)

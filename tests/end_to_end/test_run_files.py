"""Files that ark-run and ark-bench read: broken .npy files, odd data sets, and how outputs are compared."""

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
    done = subprocess.run([BINARY.with_name(tool), *map(str, arguments)], capture_output=True, text=True, timeout=300)
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


def data_set(folder, given, *expected):
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in [("input_0", given), *((f"output_{i}", e) for i, e in enumerate(expected))]:
        (folder / f"{name}.pb").write_bytes(numpy_helper.from_array(values, name).SerializeToString())
    return folder


INFINITY = numpy.inf
WRONG = [(numpy.float32, [1.0], [INFINITY]), (numpy.float32, [1.0], [-INFINITY]), (numpy.float32, [INFINITY], [1.0]),
         (numpy.float32, [INFINITY], [-INFINITY]), (numpy.float32, [numpy.nan], [INFINITY]),
         (numpy.float32, [1.0], [numpy.nan]), (numpy.int64, [2**60 + 1], [2**60]), (numpy.int64, [2**53 + 1], [2**53]),
         (numpy.uint64, [2**64 - 1], [0]), (numpy.uint8, [3], [4])]


@pytest.mark.parametrize("kind, given, expected", WRONG, ids=str)
def test_values_that_differ_fail(tmp_path, kind, given, expected):
    file = identity(tmp_path, helper.np_dtype_to_tensor_dtype(numpy.dtype(kind)))
    same = data_set(tmp_path / "test_data_set_0", numpy.array(given, kind), numpy.array(given, kind))
    wrong = data_set(tmp_path / "test_data_set_1", numpy.array(given, kind), numpy.array(expected, kind))
    assert run(file, "--test-data", same).startswith("PASS ")
    line = run(file, "--test-data", wrong, code=1)
    assert line.startswith("FAIL ")
    if kind != numpy.float32:
        assert f"is {given[0]}, expected {expected[0]}, off by {abs(given[0] - expected[0])}\n" in line


def test_how_many_outputs_were_compared_is_told(tmp_path):
    x = numpy.float32([1, 2])
    file = identity(tmp_path, outputs=3)
    full = data_set(tmp_path / "test_data_set_0", x, x, x, x)
    part = data_set(tmp_path / "test_data_set_1", x, x)
    assert run(file, "--test-data", full, part) == f"PASS {full}\nPASS {part} (1 of 3 outputs compared)\n"


def test_a_data_set_is_the_same_however_it_is_written(tmp_path):
    """Its tolerance and its padding rule lie beside it."""
    file = identity(tmp_path)
    folder = data_set(tmp_path / "test_data_set_0", numpy.float32([1, 2]), numpy.float32([1.25, 2]))
    (tmp_path / "expected.json").write_text('{"tolerance": 0.5}')
    for written in (folder, f"{folder}/", f"{folder}/.", f"{folder}/../{folder.name}//"):
        assert run(file, "--test-data", written, "--output-dir", tmp_path / "out").startswith("PASS ")
    done = subprocess.run([BINARY.with_name("ark-run"), file, "--test-data", "."], cwd=folder, capture_output=True)
    assert done.returncode == 0, done
    assert [path.name for path in (tmp_path / "out").iterdir()] == [folder.name]


@pytest.mark.parametrize("name, text", [("data.json", "[]"), ("data.json", '{"rtol": "x"}'), ("expected.json", "3"),
                                        ("expected.json", '{"tolerance": null}'), ("data.json", "{"),
                                        ("expected.json", '{"sets": {"test_data_set_~2": {"padding_rows_to_ignore": [3]}}}')])
def test_odd_rules_fail_their_sets_alone(tmp_path, name, text):
    x = numpy.float32([1, 2])
    for model in "ab":
        identity(tmp_path / model)
        data_set(tmp_path / model / "test_data_set_~2", x, x)
    (tmp_path / "a" / name).write_text(text)
    lines = run("--suite", tmp_path, code=1).splitlines()
    assert lines[0].startswith("FAIL ") and name in lines[0]
    assert lines[1].startswith("PASS ") and lines[2] == "1 passed, 1 failed, 0 skipped"


def test_what_the_system_refuses_ends_with_71(tmp_path):
    x = numpy.float32([1, 2])
    file = identity(tmp_path)
    numpy.save(tmp_path / "x.npy", x)
    (tmp_path / "occupied").write_text("")
    run(file, "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "occupied" / "out", code=71)


@pytest.mark.parametrize("options", ["MODEL --driver bogus --test-data SET", "MODEL --driver bogus --prompt-ids 1,2",
                                     "MODEL --driver static --tp 2 --test-data SET", "--suite . --test-data SET",
                                     "--suite . --prompt x", "--suite . --driver bogus", "MODEL --prompt x --prompt-ids 1",
                                     "MODEL --driver static --prompt x", "MODEL --temperature nan --prompt-ids 1",
                                     "MODEL --top-p=-nan --prompt-ids 1", "MODEL --rtol nan --test-data SET",
                                     "MODEL --atol=-1 --test-data SET"])
def test_options_that_fit_no_model_are_usage_errors(tmp_path, options):
    names = {"MODEL": identity(tmp_path), "SET": data_set(tmp_path / "test_data_set_0", numpy.float32([1]))}
    run(*(names.get(word, word) for word in options.split()), code=64)


def test_a_missing_model_is_no_failed_set(tmp_path):
    folder = data_set(tmp_path / "test_data_set_0", numpy.float32([1]))
    assert "none.onnx" in run(tmp_path / "none.onnx", "--test-data", folder, code=66)
    assert run(identity(tmp_path), "--test-data", tmp_path / "none", code=1).startswith("FAIL ")

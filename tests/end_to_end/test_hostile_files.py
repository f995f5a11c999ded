"""Broken and hostile ONNX files: one line that says what, where, which limit and what to do; exit 65 (66 where a file
is missing); in little time and memory. `ARK_FULL=1` mutates more."""

import os
import random
import subprocess
import sys

import numpy
import pytest
from onnx import TensorProto, helper, numpy_helper

from ark_server import BIN, FIXTURES

TOOLS = {"serve": ["ark-serve", "--check", "--model"], "inspect": ["ark-inspect", "--check"], "run": ["ark-run"]}
SECONDS, MEGABYTES = 2, 300
SLACK = 4  # a loaded machine is slower; the clock below counts processor time
MUTATIONS = 400 if os.environ.get("ARK_FULL") else 24

pytestmark = pytest.mark.skipif(not all((BIN / tool[0]).exists() for tool in TOOLS.values()),
                                reason=f"no programs in {BIN} (scripts/build.sh makes them)")


# Starts the program from a small process: a program's peak begins with what its parent has in memory.
MEASURE = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS * SLACK}, {SECONDS * SLACK}))
no_output = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
_, status, usage = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=no_output), 0)
print(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
"""


def run(tool, path):
    """Exit status, standard error, seconds of processor time and megabytes at the peak."""
    program = [BIN / TOOLS[tool][0], *TOOLS[tool][1:], path]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", MEASURE, *program], capture_output=True, check=True)
    status, seconds, megabytes = done.stdout.split()
    return int(status), done.stderr, float(seconds), float(megabytes)


def error_line(message):
    """The last line: start-up stages may come before it."""
    lines = message.decode("utf-8").splitlines()
    return lines[-1] if lines else ""


def assert_refused(tool, path, statuses=(65,), words=()):
    status, message, seconds, megabytes = run(tool, path)
    line = error_line(message)
    assert status in statuses, (tool, status, line)
    assert len(line) > 20 and len(line) < 1000, line
    assert all(character.isprintable() for character in line), repr(line)
    assert all(word in line for word in words), line
    assert seconds < SECONDS and megabytes < MEGABYTES, (tool, seconds, megabytes)


def value(name, dims=("N",), kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, dims)


def ints(name, *values):
    return numpy_helper.from_array(numpy.array(values, numpy.int64), name)


def scalar(name, number, kind=numpy.int64):
    return numpy_helper.from_array(numpy.array(number, kind), name)


def graph(nodes, initialisers=(), inputs=None, outputs=None, **more):
    inputs = [value("x")] if inputs is None else inputs
    body = helper.make_graph(nodes, "g", inputs, outputs or [value("y", None)], list(initialisers))
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("f", 1)],
                             ir_version=9, **more)


def node(op, inputs, outputs=("y",), **attributes):
    return helper.make_node(op, inputs, outputs, **attributes)


def external(location, **more):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=str(text))
    return graph([node("Add", ["x", "w"])], [tensor])


def field(number, payload):
    """A length-delimited field, by hand: Python's protobuf neither nests this deep nor writes what is wrong."""
    size, length = b"", len(payload)
    while length >= 128:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + payload


def nested(depth):
    """If inside If inside If ..."""
    body = field(1, node("Identity", ["x"]).SerializeToString()) + field(12, value("y").SerializeToString())
    for _ in range(depth):
        branch = field(5, field(1, b"then_branch") + b"\xa0\x01\x05" + field(6, body))
        body = field(1, node("If", ["c"]).SerializeToString() + branch) + field(12, value("y").SerializeToString())
    return b"\x08\x09" + field(7, body)


def functions(count, width, recursive=False):
    """Each function calls the one before it `width` times."""
    made = []
    for level in range(count):
        callee = level - 1 if level else (count - 1 if recursive else None)
        body, at = [], "a"
        for i in range(width):
            out = "b" if i == width - 1 else f"t{i}"
            body.append(node("Neg", [at], [out]) if callee is None
                        else node(f"F{callee}", [at], [out], domain="f"))
            at = out
        made.append(helper.make_function("f", f"F{level}", ["a"], ["b"], body,
                                         [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]))
    return graph([node(f"F{count - 1}", ["x"], domain="f")], functions=made)


def endless_loop():
    body = helper.make_graph([node("Identity", ["c"], ["d"]), node("Add", ["v", "v"], ["w"])], "body",
                             [value("i", (), TensorProto.INT64), value("c", (), TensorProto.BOOL), value("v")],
                             [value("d", (), TensorProto.BOOL), value("w")])
    return graph([node("Loop", ["m", "go", "x"], body=body)],
                 [scalar("m", 2**62), scalar("go", True, numpy.bool_)])


def pairs_of_classes(classes):
    """A support vector machine of one vector a class: what its file holds of each pair becomes a row of numbers."""
    pairs = classes * (classes - 1) // 2
    model = graph([node("SVMClassifier", ["x"], ["l", "y"], domain="ai.onnx.ml", classlabels_ints=range(classes),
                        coefficients=[1.0] * (classes - 1) * classes, kernel_type="LINEAR", rho=[0.0] * pairs,
                        support_vectors=[1.0] * classes, vectors_per_class=[1] * classes)], inputs=[value("x", ("N", 1))])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return model


def renamed(name):
    """A node of an unknown operator whose name is raw bytes."""
    model = graph([node("NoSuchOperator", ["x"], name="NODE_NAME_HERE")])
    return model.SerializeToString().replace(b"NODE_NAME_HERE", name.ljust(14, b"!"))


HUGE = 2**40
BUILT = {
    "cycle": graph([node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"]), node("Neg", ["a"])]),
    "self": graph([node("Add", ["x", "y"])]),
    "missing value": graph([node("Add", ["x", "nowhere"])]),
    "missing output": graph([node("Neg", ["x"], ["z"])]),
    "duplicate": graph([node("Neg", ["x"]), node("Abs", ["x"])]),
    "duplicate input": graph([node("Neg", ["x"])], inputs=[value("x"), value("x")]),
    "negative dims": graph([node("Add", ["x", "w"])],
                           [TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-4])]),
    "huge dims": graph([node("Add", ["x", "w"])],
                       [TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[HUGE, HUGE, HUGE])]),
    "short payload": graph([node("Add", ["x", "w"])],
                           [TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"1234")]),
    "ConstantOfShape": graph([node("ConstantOfShape", ["s"])], [ints("s", HUGE)]),
    "Expand": graph([node("Expand", ["o", "s"])], [scalar("o", 1), ints("s", HUGE, HUGE)]),
    "Tile": graph([node("Tile", ["o", "s"])], [ints("o", 1), ints("s", HUGE)]),
    "Range": graph([node("Range", ["a", "b", "c"])], [scalar("a", 0), scalar("b", HUGE), scalar("c", 1)]),
    "Pad": graph([node("Pad", ["o", "p"])], [ints("o", 1), ints("p", HUGE, HUGE)]),
    "OneHot": graph([node("OneHot", ["o", "d", "v"])], [ints("o", 1), scalar("d", HUGE), ints("v", 0, 1)]),
    "Resize": graph([node("Resize", ["o", "", "s"])],
                    [numpy_helper.from_array(numpy.ones((1, 1), numpy.float32), "o"),
                     numpy_helper.from_array(numpy.array([1e12, 1e12], numpy.float32), "s")]),
    "Einsum": graph([node("Einsum", ["o", "o"], equation="a" * 5000 + ",b->" + "c" * 5000)], [ints("o", 1)]),
    "broadcast": graph([node("Add", ["a", "b"])],
                       [ints("n", HUGE, 1), ints("m", 1, HUGE)],
                       inputs=[value("a", (HUGE, 1)), value("b", (1, HUGE))]),
    "product": graph([node("MatMul", ["a", "b"])], inputs=[value("a", (2**31, 1)), value("b", (1, 2**31))]),
    "Reshape": graph([node("Reshape", ["o", "s"])], [ints("o", 1), ints("s", 2**62, 4, -1)]),
    "Gather": graph([node("Gather", ["o", "i"])], [ints("o", 1), ints("i", HUGE)]),
    "Slice": graph([node("Slice", ["o", "a", "b", "a", "z"])],
                   [ints("o", 1), ints("a", 0), ints("b", HUGE), ints("z", 0)]),
    "Split": graph([node("Split", ["o"], num_outputs=2**31 - 1)], [ints("o", 1)]),
    "Conv": graph([node("Conv", ["x", "w"], pads=[2**62, 0, 2**62, 0], dilations=[2**62, 2**62])],
                  [numpy_helper.from_array(numpy.ones((1, 1, 2, 2), numpy.float32), "w")],
                  inputs=[value("x", (1, 1, 4, 4))]),
    "Loop": endless_loop(),
    "pairs of classes": pairs_of_classes(600),
    "nested If": nested(100),
    "very nested If": nested(20_000),
    "function bomb": functions(40, 10),
    "recursive functions": functions(4, 2, recursive=True),
    "outside": external("../../../../../../etc/passwd"),
    "absolute": external("/etc/passwd"),
    "beyond the end": external("data.bin", offset=2**62, length=16),
    "negative offset": external("data.bin", offset=-16, length=16),
    "linked": external("link.bin", offset=0, length=16),
    "terminal escapes": renamed(b"\x1b[31m\x07\x9b\r\nab"),
    "invalid UTF-8": renamed(b"\xff\xfe\xc0\xaf\xed\xa0\x80"),
    "empty": b"",
    "text": b"this is no model\n" * 100,
    "lengths": b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    "unending integer": b"\x08" + b"\xff" * 1000,
}


def save(folder, model):
    path = folder / "model.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    (folder / "data.bin").write_bytes(bytes(64))
    (folder / "link.bin").symlink_to("/etc/passwd")
    return path


@pytest.mark.parametrize("name", BUILT)
def test_hostile_model(name, tmp_path):
    path = save(tmp_path, BUILT[name])
    for tool in TOOLS:
        assert_refused(tool, path)


@pytest.mark.parametrize("op, attributes", [("Div", {}), ("Mod", {"fmod": 1}), ("Mod", {"fmod": 0})])
def test_the_smallest_integer_by_minus_one(tmp_path, op, attributes):
    """Its quotient does not fit, and a processor traps on it."""
    path = save(tmp_path, graph([node(op, ["a", "b"], **attributes)], [ints("a", -2**63), ints("b", -1)]))
    for tool in TOOLS:
        assert run(tool, path)[0] in (0, 64, 65)


def nested_divisions():
    nodes = [node("Shape", ["x"], ["d0"])]
    nodes += [node("Add" if i % 2 else "Div", [f"d{i}", "two"], [f"d{i + 1}"]) for i in range(3000)]
    return graph([*nodes, node("ConstantOfShape", ["d3000"])], [ints("two", 2)])


def sizes_of_many_names():
    nodes = [node("Add", [f"s{i}", f"x{i}"], [f"s{i + 1}"]) for i in range(2000)]
    return graph([*nodes, node("Neg", ["s2000"])], inputs=[value("s0")] + [value(f"x{i}", [f"N{i}"]) for i in range(2000)])


def test_a_size_that_no_expression_holds_is_the_runs(tmp_path):
    path = save(tmp_path, nested_divisions())
    for tool in TOOLS:
        status, _, seconds, megabytes = run(tool, path)
        assert status in (0, 64, 65) and seconds < SECONDS and megabytes < MEGABYTES, (tool, status, seconds, megabytes)


def test_sizes_without_end(tmp_path):
    path = save(tmp_path, sizes_of_many_names())
    for tool in TOOLS:
        assert_refused(tool, path)


def test_thousands_of_equal_nodes_whose_sizes_the_data_decide(tmp_path):
    """Each has a name for its size, which goes as they are merged."""
    nodes = [made for i in range(8000)
             for made in (node("NonZero", ["x"], [f"p{i}"]), node("ReduceMax", [f"p{i}"], [f"m{i}"], keepdims=0))]
    path = save(tmp_path, graph([*nodes, node("Max", [f"m{i}" for i in range(8000)])], outputs=[value("y", None, TensorProto.INT64)]))
    status, message, seconds, megabytes = run("inspect", path)
    assert status == 0, message
    assert seconds < SECONDS and megabytes < MEGABYTES, (seconds, megabytes)


def test_a_million_nodes(tmp_path):
    one = node("Neg", ["x"], ["z"]).SerializeToString()
    assert len(one) < 128
    body = (b"\x0a" + bytes([len(one)]) + one) * 1_000_000
    path = save(tmp_path, b"\x08\x09" + field(7, body))
    for tool in TOOLS:
        assert_refused(tool, path)


@pytest.mark.parametrize("tool", TOOLS)
def test_missing_file(tool, tmp_path):
    assert_refused(tool, tmp_path / "nowhere.onnx", (66,))
    path = save(tmp_path, external("nowhere.bin"))
    assert_refused(tool, path, (65, 66), ["nowhere.bin"])


def mutated(data, dice):
    data = bytearray(data)
    kind = dice.randrange(4)
    if kind == 0:
        return bytes(data[:dice.randrange(len(data))])
    if kind == 1:  # a piece twice, or gone
        a, b = sorted(dice.randrange(len(data)) for _ in range(2))
        b = min(b, a + 4096)
        return bytes(data[:b] + data[a:] if dice.random() < 0.5 else data[:a] + data[b:])
    for _ in range(dice.choice([1, 4, 64])):
        data[dice.randrange(len(data))] = dice.choice([0, 0xff, 0x7f, 0x80, dice.randrange(256)])
    return bytes(data)


@pytest.mark.parametrize("name", ["llama-genai-fp32", "resnet-tiny"])
def test_mutated_fixture(name, tmp_path):
    """Whatever a mutation does, no tool crashes, and what it says is printable."""
    source = FIXTURES / name / "model.onnx"
    if not source.exists():
        pytest.skip(f"no {source}")
    data, dice = source.read_bytes(), random.Random(name)
    path = tmp_path / "model.onnx"
    for extra in source.parent.glob("*.data"):
        (tmp_path / extra.name).write_bytes(extra.read_bytes())
    for number in range(MUTATIONS):
        path.write_bytes(mutated(data, dice))
        status, message, seconds, megabytes = run("inspect", path)
        assert status in (0, 65, 66), (number, status, message)
        assert status == 0 or all(c.isprintable() for c in error_line(message)), (number, message)
        assert seconds < SECONDS and megabytes < MEGABYTES, (number, seconds, megabytes)

"""Models that ONNX Runtime takes or refuses as it loads them, or as it runs them: ark does the same."""

import subprocess

import numpy
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracle import open_session
from test_hostile_files import BIN, graph, ints, node, save, scalar, value
from test_schemas import inspect

onnxruntime.set_default_logger_severity(4)
pytestmark = pytest.mark.skipif(not (BIN / "ark-inspect").exists(), reason=f"no programs in {BIN}")


def described(*infos, stored=(), inputs=(value("x", (2, 3)),)):
    model = graph([node("Neg", ["x"], ["k"]), node("Abs", ["k"])], stored, inputs=inputs)
    model.graph.value_info.extend(infos)
    return model


def stored_input(*dims, kind=TensorProto.FLOAT):
    return described(stored=[numpy_helper.from_array(numpy.ones(2, numpy.float32), "x")], inputs=[value("x", dims, kind)])


def redone(name):
    """A branch makes `name`, within one that makes `middle`; around them are the input x, the initializer w, the value k."""
    def body(made, result):
        return helper.make_graph(made, "b", [], [value(result, None)])

    then = body([node("Abs", ["x"], [name]), node("Neg", [name], ["q"])], "q")
    other = body([node("Identity", ["x"], ["o"])], "o")
    deeper = body([node("Abs", ["x"], ["middle"]), node("If", ["c"], ["r"], then_branch=then, else_branch=other)], "r")
    return graph([node("Add", ["x", "w"], ["k"]), node("If", ["c"], ["later"], then_branch=deeper, else_branch=other),
                  node("Add", ["later", "k"])], [scalar("w", 1, numpy.float32)], inputs=[value("x"), value("c", (), TensorProto.BOOL)])


MODELS = {
    **{f"branch that makes {name}": redone(name) for name in ("x", "w", "k", "middle", "later", "y", "o", "own")},
    "type of a value": described(value("k", (2, 3), TensorProto.INT64)),
    "shape of a value": described(value("k", (7, 7, 7))),
    "type of an input's description": described(value("x", (2, 3), TensorProto.INT64)),
    "right description": described(value("k", (2, 3))),
    "stored input of another size": stored_input(5),
    "stored input of another rank": stored_input(1, 2),
    "stored input of another type": stored_input(2, kind=TensorProto.INT64),
    "stored input": stored_input(2),
    "stored input of a named size": stored_input("N"),
}


def loads(path):
    try:
        open_session(path)
    except Exception:  # each of its own kinds
        return False
    return True


@pytest.mark.parametrize("name", MODELS)
def test_what_onnx_runtime_does_not_load_is_refused(name, tmp_path):
    path = save(tmp_path, MODELS[name])
    status, line = inspect(path)
    assert status == (0 if loads(path) else 65), line


def sliced(*axes):
    return graph([node("Slice", ["x", "s", "e", "a"])], [ints("s", 0, 1), ints("e", 3, 4), ints("a", *axes)],
                 inputs=[value("x", ("A", "B"))])


def one_hot(depth, values):
    return graph([node("OneHot", ["i", "d", "v"])], [scalar("d", depth), numpy_helper.from_array(numpy.array(values, numpy.float32), "v")],
                 inputs=[value("i", (3,), TensorProto.INT64)])


def pooled(op, pads):
    return graph([node(op, ["x"], kernel_shape=[2, 2], pads=pads)], inputs=[value("x", (1, 1, 4, 4))])


def convolved(op="Conv", channels=1, **attributes):
    """Shapes are the input's as it runs: ONNX Runtime refuses some of it only then."""
    kernel = numpy.ones((channels, 1, 2, 2), numpy.float32)
    return graph([node(op, ["x", "w"], **attributes)], [numpy_helper.from_array(kernel, "w")],
                 inputs=[value("x", (1, channels, "H", "W"))])


def of_image(op, c, h, named=False, **attributes):
    return graph([node(op, ["x"], **attributes)], inputs=[value("x", tuple("ABCD") if named else (1, c, h, 4))]), (1, c, h, 4)


def classic(op, width=3, **attributes):
    model = graph([node(op, ["x"], domain="ai.onnx.ml", **attributes)], inputs=[value("x", ("N", width))])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return model, (2, width)


SQUARE = (4, 4)
IMAGE = (1, 1, 4, 4)
RUNS = {  # name: (model, the shape of x, or values of the inputs)
    **{f"axes {a} {b}": (sliced(a, b), SQUARE) for a, b in ((0, 1), (0, 0), (0, -2), (1, -2))},
    **{f"axes {a} {b} as it runs": (graph([node("Slice", ["x", "s", "s", "a"])],
                                         inputs=[value("x", ("A", "B")), value("s", (2,), TensorProto.INT64), value("a", (2,), TensorProto.INT64)]),
                                   {"x": numpy.ones(SQUARE, numpy.float32), "s": numpy.array([0, 1]), "a": numpy.array([a, b])})
       for a, b in ((0, 1), (1, 1), (-1, 1))},
    **{f"one hot {d} {v}": (one_hot(d, v), {"i": numpy.arange(3)})
       for d, v in ((3, [0, 1]), ([3], [0, 1]), ([3, 3], [0, 1]), ([[3]], [0, 1]), (3, [0]), (3, 0), (3, [0, 1, 2]), (3, [[0, 1]]))},
    **{f"{op} {pads}": (pooled(op, pads), IMAGE) for op in ("MaxPool", "AveragePool", "LpPool")
       for pads in ([1, 1, 1, 1], [2, 2, 2, 2], [0, 0, 0, 2], [2, 0, 0, 0])},
    **{f"{op} {mode} {pads}": (convolved(op, auto_pad=mode, pads=pads), IMAGE) for op in ("Conv", "ConvTranspose")
       for mode in ("NOTSET", "VALID", "SAME_UPPER") for pads in ([0] * 4, [1] * 4)},
    **{f"output_padding {n} by {s}": (convolved("ConvTranspose", output_padding=[n, n], strides=[s, s]), IMAGE)
       for n, s in ((0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (-1, 2))},
    **{f"{g} groups of {c}": (convolved("ConvTranspose", channels=c, group=g), (1, c, 4, 4)) for g, c in ((1, 3), (3, 3), (2, 3), (2, 4))},
    **{f"{op} {c} {h} {named}": of_image(op, c, h, named, blocksize=2) for op in ("DepthToSpace", "SpaceToDepth")
       for c, h in ((4, 4), (3, 4), (4, 3)) for named in (False, True)},
    **{f"LRN {n}": of_image("LRN", 4, 4, size=n) for n in (-1, 0, 1, 2, 3)},
    **{f"{n} offsets of {w} features": classic("Scaler", w, offset=[1.0] * n, scale=[2.0] * n)
       for n, w in ((1, 3), (3, 3), (2, 3), (3, 1))},
    **{f"{n} fillings of {w} features": classic("Imputer", w, imputed_value_floats=[1.0] * n, replaced_value_float=0.0)
       for n, w in ((1, 3), (3, 3), (2, 3), (3, 1))},
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("driver", ["static", "dynamic"])
def test_what_onnx_runtime_does_not_run_is_refused(name, driver, tmp_path):
    model, given = RUNS[name]
    feeds = given if isinstance(given, dict) else {"x": numpy.arange(numpy.prod(given), dtype=numpy.float32).reshape(given)}
    path = save(tmp_path, model)
    command = [BIN / "ark-run", path, "--driver", driver, "--output-dir", tmp_path]
    for key, array in feeds.items():
        numpy.save(tmp_path / f"{key}.npy", array)
        command += ["--input", f"{key}={tmp_path / key}.npy"]
    try:
        wanted = open_session(path).run(None, feeds)[0]
    except Exception:  # each of its own kinds
        wanted = None
    done = subprocess.run(command, capture_output=True, text=True)
    if driver == "static" and "depends on data" in done.stderr:
        return
    assert done.returncode in ((64, 65) if wanted is None else (0,)), done.stderr
    if wanted is not None:
        numpy.testing.assert_allclose(numpy.load(tmp_path / "y.npy"), wanted, rtol=1e-5)


DIVIDED = [node(op, ["x", "z"]) for op in ("Div", "Mod")]


@pytest.mark.parametrize("made", DIVIDED, ids=["Div", "Mod"])
@pytest.mark.parametrize("fill, status", [(0, 65), (3, 0)])
@pytest.mark.parametrize("size", [3, 100_000, "N"])
def test_integers_divided_by_what_was_filled_in(made, fill, status, size, tmp_path):
    """ONNX leaves it open, and ONNX Runtime dies of it or goes on."""
    fill = numpy_helper.from_array(numpy.array([fill]), "v")
    nodes = [node("Shape", ["x"], ["n"]) if size == "N" else node("Identity", ["size"], ["n"]),
             node("ConstantOfShape", ["n"], ["c"], value=fill), node("Unsqueeze", ["c", "zero"], ["z"]), made]
    stored = [ints("zero", 0)] + ([] if size == "N" else [ints("size", size)])
    model = graph(nodes, stored, inputs=[value("x", (size,), TensorProto.INT64)], outputs=[value("y", None, TensorProto.INT64)])
    assert inspect(save(tmp_path, model))[0] == status

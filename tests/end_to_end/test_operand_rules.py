"""Types, ranks and values of operands that ONNX Runtime refuses, as it loads a file or as it runs it, are refused, with the
node's name; what stands next to them and runs there is accepted."""

import numpy
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from oracle import open_session
from test_hostile_files import assert_refused, graph, node, save, scalar, value
from test_schemas import PLAIN, branch, fresh, function, inspect, pytestmark, rejected_elsewhere, save_bytes, window  # noqa: F401


def stored(name, values, kind=numpy.float32):
    return numpy_helper.from_array(numpy.array(values, kind), name)


def operands(op, *tensors, x=(2, 3), kind=TensorProto.FLOAT, outputs=("y",), **attributes):
    """The operator of x and stored operands."""
    names = ["x", *(t.name if t else "" for t in tensors)]
    return graph([node(op, names, outputs, name="TheNode", **attributes)], [t for t in tensors if t],
                 inputs=[value("x", x, kind)])


def normalized(shape, which=range(4)):
    return operands("BatchNormalization", *(stored(f"s{i}", numpy.ones(shape if i in which else (4,))) for i in range(4)),
                    x=(1, 4, 8, 8))


def conditional(shape, dead=None, is_stored=True):
    branches = {"then_branch": helper.make_graph([dead or node("Neg", ["x"], ["a"])], "t", [], [value("a", None)]),
                "else_branch": branch("b")}
    made = node("If", ["c"], name="TheNode", **branches)
    condition = numpy_helper.from_array(numpy.zeros(shape, bool), "c")
    return graph([made], [condition] if is_stored else [],
                 inputs=[value("x"), *([] if is_stored else [value("c", shape, TensorProto.BOOL)])])


def scanned(lengths=(3, 3), **attributes):
    body = helper.make_graph([node("Add", ["p", "q"], ["r"])], "b", [value("p", (2,)), value("q", (2,))], [value("r", None)])
    return graph([node("Scan", ["x", "w"], body=body, num_scan_inputs=2, name="TheNode", **attributes)],
                 inputs=[value("x", (lengths[0], 2)), value("w", (lengths[1], 2))])


def sequence(dtype):
    return graph([node("SequenceEmpty", [], ["s"], dtype=dtype, name="TheNode"), node("SequenceInsert", ["s", "x"], ["t"]),
                  node("SequenceAt", ["t", "i"])], [scalar("i", 0)])


def untyped_attribute(typed=0):
    made = graph([node("Softmax", ["x"], axis=0, name="TheNode")])
    made.graph.node[0].attribute[0].type = typed
    return made


def untyped_input(has_type=False):
    made = fresh(PLAIN)
    if not has_type:
        made.graph.input[0].ClearField("type")
    return made


INTS = numpy.int64
FOREIGN = {"domain": "com.microsoft"}


def foreign(op, operands, types, **attributes):
    """A com.microsoft operator of inputs: (name, shape) and types."""
    made = graph([node(op, [name for name, _ in operands], name="TheNode", **FOREIGN, **attributes)],
                 inputs=[value(name, shape, kind) for (name, shape), kind in zip(operands, types)],
                 outputs=[helper.make_empty_tensor_value_info("y")])
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


F16, F32, F64, I32, I64 = (getattr(TensorProto, name) for name in ("FLOAT16", "FLOAT", "DOUBLE", "INT32", "INT64"))
ROWS = [("x", (2, 3, 8)), ("skip", (2, 3, 8)), ("gamma", (8,)), ("beta", (8,))]
ATTENDED = [("x", (2, 3, 8)), ("w", (8, 24)), ("b", (24,)), ("mask", (2, 3))]
MATRICES = [("x", (2, 3)), ("w", (3, 4))]
# Names that end with " no" are refused here and by ONNX Runtime; others are accepted by both.
TYPED = {
    "norm": foreign("SkipLayerNormalization", ROWS, [F32] * 4),
    "norm with a gamma in f64 no": foreign("SkipLayerNormalization", ROWS, [F32, F32, F64, F32]),
    "norm with a beta in f16 no": foreign("SkipLayerNormalization", ROWS, [F32, F32, F32, F16]),
    "attention": foreign("Attention", ATTENDED, [F32, F32, F32, I32], num_heads=2),
    "attention with a mask in f32 no": foreign("Attention", ATTENDED, [F32] * 4, num_heads=2),
    "attention with a mask in i64 no": foreign("Attention", ATTENDED, [F32] * 3 + [I64], num_heads=2),
    "Gelu": foreign("Gelu", [("x", (2, 3))], [F32]),
    "Gelu of integers no": foreign("Gelu", [("x", (2, 3))], [I64]),
    "FusedMatMul": foreign("FusedMatMul", MATRICES, [F32, F32]),
    "FusedMatMul of integers no": foreign("FusedMatMul", MATRICES, [I64, I64]),
    "FusedMatMul of two types no": foreign("FusedMatMul", MATRICES, [F32, F64]),
}


@pytest.mark.parametrize("name", TYPED)
def test_types_of_com_microsoft_are_onnx_runtime_s(name, tmp_path):
    path = save(tmp_path, TYPED[name])
    status, line = inspect(path)
    if name.endswith(" no"):
        assert rejected_elsewhere(path)
        assert status == 65 and "TheNode" in line and "see ONNX Runtime's" in line, line
    else:
        open_session(path.read_bytes())
        assert status == 0, line


def runs_elsewhere(model):
    """Whether ONNX Runtime loads the model and runs it on ones."""
    try:
        session = open_session(save_bytes(model))
        kinds = {"tensor(float)": numpy.float32, "tensor(int64)": numpy.int64, "tensor(bool)": bool}
        session.run(None, {i.name: numpy.ones([d if isinstance(d, int) else 2 for d in i.shape], kinds[i.type])
                           for i in session.get_inputs()})
        return True
    except Exception:
        return False


# What ONNX Runtime refuses, as it loads the file or as it runs: ranks and values of parameters.
UNFIT = {
    **{f"statistics {shape}": normalized(shape) for shape in ((4, 1), (1, 4), ())},
    **{f"statistic {i} of rank 2": normalized((1, 4), [i]) for i in range(4)},
    "instance norm of rank 2": operands("InstanceNormalization", stored("a", numpy.ones((1, 4))), stored("b", numpy.ones((1, 4))),
                                        x=(1, 4, 8)),
    "bias of rank 2": window("Conv", more=[(1, 4)]),
    "pads of rank 2": operands("Pad", stored("p", [[1, 1, 1, 1]], INTS)),
    "pads of rank 2 in pairs": operands("Pad", stored("p", [[1, 1], [1, 1]], INTS)),
    "repeats of rank 2": operands("Tile", stored("r", [[1, 2]], INTS)),
    "shape of rank 2": operands("Reshape", stored("s", [[3, 2]], INTS)),
    "shape that is a scalar": operands("Reshape", stored("s", 6, INTS)),
    **{f"slice by {name} of rank 2": operands("Slice", *(
        stored(n, [[v]] if n == name else [v], INTS) for n, v in (("starts", 0), ("ends", 1), ("axes", 0), ("steps", 1))))
       for name in ("starts", "ends", "axes", "steps")},
    "parts of rank 2": operands("Split", stored("s", [[1, 1]], INTS), outputs=("y", "z")),
    "axis of Squeeze a scalar": operands("Squeeze", stored("a", 0, INTS), x=(1, 3)),
    "axes of Unsqueeze of rank 2": operands("Unsqueeze", stored("a", [[0]], INTS)),
    "axis of ReduceSum a scalar": operands("ReduceSum", stored("a", 0, INTS)),
    "axis of CumSum of rank 2": operands("CumSum", stored("a", [[0]], INTS)),
    "CumSum backward by 5": operands("CumSum", stored("a", 0, INTS), reverse=5),
    **{f"K {k}": operands("TopK", stored("k", k, INTS), outputs=("y", "z")) for k in (1, [1, 1], [[1]])},
    "triangle of a row": operands("Trilu", x=(3,)),
    "triangle of two diagonals": operands("Trilu", stored("k", [0, 1], INTS), x=(3, 3)),
    **{f"expand {x} to {to}": operands("Expand", stored("s", to, INTS), x=x)
       for x, to in (((2, 3), [-1, 3]), ((1, 3), [-1, 3]), ((2, 3), [-2, 3]), (("N", 3), [-1, 3]))},
    "scales and sizes": operands("Resize", None, stored("s", [1, 1, 2, 2]), stored("z", [1, 1, 8, 8], INTS), x=(1, 1, 4, 4)),
    **{f"{op} of -1": graph([node(op, ["n"], name="TheNode")], [scalar("n", -1)]) for op in
       ("HannWindow", "HammingWindow", "BlackmanWindow")},
    "scan of two lengths": scanned((3, 4)),
    **{f"{name} {way}": scanned(**{name: [way]}) for name in ("scan_output_directions",) for way in (7, -1)},
    "scan_input_directions 7": scanned(scan_input_directions=[7, 0]),
    "sequence of type 99": sequence(99),
    "sequence of no type": sequence(0),
    "attribute without a type": untyped_attribute(),
    "input without a type": untyped_input(),
    "unknown operator in a dead branch": conditional((), node("Nonsense", ["x"], ["a"], name="TheNode")),
    "unknown operator of another domain in a dead branch":
        conditional((), node("Nonsense", ["x"], ["a"], name="TheNode", **FOREIGN)),
    "condition of 2": conditional((2,)),
    "condition of none": conditional((0,)),
    "given condition of 2": conditional((2,), is_stored=False),
    "MaxPool in order 5": window("MaxPool", w=None, kernel_shape=[2, 2], storage_order=5),
    "one-hot of a scalar's depths": operands("OneHot", stored("d", [[3]], INTS), stored("v", [0, 1]), x=(2,), kind=I64),
}
# Next to those: both take them.
FIT = {
    "statistics": normalized((4,)), "instance norm": operands("InstanceNormalization", stored("a", numpy.ones(4)),
                                                              stored("b", numpy.ones(4)), x=(1, 4, 8)),
    "pads": operands("Pad", stored("p", [1, 1, 1, 1], INTS)), "repeats": operands("Tile", stored("r", [1, 2], INTS)),
    "given pads of rank 2": graph([node("Pad", ["x", "p"])], inputs=[value("x", (2, 3)), value("p", (1, 4), I64)]),
    "axis of Unsqueeze a scalar": operands("Unsqueeze", stored("a", 0, INTS)),
    "axis of CumSum in a row": operands("CumSum", stored("a", [0], INTS)),
    "diagonal in a row": operands("Trilu", stored("k", [0], INTS), x=(3, 3)),
    "K": operands("TopK", stored("k", [1], INTS), outputs=("y", "z")),
    "expand to a matrix": operands("Expand", stored("s", [[1, 3]], INTS)),
    "no scales, but sizes": operands("Resize", None, stored("s", []), stored("z", [1, 1, 8, 8], INTS), x=(1, 1, 4, 4)),
    "window": graph([node("HannWindow", ["n"])], [scalar("n", 3)]),
    "scan": scanned(scan_input_directions=[1, 0], scan_output_directions=[1]),
    "sequence": sequence(1), "attribute": untyped_attribute(AttributeProto.INT), "input": untyped_input(True),
    **{f"condition {shape}": conditional(shape) for shape in ((), (1,), (1, 1))},
    "given condition in a row": conditional((1,), is_stored=False),
    "known operator in a dead branch": conditional((), node("Abs", ["x"], ["a"])),
    "MaxPool": window("MaxPool", w=None, kernel_shape=[2, 2], storage_order=1),
    "unused function of an unknown operator": function(used=False, nodes=[node("Nonsense", ["a"], ["b"])]),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_onnx_runtime_refuses_is_refused(name, tmp_path):
    assert not runs_elsewhere(UNFIT[name])
    words = ["TheNode"] if b"TheNode" in save_bytes(UNFIT[name]) else ["has no type"]
    assert_refused("inspect", save(tmp_path, UNFIT[name]), words=words)


@pytest.mark.parametrize("name", FIT)
def test_what_onnx_runtime_runs_is_accepted(name, tmp_path):
    assert runs_elsewhere(FIT[name])
    status, line = inspect(save(tmp_path, FIT[name]))
    assert status == 0, line

"""Small graphs whose answers hang on what runtimes do with NaN, rounding, empty loops, and sizes that are known only when
they run, against ONNX Runtime. Longer than most: a few lines each."""

import json
import resource
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracle import open_session
from test_microsoft_nodes import BINARY, MICROSOFT, agrees, node, random, write_case

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")


@pytest.mark.parametrize("zero", [np.uint8(3), np.int8(-3)])
def test_what_is_not_a_number_is_quantized_to_the_lowest(tmp_path, zero):
    """As quantizers leave masks: -inf by a scale of infinity."""
    feeds = {"x": np.array([-np.inf, np.nan, -1, 0, 1, np.inf], np.float32)}
    for name, scale in (("inf", np.inf), ("one", 1)):
        nodes = [node("QuantizeLinear", "x s z", "q"), node("Cast", "q", "y", to=TensorProto.INT64)]
        write_case(tmp_path / name, nodes, feeds, {"s": np.float32(scale), "z": zero})
    agrees(tmp_path, 2)


MODES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_the_nearest_pixel(tmp_path, mode, rounding):
    for scale in (0.2, 0.4, 0.6, 1.2, 1.4, 2.4, 2.6, 3.3, 4.8):
        feeds = {"x": np.arange(30, dtype=np.float32).reshape(1, 1, 3, 10)}
        nodes = [node("Resize", "x e s", "y", mode="nearest", nearest_mode=rounding,
                      coordinate_transformation_mode=mode)]
        nodes[0].input[1] = ""
        write_case(tmp_path / str(scale), nodes, feeds, {"s": np.array([1, 1, 1, scale], np.float32)})
    agrees(tmp_path, 9)


COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn"]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resizing_by_scales_that_round_the_size(tmp_path, mode):
    """A model for each way of coordinates: sizes 3 to 13 by scales 0.3 to 3.3. For align_corners the same by size: by scales
    that round, ONNX Runtime differs from ONNX's own tests."""
    sizes, scales = range(3, 14), [round(0.3 + 0.2 * i, 1) for i in range(16)]
    for coordinates in COORDINATES:
        is_by_size = coordinates == "align_corners"
        nodes = [helper.make_node("Resize", [f"x{n}", "", *([""] if is_by_size else []), f"by{n},{scale}"], [f"y{n},{scale}"], mode=mode,
                                  coordinate_transformation_mode=coordinates) for n in sizes for scale in scales]
        by = {f"by{n},{scale}": np.array([1, 1, 2, max(1, int(n * scale))]) if is_by_size else np.array([1, 1, 1, scale], np.float32)
              for n in sizes for scale in scales}
        write_case(tmp_path / coordinates, nodes, {f"x{n}": random(1, 1, 2, n) for n in sizes}, by,
                   [n.output[0] for n in nodes], opset=19)
    agrees(tmp_path, len(COORDINATES))


@pytest.mark.parametrize("trips", [0, 2])
def test_the_sizes_of_what_no_trip_made(tmp_path, trips):
    body = helper.make_graph(
        [node("Identity", "c", "d"), node("Mul", "x x", "row")], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info("row", TensorProto.FLOAT, [3, 4])])
    nodes = [helper.make_node("Loop", ["m", ""], ["rows"], body=body), node("Shape", "rows", "y")]
    write_case(tmp_path / "case", nodes, {"x": random(3, 4), "m": np.array(trips)})
    agrees(tmp_path, drivers=["dynamic"])


@pytest.mark.parametrize("filter_value", [None, -2.0])
@pytest.mark.parametrize("causal", [0, 1])
def test_rows_of_attention_with_nothing_visible(tmp_path, filter_value, causal):
    attributes = {} if filter_value is None else {"mask_filter_value": filter_value}
    weights = {"w": random(8, 24), "b": random(24)}
    mask = np.array([[1, 1, 0], [0, 0, 0]], np.int32)
    nodes = [node("Attention", "x w b m", "y", MICROSOFT, num_heads=2, unidirectional=causal, **attributes)]
    write_case(tmp_path / "packed", nodes, {"x": random(2, 3, 8), "m": mask}, weights)
    nodes = [node("MultiHeadAttention", "x x x b m", "y", MICROSOFT, num_heads=2, unidirectional=causal, **attributes)]
    write_case(tmp_path / "separate", nodes, {"x": random(2, 3, 8), "m": mask}, {"b": random(24)})
    for case in ("packed", "separate"):  # beside -10000, scores have lost what is below 2**-11
        (tmp_path / case / "data.json").write_text(json.dumps({"rtol": 1e-3, "atol": 2.0**-10}))
    agrees(tmp_path, 2)


@pytest.mark.parametrize("causal", [False, True])
def test_a_model_that_sees_later_tokens_is_no_generator(tmp_path, causal):
    nodes = [node("Gather", "e ids", "x"), node("MatMul", "x q", "a"), node("Transpose", "x", "k", perm=[0, 2, 1]),
             node("MatMul", "a k", "scores"), node("Shape", "ids", "n", start=1), node("Concat", "n n", "square", axis=0),
             node("ConstantOfShape", "square", "none", value=numpy_helper.from_array(np.array([-np.inf], np.float32))),
             node("Trilu", "none one", "later", upper=1), node("Add", "scores later" if causal else "scores zero", "masked"),
             node("Softmax", "masked", "p"), node("MatMul", "p x", "y"), node("Transpose", "e", "head"),
             node("MatMul", "y head", "logits")]
    weights = {"e": random(32, 8), "q": random(8, 8), "one": np.array(1), "zero": np.zeros(1, np.float32)}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", "S"])],
                              [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", "S", 32])],
                              [numpy_helper.from_array(a, n) for n, a in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    for tool in ("ark-serve", "ark-inspect"):
        options = ["--model"] if tool == "ark-serve" else []
        run = subprocess.run([BINARY.parent / tool, "--check", *options, tmp_path / "model.onnx"], capture_output=True, text=True)
        assert ("fills blanks" in run.stdout + run.stderr) != causal, (tool, run.stdout + run.stderr)
        assert run.returncode == (65 if tool == "ark-serve" and not causal else 0), run.stderr


@pytest.mark.parametrize("queries, documents", [(1, 4), (3, 3), (2, 1)])
def test_sizes_that_meet_in_a_broadcast_as_it_runs(tmp_path, queries, documents):
    nodes = [node("Mul", "q d", "p"), node("ReduceSum", "p a", "y")]
    write_case(tmp_path / "case", nodes, {"q": random(queries, 8), "d": random(documents, 8, scale=2)}, {"a": np.array([1])},
               sizes={"q": ["queries", 8], "d": ["documents", 8]})
    agrees(tmp_path)


@pytest.mark.parametrize("users, items", [(1, 5), (5, 5), (5, 1)])
def test_one_user_against_many_items(tmp_path, users, items):
    """Tokens that are looked up do not make their file a decoder, whose sizes never broadcast."""
    nodes = []
    for name in ("user", "item"):
        nodes += [node("Gather", f"table {name}", f"rows_{name}"), node("ReduceMean", f"rows_{name} a", f"mean_{name}", keepdims=0)]
    nodes += [node("Mul", "mean_user mean_item", "p"), node("ReduceSum", "p a", "y", keepdims=0)]
    feeds = {"user": np.arange(users * 3).reshape(users, 3) % 9, "item": np.arange(items * 2).reshape(items, 2) % 7}
    write_case(tmp_path / "case", nodes, feeds, {"table": random(9, 4), "a": np.array([1])}, opset=18,
               sizes={"user": ["users", "h"], "item": ["items", "k"]})
    agrees(tmp_path)


def test_quantized_rows_by_one_row_of_scales(tmp_path):
    nodes = [node("MatMulInteger", "x w", "t"), node("Cast", "t", "c", to=TensorProto.FLOAT), node("Mul", "c a", "y")]
    write_case(tmp_path / "case", nodes, {"x": np.arange(15, dtype=np.uint8).reshape(5, 3), "a": random(1, 3)},
               {"w": np.arange(9, dtype=np.int8).reshape(3, 3)}, sizes={"x": ["m", 3], "a": ["n", 3]})
    agrees(tmp_path)


@pytest.mark.parametrize("a, b", [(2, 1), (1, 4), (3, 3)])
@pytest.mark.parametrize("names", ["one", "two"])
def test_sizes_of_one_name_and_sizes_that_a_later_node_wants_equal(tmp_path, names, a, b):
    """Only what a node needs for itself: ONNX Runtime takes 1 and n by one name, and a sum of both where n is joined."""
    last = [node("MatMul", "p w", "y"), node("Softmax", "p", "y")]
    if b >= a:
        last.append(node("Concat", "p b", "y", axis=1))
    sizes = {"a": ["n", 8], "b": ["n" if names == "one" else "m", 8]}
    for then in last:
        write_case(tmp_path / then.op_type, [node("Add", "a b", "p"), then], {"a": random(a, 8), "b": random(b, 8)},
                   {"w": random(8, 2)} if then.op_type == "MatMul" else {}, sizes=sizes)
    agrees(tmp_path, len(last))


ODD = 2 ** 53 + 1  # the first integer that a double does not hold


@pytest.mark.parametrize("values, found", [
    (np.array([ODD, ODD - 1, ODD]), ([ODD - 1, ODD], [1, 0], [1, 0, 1], [1, 2])),
    # As numpy has it: one value, behind the others. ONNX Runtime takes it for equal to whatever comes next.
    (np.array([2, np.nan, 1, np.nan, 2], np.float32), ([1, 2, np.nan], [2, 0, 1], [1, 2, 0, 2, 1], [1, 2, 2]))])
def test_unique_tells_apart_what_differs(tmp_path, values, found):
    results = [np.array(r, values.dtype if i == 0 else np.int64) for i, r in enumerate(found)]
    write_case(tmp_path / "case", [node("Unique", "x", "y first inverse counts")], {"x": values},
               outputs=("y", "first", "inverse", "counts"), results=results)
    agrees(tmp_path, drivers=("dynamic",))


def test_a_size_that_divides_another(tmp_path):
    """The width of one input cuts another, and the parts are added to a third: none may be solved for as nothing."""
    nodes = [node("Shape", "w", "width"), node("Concat", "open width", "target", axis=0), node("Reshape", "x target", "cut"),
             node("MatMul", "z cut", "y")]
    write_case(tmp_path / "case", nodes, {"w": random(3), "x": random(12), "z": random(2, 4)}, {"open": np.array([-1])},
               sizes={"w": ["W"], "x": ["N"], "z": ["R", "K"]})
    agrees(tmp_path)


@pytest.mark.parametrize("driver", ["static", "dynamic", "auto"])
def test_a_reshape_to_what_only_the_run_can_compare(tmp_path, driver):
    """A model for one size of image whose export leaves height and width open."""
    nodes = [node("Relu", "x", "a"), node("Reshape", "a cut", "b"), node("Relu", "b", "c"), node("Reshape", "c back", "d"),
             node("Add", "d d", "y")]
    write_case(tmp_path / "case", nodes, {"x": random(2, 4, 8)}, {"cut": np.array([2, 16, 2]), "back": np.array([4, 16])},
               sizes={"x": ["batch", "height", "width"]})
    agrees(tmp_path, drivers=[driver])
    np.save(tmp_path / "x.npy", random(2, 5, 8))
    run = subprocess.run([BINARY, tmp_path / "case" / "model.onnx", "--driver", driver, "--input", f"x={tmp_path / 'x.npy'}"],
                         capture_output=True, text=True)
    assert run.returncode not in (0, 70) and run.returncode > 0 and "(Reshape)" in run.stderr, (run.returncode, run.stderr)


I64 = np.int64
# Values and sizes that are known only as it runs, and fit nothing: (nodes, inputs with their declared sizes).
UNFIT = {
    "Gather": ([node("Gather", "x i", "y")], {"x": (random(2, 4), "n 4"), "i": (np.array([5], I64), "k")}),
    "Gather of nothing": ([node("Gather", "x i", "y")], {"x": (random(0, 4), "n 4"), "i": (np.array([0], I64), "k")}),
    "GatherND": ([node("GatherND", "x i", "y")], {"x": (random(3, 4), "n 4"), "i": (np.array([[77]], I64), "k 1")}),
    "GatherElements": ([node("GatherElements", "x i", "y", axis=1)],
                       {"x": (random(2, 4), "n 4"), "i": (np.zeros((900_000, 1), I64), "k 1")}),
    "ScatterND": ([node("ScatterND", "x i u", "y")], {"x": (random(4, 40), "n 40"), "i": (np.zeros((50_000, 1), I64), "k 1"),
                                                      "u": (random(50_000, 1), "k m")}),
    "ScatterElements": ([node("ScatterElements", "x i u", "y")],
                        {"x": (random(4, 40), "n 40"), "i": (np.zeros((4, 40), I64), "k 40"), "u": (random(1, 1), "l m")}),
    "ReverseSequence": ([node("ReverseSequence", "x l", "y", batch_axis=0, time_axis=1)],
                        {"x": (random(2, 4), "n t"), "l": (np.array([2**60, 1], I64), "k")}),
    "lengths of ReverseSequence": ([node("ReverseSequence", "x l", "y", batch_axis=0, time_axis=1)],
                                   {"x": (random(2, 4), "n t"), "l": (np.array([1], I64), "k")}),
    "ArgMax": ([node("ArgMax", "x", "y", axis=0)], {"x": (random(0, 4), "n 4")}),
    **{f"position {at} of tables of 4": (
        [node("RotaryEmbedding", "x p c s", "y", MICROSOFT)],
        {"x": (random(1, 2, 2, 8), "b 2 t 8"), "p": (np.array([[0, at]], I64), "b t"), "c": (random(4, 4), "r 4"),
         "s": (random(4, 4), "r 4")}) for at in (4, 9, -1, 2**40)},
}


@pytest.mark.parametrize("name", UNFIT)
@pytest.mark.parametrize("driver", ["static", "dynamic", "auto"])
def test_values_that_do_not_fit_are_an_error_of_the_node(tmp_path, driver, name):
    """No kernel may read or write where they point. ONNX Runtime refuses them, too."""
    nodes, feeds = UNFIT[name]
    sizes = {n: [int(s) if s.isdigit() else s for s in text.split()] for n, (_, text) in feeds.items()}
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(I64): TensorProto.INT64}
    output = TensorProto.INT64 if name == "ArgMax" else TensorProto.FLOAT
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(n, kinds[a.dtype], sizes[n]) for n, (a, _) in feeds.items()],
                              [helper.make_tensor_value_info("y", output, None)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    session = open_session(tmp_path / "model.onnx")
    with pytest.raises(Exception, match=nodes[0].op_type):
        session.run(None, {n: a for n, (a, _) in feeds.items()})
    options = []
    for n, (array, _) in feeds.items():
        np.save(tmp_path / f"{n}.npy", array)
        options += ["--input", f"{n}={tmp_path / n}.npy"]
    run = subprocess.run([BINARY, tmp_path / "model.onnx", "--driver", driver, *options], capture_output=True, text=True)
    assert run.returncode > 0 and run.returncode != 70 and run.stderr.count("\n") == 1, (run.returncode, run.stderr)
    assert f"({nodes[0].op_type})" in run.stderr


@pytest.mark.parametrize("what", ["trips", "condition", "body"])
def test_a_loop_that_is_told_nothing_is_an_error_of_the_node(tmp_path, what):
    """A tensor of no elements, where the graph promises one: it asked a server's memory."""
    body = helper.make_graph(
        [node("Identity", "none" if what == "body" else "c", "d"), node("Add", "s s", "t")], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, None),
         helper.make_tensor_value_info("s", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, None), helper.make_tensor_value_info("t", TensorProto.FLOAT, None)])
    nodes = [node("Slice", "ones begin count", "few"), node("Cast", "few", "none", to=TensorProto.BOOL),
             helper.make_node("Loop", ["few" if what == "trips" else "", "none" if what == "condition" else "go", "x"], ["y"], body=body)]
    stored = {"ones": np.ones(1, I64), "begin": np.zeros(1, I64), "go": np.array(True)}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
                                           helper.make_tensor_value_info("count", TensorProto.INT64, [1])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                              [numpy_helper.from_array(a, n) for n, a in stored.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", random(3))
    np.save(tmp_path / "count.npy", np.zeros(1, I64))
    run = subprocess.run([BINARY, tmp_path / "model.onnx", "--input", f"x={tmp_path / 'x.npy'}", "--input",
                          f"count={tmp_path / 'count.npy'}"], capture_output=True, text=True)
    assert run.returncode > 0 and run.stderr.count("\n") == 1, (run.returncode, run.stderr)
    assert "(Loop)" in run.stderr and "0 elements, not 1" in run.stderr


@pytest.mark.parametrize("what", ["state", "rows"])
def test_a_loop_that_grows_leaves_memory_to_others(tmp_path, what):
    """Each trip doubles its state, or joins what all trips made: memory that nobody touches yet is promised without end."""
    one = [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    state = helper.make_tensor_value_info("s", TensorProto.FLOAT, None)
    grown = node("Concat", "s s", "t", axis=0) if what == "state" else node("Identity", "s", "t")
    outputs = [helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info("t", TensorProto.FLOAT, None)]
    nodes, extra = [node("Identity", "c", "d"), grown], []
    if what == "rows":
        nodes.append(node("Add", "s s", "row"))
        extra = [helper.make_tensor_value_info("row", TensorProto.FLOAT, None)]
    body = helper.make_graph(nodes, "body", [*one, state], [*outputs, *extra])
    loop = helper.make_node("Loop", ["m", "", "x"], ["last", *(["all"] if extra else [])], body=body)
    graph = helper.make_graph([loop, node("Shape", "all" if extra else "last", "y")], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]), helper.make_tensor_value_info("m", TensorProto.INT64, [])],
                              [helper.make_tensor_value_info("y", TensorProto.INT64, None)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.zeros(1 << 20, np.float32))
    np.save(tmp_path / "m.npy", np.array(60 if what == "state" else 1000))
    limit = 1 << 30  # of addresses; the process counts it as what is left
    run = subprocess.run([BINARY, tmp_path / "model.onnx", "--threads", "1", "--run-memory", "4G", "--input", f"x={tmp_path / 'x.npy'}",
                          "--input", f"m={tmp_path / 'm.npy'}"],
                         capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert run.returncode > 0 and run.stderr.count("\n") == 1, (run.returncode, run.stderr)
    assert "MiB of memory are left" in run.stderr


@pytest.mark.parametrize("imported", [[("", 13), ("ai.onnx", 13)], [("ai.onnx", 11), ("", 13)], [("", 13), ("ai.onnx", 11)]])
def test_a_domain_that_is_imported_twice(tmp_path, imported):
    """As skl2onnx writes most files; Softmax of opset 11 sums over all axes from the given one on."""
    write_case(tmp_path / "case", [node("Softmax", "x", axis=0)], {"x": random(2, 3)},
               imports=[helper.make_opsetid(*one) for one in imported])
    agrees(tmp_path)


def test_sizes_that_two_equal_nodes_take_from_the_data(tmp_path):
    """As DeBERTa's layers slice one table by the same numbers: one node stays, and its size has one name."""
    nodes = []
    for i in "ab":
        nodes += [node("Slice", "x n m", f"part_{i}"), node("Mul", f"part_{i} w_{i}", f"scaled_{i}"),
                  node("Unsqueeze", f"scaled_{i} zero", f"raised_{i}"), node("NonZero", "x", f"places_{i}"),
                  node("Transpose", f"places_{i}", f"turned_{i}", perm=[1, 0]), node("Unsqueeze", f"turned_{i} zero", f"rows_{i}")]
    nodes += [node("MatMul", "raised_a raised_b", "y"), node("Sub", "rows_a rows_b", "z")]
    feeds = {"x": random(6, 6), "n": np.array([1]), "m": np.array([4])}
    weights = {"w_a": random(6), "w_b": random(6, scale=2), "zero": np.array([0])}
    nodes[0].input[:] = nodes[6].input[:] = ["x", "n", "m", "axis"]
    nodes[-2:-2] = [node("Transpose", "raised_b", "back", perm=[0, 2, 1])]
    nodes[-2].input[1] = "back"
    write_case(tmp_path / "case", nodes, feeds, weights | {"axis": np.array([0])}, ("y", "z"), sizes={"n": [1], "m": [1], "x": ["rows", 6]})
    agrees(tmp_path, drivers=["dynamic"])


@pytest.mark.parametrize("bounds", ["x low", "x _ high", "x"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_bounds_that_are_left_out_are_finite(tmp_path, bounds, kind):
    feeds = {"x": np.array([np.inf, -np.inf, np.nan, 1, -3, 3], kind)}
    write_case(tmp_path / "case", [node("Clip", bounds)], feeds, {"low": np.array(-1, kind), "high": np.array(2, kind)}, opset=13)
    agrees(tmp_path)


@pytest.mark.parametrize("shape, axes", [((3, 2), [1]), ((3, 2), [0, -1]), ((3, 2), [-4, 1]), ((3, 2), [2, 3]), ((0, 2), [-1]),
                                         ((), [0]), ((), [1, 0])])
def test_axes_to_add_that_the_run_tells(tmp_path, shape, axes):
    write_case(tmp_path / "case", [node("Unsqueeze", "x a", "t"), node("Add", "t t", "y")],
               {"x": np.full(shape, 2.5, np.float32), "a": np.array(axes)}, sizes={"x": [f"n{i}" for i in range(len(shape))]})
    agrees(tmp_path, drivers=["dynamic"])


@pytest.mark.parametrize("axes", [[1], [-1, 1], [3], [-3]])
def test_axes_to_drop_that_the_run_tells(tmp_path, axes):
    write_case(tmp_path / "case", [node("Squeeze", "x a", "t"), node("Add", "t t", "y")], {"x": random(3, 1, 2, 1), "a": np.array(axes)},
               sizes={"x": ["n", "m", 2, 1]})
    agrees(tmp_path, drivers=["dynamic"])


@pytest.mark.parametrize("shape", [(3, 1, 2), (1, 1, 2), (0, 1, 2)])
@pytest.mark.parametrize("opset", [11, 13])
def test_axes_of_one_that_the_run_tells(tmp_path, shape, opset):
    write_case(tmp_path / "case", [node("Squeeze", "x", "t"), node("Mul", "t t", "y")], {"x": random(*shape)}, opset=opset,
               sizes={"x": ["n", 1, 2]})
    agrees(tmp_path, drivers=["dynamic"])


@pytest.mark.parametrize("axes", [{}, {"axes": [1]}])
def test_bounds_as_attributes_of_a_tensor_whose_rank_the_run_tells(tmp_path, axes):
    nodes = [node("ConstantOfShape", "c", "t"), node("Slice", "t", "y", starts=[0], ends=[-1], **axes)]
    write_case(tmp_path / "case", nodes, {"c": np.array([2, 3])}, opset=9, sizes={"c": ["rank"]})
    agrees(tmp_path, drivers=["dynamic"])


@pytest.mark.parametrize("op, opset, attributes", [("InstanceNormalization", 17, {}), ("GroupNormalization", 21, {"num_groups": 2}),
                                                   ("GroupNormalization", 18, {"num_groups": 2})])
def test_norms_of_as_many_channels_as_come(tmp_path, op, opset, attributes):
    weights = 2 if opset == 18 else 4
    feeds = {"x": random(2, 4, 3), "s": random(weights), "b": random(weights, scale=2)}
    write_case(tmp_path / "case", [node(op, "x s b", "y", **attributes)], feeds, opset=opset,
               sizes={"x": [2, "c", 3], "s": [2 if opset == 18 else "c"], "b": [2 if opset == 18 else "c"]})
    agrees(tmp_path)


ENDS = {"least": -2**63, "most": 2**63 - 1}


@pytest.mark.parametrize("op", ["ReduceMin", "ReduceMax", "ReduceSum", "ReduceProd"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_constants_at_the_ends_of_the_integers(tmp_path, op, end):
    other = 0 if op == "ReduceSum" else 1 if op == "ReduceProd" else 5
    nodes = [node(op, "c", "y", **({"keepdims": 0} if op == "ReduceMin" else {})), node("Shape", "x", "z")]
    write_case(tmp_path / "case", nodes, {"x": random(2, 4)}, {"c": np.array([end, other])}, ("y", "z"), opset=13)
    agrees(tmp_path)


@pytest.mark.parametrize("op", ["Max", "Min", "Add", "Sub", "Mul", "Less", "Greater", "Equal"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_sizes_beside_the_ends_of_the_integers(tmp_path, op, end):
    """Sums and products wrap."""
    nodes = [node("Shape", "x", "s"), node(op, "s c", "p"), node("Cast", "p", "y", to=TensorProto.INT64)]
    write_case(tmp_path / "case", nodes, {"x": random(2, 4)}, {"c": np.array([end, 1])}, opset=13, sizes={"x": ["n", "m"]})
    agrees(tmp_path)


REDUCTIONS = ["Sum", "Mean", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]
REALS = [[1, np.nan, 3], [np.nan] * 3, [np.inf, np.inf, 1], [np.inf, 1, 2], [-np.inf, np.inf, 0], [-np.inf] * 3, [-np.inf, 1, 2],
         [0, 0, 0], [-1, 2, -3], [np.nan, np.inf, 1], [1, np.inf, np.nan], [80, 801, 802], [-800, -801, -802]]


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_reductions_of_special_values(tmp_path, op, kind):
    write_case(tmp_path / "case", [node("Reduce" + op, "x a", keepdims=0)], {"x": np.array(REALS, kind)}, {"a": np.array([1])}, opset=18)
    agrees(tmp_path)


@pytest.mark.parametrize("op", [*REDUCTIONS, "Max", "Min"])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_reductions_of_integers(tmp_path, op, kind):
    """Up to where a sum leaves the type; logarithms and roots do not. ONNX Runtime rounds each exponential."""
    rows = [[3, 6, 5], [0, 0, 0], [-1, -2, 4], [300, 20, 1], [30, 30, 30]] + [[-7, -8, -1]] * (op != "LogSumExp")
    if op in ("L2", "LogSumExp"):
        rows += [[np.iinfo(kind).max, 1, 0]]
    for name, columns in (("some", 3), ("none", 0)):
        if name == "some" or op in ("Sum", "Prod", "LogSum", "LogSumExp"):
            write_case(tmp_path / name, [node("Reduce" + op, "x a", keepdims=0)], {"x": np.array(rows, kind)[:, :columns]},
                       {"a": np.array([1])}, opset=18)
    agrees(tmp_path, len(list(tmp_path.iterdir())))

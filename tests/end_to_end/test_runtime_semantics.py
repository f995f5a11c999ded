"""Small graphs whose answers hang on what runtimes do with NaN, rounding, empty loops, and sizes that are known only when
they run, against ONNX Runtime."""

import json
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
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


def test_a_size_that_divides_another(tmp_path):
    """The width of one input cuts another, and the parts are added to a third: none may be solved for as nothing."""
    nodes = [node("Shape", "w", "width"), node("Concat", "open width", "target", axis=0), node("Reshape", "x target", "cut"),
             node("MatMul", "z cut", "y")]
    write_case(tmp_path / "case", nodes, {"w": random(3), "x": random(12), "z": random(2, 4)}, {"open": np.array([-1])},
               sizes={"w": ["W"], "x": ["N"], "z": ["R", "K"]})
    agrees(tmp_path)

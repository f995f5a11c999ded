"""Loop and Scan whose state, elements and collected results have sizes that only the run tells or that the graph computes,
against ONNX Runtime."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from operator_cases import BINARY, agrees, node, random, write_case

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")

FLOAT, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, elem_type=FLOAT, shape=None):
    return helper.make_tensor_value_info(name, elem_type, shape)


def loop(inputs, outputs, nodes, states=(), results=(), rank=None):
    """A Loop of `m` trips; bodies read `i` and their states."""
    shape = None if rank is None else [None] * rank
    body = helper.make_graph([node("Identity", "c", "go"), *nodes], "body",
                             [info("i", I64, []), info("c", BOOL, []), *(info(n, FLOAT, shape) for n in states)],
                             [info("go", BOOL, []), *(info(n, FLOAT, shape) for n in results)])
    return helper.make_node("Loop", ["m", "", *inputs.split()], outputs.split(), body=body)


def scan(inputs, outputs, nodes, before, after, **attributes):
    body = helper.make_graph(nodes, "body", [info(n) for n in before], [info(n) for n in after])
    return helper.make_node("Scan", inputs.split(), outputs.split(), body=body, num_scan_inputs=1, **attributes)


READERS = {
    "shape": [node("Shape", "z", "y")],
    "filled": [node("Shape", "z", "q"), node("Slice", "q one two", "r"), node("ConstantOfShape", "r", "y")],
    "cut": [node("Slice", "z minus big one", "y")],
    "reshaped": [node("Reshape", "z kept", "y")],
}
NUMBERS = {"one": [1], "two": [2], "minus": [-1], "big": [2**62], "kept": [0, 0, -1]}


def used(numbers, nodes):
    return {n: np.array(v) for n, v in numbers.items() if any(n in a.input for a in nodes)}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_what_a_loop_collects_of_a_state_that_broadcasts(tmp_path, rank, reader):
    if rank == 1 and reader == "reshaped":
        pytest.skip("it keeps two axes and joins others")
    x = random(*[2, 3, 1, 4][:rank])
    nodes = [loop("s", "t z", [node("Add", "st x", "ns"), node("Identity", "ns", "so")], ["st"], ["ns", "so"], rank),
             *READERS[reader]]
    write_case(tmp_path / "case", nodes, {"x": x, "s": np.ones([1] * rank, np.float32)},
               {"m": np.array(5), **used(NUMBERS, nodes)}, opset=18,
               sizes={"x": [f"n{i}" for i in range(rank)], "s": [f"k{i}" for i in range(rank)]})
    agrees(tmp_path, drivers=["dynamic"])


def test_what_a_loop_collects_of_a_count_that_is_an_input(tmp_path):
    body = [node("Gather", "x i", "row", axis=0), node("TopK", "row k", "top places"), node("Identity", "top", "so")]
    nodes = [loop("", "z", body, results=["so"]), node("Unsqueeze", "z a", "u"), node("Shape", "u", "y")]
    write_case(tmp_path / "case", nodes, {"x": random(4, 6), "k": np.array([3])}, {"m": np.array(4), "a": np.array([0])},
               sizes={"x": ["n", 6], "k": [1]})
    agrees(tmp_path, drivers=["dynamic"])


@pytest.mark.parametrize("at", [0, 1, 2, -1])
def test_what_a_scan_collects_along_any_axis(tmp_path, at):
    body = [node("Add", "st row", "ns"), node("NonZero", "row", "places"), node("Cast", "places", "so", to=FLOAT)]
    nodes = [scan("s x", "t z", body, ["st", "row"], ["ns", "so"], scan_output_axes=[at]), node("Shape", "z", "shape"), node("Concat", "shape shape", "y", axis=0)]
    write_case(tmp_path / "case", nodes, {"x": random(2, 3, 5)}, {"s": np.ones((3, 5), np.float32)}, sizes={"x": [2, 3, "k"]})
    agrees(tmp_path, drivers=["dynamic"])


COMPUTED = {"cut": [node("Slice", "x one big", "t")], "joined": [node("Concat", "x x", "t", axis=0)],
            "strided": [node("Slice", "x zero big zero two", "t")]}


@pytest.mark.parametrize("maker", COMPUTED)
def test_states_of_a_size_that_the_graph_computes(tmp_path, maker):
    nodes = [*COMPUTED[maker], loop("t", "y z", [node("Add", "st st", "ns"), node("Identity", "ns", "so")], ["st"], ["ns", "so"])]
    write_case(tmp_path / "case", nodes, {"x": random(3, 4)}, {"m": np.array(2), **used({**NUMBERS, "zero": [0]}, nodes)},
               ("y", "z"), sizes={"x": ["n", 4]})
    agrees(tmp_path, drivers=["dynamic"])


@pytest.mark.parametrize("at", [0, 1])
def test_a_scan_over_a_size_that_the_graph_computes(tmp_path, at):
    body = [node("Add", "st row", "ns"), node("Identity", "ns", "so")]
    nodes = [node("Slice", "x one big", "t"), node("ReduceSum", "t along", "s", keepdims=0),
             scan("s t", "y z", body, ["st", "row"], ["ns", "so"], scan_input_axes=[at])]
    write_case(tmp_path / "case", nodes, {"x": random(3, 4)}, {"along": np.array([at]), **used(NUMBERS, nodes)}, ("y", "z"),
               sizes={"x": ["n", 4]})
    agrees(tmp_path, drivers=["dynamic"])


def test_a_loop_over_what_a_convolution_leaves(tmp_path):
    nodes = [node("Conv", "x w", "t", strides=[2]), loop("t", "y", [node("Add", "st st", "ns")], ["st"], ["ns"])]
    write_case(tmp_path / "case", nodes, {"x": random(1, 2, 9)}, {"w": random(2, 2, 3), "m": np.array(2)}, sizes={"x": [1, 2, "n"]})
    agrees(tmp_path, drivers=["dynamic"])

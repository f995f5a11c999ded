"""What exporters write of image models beyond ONNX's own tests, against ONNX Runtime: tf2onnx's crops in loops, PyTorch's layers
that standardize their weights, operators with sizes that only the run tells."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from operator_cases import BINARY, agrees, node, random, write_case

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")


@pytest.mark.parametrize("declared", [[], [1]])
def test_loops_whose_counter_is_a_row(tmp_path, declared):
    """tf2onnx's crop_and_resize slices by the number of the trip, which its body declares to have one axis."""
    going = [helper.make_tensor_value_info("i", TensorProto.INT64, declared), helper.make_tensor_value_info("c", TensorProto.BOOL, declared)]
    cut = [] if declared else [node("Reshape", "i row", "at")]
    at = "i" if declared else "at"
    body = [node("Identity", "c", "again"), *cut, node("Add", f"{at} row", "end"), node("Slice", f"x {at} end zero", "part"),
            node("Squeeze", "part zero", "piece")]
    results = [helper.make_tensor_value_info("again", TensorProto.BOOL, declared),
               helper.make_tensor_value_info("piece", TensorProto.FLOAT, None)]
    around = helper.make_node("Loop", ["trips", ""], ["y"], body=helper.make_graph(body, "body", going, results))
    weights = {"trips": np.array(3), "row": np.array([1]), "zero": np.array([0])}
    write_case(tmp_path / "case", [around], {"x": random(4, 2, 5)}, weights)
    agrees(tmp_path, drivers=["dynamic"])


@pytest.mark.parametrize("shape", [(1, 4, 18), (3, 4), (2, 4, 5, 3), (2, 4, 1, 2, 3)])
def test_batch_norms_by_their_own_statistics(tmp_path, shape):
    """Layers that standardize their weights (BiT, NFNet), and their running statistics."""
    nodes = [node("BatchNormalization", "x s b m v", "y mean var", training_mode=1, momentum=0.7, epsilon=1e-3)]
    feeds = {"x": random(*shape) + 2}
    weights = {name: np.abs(random(4) + i).astype(np.float32) for i, name in enumerate("sbmv")}
    write_case(tmp_path / "case", nodes, feeds, weights, ("y", "mean", "var"), sizes={"x": ["n", 4, *shape[2:]]})
    agrees(tmp_path)


def test_dropouts_of_nothing(tmp_path):
    """`F.dropout(x, p=0.0)` is exported in training mode."""
    nodes = [node("Dropout", "x ratio training", "y mask")]
    weights = {"ratio": np.float32(0), "training": np.array(True)}
    write_case(tmp_path / "case", nodes, {"x": random(2, 3)}, weights, ("y", "mask"))
    agrees(tmp_path)

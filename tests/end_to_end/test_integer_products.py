"""Products of 8-bit matrices beyond one tile and one chunk of K, against numpy and ONNX Runtime."""

import numpy as np
import pytest
from onnx import numpy_helper

from test_microsoft_nodes import agrees, node, pytestmark, write_case  # noqa: F401


@pytest.mark.parametrize("batch, m, k, n", [((), 1, 700, 150), ((), 140, 257, 65), ((2, 3), 5, 600, 64)])
@pytest.mark.parametrize("signed, per_column", [((0, 1), False), ((0, 0), True), ((1, 1), True)])
def test_integer_products_are_exact(tmp_path, batch, m, k, n, signed, per_column):
    random = np.random.default_rng(m)
    a_type, b_type = (np.int8 if s else np.uint8 for s in signed)
    draw = lambda t, size: random.integers(np.iinfo(t).min, np.iinfo(t).max + 1, size).astype(t)
    weights = {"b": draw(b_type, (k, n)), "za": draw(a_type, ()), "zb": draw(b_type, (n,) if per_column else ())}
    a = draw(a_type, (*batch, m, k))
    write_case(tmp_path / "case", [node("MatMulInteger", "a b za zb", "y")], {"a": a}, weights, opset=17)
    # ONNX Runtime's sums saturate on processors without VNNI.
    b, za, zb = (array.astype(np.int64) for array in weights.values())
    exact = ((a.astype(np.int64) - za) @ (b - zb)).astype(np.int32)
    (tmp_path / "case" / "test_data_set_0" / "output_0.pb").write_bytes(
        numpy_helper.from_array(exact, "y").SerializeToString())
    agrees(tmp_path)


@pytest.mark.parametrize("scales, zeros", [((6,), (6,)), ((6,), ()), ((6,), (1,)), ((), (6,)), ((), ())])
@pytest.mark.parametrize("op, shape, weight", [("QLinearMatMul", (5, 8), (8, 6)), ("QLinearConv", (1, 2, 9), (6, 2, 3))])
def test_one_zero_point_may_stand_beside_many_scales(tmp_path, op, shape, weight, scales, zeros):
    random = np.random.default_rng(3)
    draw = lambda size: random.integers(0, 256, size).astype(np.uint8)
    weights = {"xs": np.float32(0.02), "xz": np.uint8(100), "w": draw(weight), "wz": np.full(zeros, 120, np.uint8),
               "ws": random.uniform(0.01, 0.03, scales).astype(np.float32), "ys": np.float32(0.4), "yz": np.uint8(128)}
    nodes = [node(op, "x xs xz w ws wz ys yz", "q"), node("Cast", "q", "y", to=1)]
    write_case(tmp_path / "case", nodes, {"x": draw(shape)}, {n: np.asarray(a) for n, a in weights.items()})
    agrees(tmp_path)

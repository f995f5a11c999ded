"""Products of 8-bit matrices beyond one tile and one chunk of K, against numpy and ONNX Runtime; and products with
4-bit codes of bitsandbytes."""

import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from test_microsoft_nodes import BINARY, MICROSOFT, agrees, node, pytestmark, write_case  # noqa: F401


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


@pytest.mark.parametrize("n, k, block", [(5, 64, 16), (3, 96, 64), (7, 33, 32), (1, 1, 16)])
@pytest.mark.parametrize("kind", [0, 1])
def test_every_code_of_bitsandbytes(tmp_path, n, k, block, kind):
    random = np.random.default_rng(n)
    weights = {"b": random.integers(0, 256, (n * k + 1) // 2).astype(np.uint8),
               "largest": random.uniform(0.1, 2, -(-n * k // block)).astype(np.float32)}
    nodes = [node("MatMulBnb4", "x b largest", "y", MICROSOFT, K=k, N=n, block_size=block, quant_type=kind)]
    write_case(tmp_path / "case", nodes, {"x": random.standard_normal((2, 3, k)).astype(np.float32)}, weights)
    agrees(tmp_path)


@pytest.mark.parametrize("change, reason", [({"K": 2**62}, "are not those of"), ({"N": 2**62}, "are not those of"),
                                            ({"block_size": 2**62}, "are not those of"), ({"K": -1}, "are not those of"),
                                            ({"block_size": 24}, "power of two"), ({"quant_type": 2}, "quant_type 2"),
                                            ({"transB": 0}, "transB 0")])
def test_sizes_of_bitsandbytes_that_do_not_fit(tmp_path, change, reason):
    attributes = {"K": 32, "N": 4, "block_size": 16, "quant_type": 1, **change}
    graph = helper.make_graph(
        [node("MatMulBnb4", "x b largest", "y", MICROSOFT, **attributes)], "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32])], [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.zeros(64, np.uint8), "b"), numpy_helper.from_array(np.ones(8, np.float32), "largest")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "model.onnx")
    run = subprocess.run([BINARY, tmp_path / "model.onnx"], capture_output=True, text=True, timeout=300)
    assert run.returncode != 0 and reason in run.stderr and run.stderr.count("\n") == 1, run.stderr


@pytest.mark.parametrize("columns, past, causal", [(1, True, 1), (48, True, 1), (48, False, 0)])
def test_attention_of_bytes(tmp_path, columns, past, causal):
    random = np.random.default_rng(columns)
    hidden, heads, batch = 16, 2, 2
    weights = {"w": random.integers(0, 256, (hidden, 3 * hidden)).astype(np.uint8), "b": draw_normal(random, 48),
               "ws": random.uniform(0.005, 0.01, columns).astype(np.float32), "wz": np.full(columns, 120, np.uint8)}
    weights |= {"ws": weights["ws"][0], "wz": weights["wz"][0]} if columns == 1 else {}
    feeds = {"x": draw_normal(random, batch, 3, hidden)}
    if past:
        feeds["past"] = draw_normal(random, 2, batch, heads, 5, hidden // heads)
    quantize = node("DynamicQuantizeLinear", "x", "q s z")
    attention = helper.make_node("QAttention", [*"q w b s ws".split(), "", "z", "wz", *(["past"] if past else [])],
                                 ["y", "present"], domain=MICROSOFT, num_heads=heads, unidirectional=causal)
    write_case(tmp_path / "case", [quantize, attention], feeds, {n: np.asarray(a) for n, a in weights.items()},
               ("y", "present"))
    agrees(tmp_path)


def draw_normal(random, *size):
    return random.standard_normal(size).astype(np.float32)

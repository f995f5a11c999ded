"""Tables of 2, 4 and 8 bits that are looked up, against ONNX Runtime."""

import ml_dtypes
import numpy as np
import pytest

from test_microsoft_nodes import MICROSOFT, agrees, node, pytestmark, write_case  # noqa: F401

TYPES = {"u8": np.uint8, "u4": ml_dtypes.uint4, "i4": ml_dtypes.int4}


def packed(codes, bits):
    """Several a byte along the last axis, the last of which may not be full."""
    each = 8 // bits
    padded = np.zeros((*codes.shape[:-1], -(-codes.shape[-1] // each), each), np.uint8)
    padded.reshape(*codes.shape[:-1], -1)[..., :codes.shape[-1]] = codes
    return np.bitwise_or.reduce(padded << np.arange(0, 8, bits, dtype=np.uint8), axis=-1)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind, bits, shape, axes", [
    ("u8", 4, (7, 80), (0, 1)), ("u8", 8, (7, 40), (0, 1)), ("u8", 2, (7, 88), (0, 1)), ("u8", 4, (5, 3, 48), (0, 2)), ("u4", 4, (7, 40), (0, 1)),
    ("i4", 4, (7, 48), (0, 1)), ("i4", 4, (40, 6), (1, 0)), ("i4", 4, (6, 40, 4), (0, 1))])
def test_rows_of_quantized_tables(tmp_path, kind, bits, shape, axes, zeros):
    gather, along = axes
    places = tuple(-(-n // 16) if i == along else n for i, n in enumerate(shape))
    random = np.random.default_rng(len(shape) + bits)
    low, high = (-8, 8) if kind == "i4" else (0, 2**bits)
    pack = (lambda a: packed(a, bits)) if kind == "u8" and bits < 8 else lambda a: a.astype(TYPES[kind])
    draw = lambda size: pack(random.integers(low, high, size))
    weights = {"table": draw(shape), "scales": random.uniform(0.01, 0.2, places).astype(np.float32)}
    if zeros:
        weights["zeros"] = draw(places)
    attributes = {"gather_axis": gather, "quantize_axis": along, "block_size": 16}
    if bits != 4:
        attributes["bits"] = bits
    nodes = [node("GatherBlockQuantized", "table ids scales" + zeros * " zeros", "y", MICROSOFT, **attributes)]
    feeds = {"ids": np.array([[0, 3, -1], [2, 2, 1]])}
    write_case(tmp_path / "case", nodes, feeds, weights, opset=21)
    agrees(tmp_path)

"""Products of 8-bit matrices beyond one tile and one chunk of K, against ONNX Runtime."""

import numpy as np
import pytest

from test_microsoft_nodes import agrees, node, pytestmark, write_case  # noqa: F401


@pytest.mark.parametrize("batch, m, k, n", [((), 1, 700, 150), ((), 140, 257, 65), ((2, 3), 5, 600, 64)])
@pytest.mark.parametrize("signed, per_column", [((0, 1), False), ((0, 0), True), ((1, 1), True)])
def test_integer_products_are_exact(tmp_path, batch, m, k, n, signed, per_column):
    random = np.random.default_rng(m)
    a_type, b_type = (np.int8 if s else np.uint8 for s in signed)
    draw = lambda t, size: random.integers(np.iinfo(t).min, np.iinfo(t).max + 1, size).astype(t)
    weights = {"b": draw(b_type, (k, n)), "za": draw(a_type, ()), "zb": draw(b_type, (n,) if per_column else ())}
    write_case(tmp_path / "case", [node("MatMulInteger", "a b za zb", "y")], {"a": draw(a_type, (*batch, m, k))}, weights,
               opset=17)
    agrees(tmp_path)

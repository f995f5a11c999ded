"""Masks of decoders without caches are proven as far as they are served, or the decoder is served less far."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ark_server import BIN, ROOT

ZOO = Path(os.environ.get("ARK_ZOO", ROOT / "build" / "zoo")) / "no-past-window"
WINDOW, LENGTH = 600, 606  # of the preset; of its data set

pytestmark = pytest.mark.skipif(not (BIN / "ark-run").exists() or not ZOO.exists(),
                                reason=f"no {BIN}/ark-run (scripts/build.sh makes it) or no {ZOO} (models/zoo.py)")


def recognised(path):
    run = subprocess.run([BIN / "ark-inspect", path, "--stage", "recognise", "--json"], capture_output=True, text=True,
                         timeout=300, check=True)
    return json.loads(run.stdout)


def gives_the_logits_of_onnx_runtime(path):
    run = subprocess.run([BIN / "ark-run", path, "--driver", "decoder", "--test-data", ZOO / "test_data_set_0"],
                         capture_output=True, text=True, timeout=300)
    return run.stdout.startswith("PASS")


def test_a_long_window_is_seen(tmp_path):
    stored = onnx.load_tensor(ZOO / "test_data_set_0" / "input_0.pb")
    assert list(stored.dims) == [1, LENGTH] and LENGTH > WINDOW
    model = tmp_path / "model.onnx"  # without the configuration beside it
    model.write_bytes((ZOO / "model.onnx").read_bytes())
    assert recognised(model)["max_positions"] == 8192
    assert gives_the_logits_of_onnx_runtime(ZOO / "model.onnx")


def test_a_mask_that_cannot_be_evaluated_in_parts_limits_the_length(tmp_path):
    """The mask is cut behind its first column and joined again, which changes nothing."""
    model = onnx.load(ZOO / "model.onnx")
    graph = model.graph
    mask = next(n.output[0] for n in graph.node if n.op_type == "Where" and "self_attn" in n.name and
                any(n.output[0] in r.input and r.op_type == "Slice" for r in graph.node))
    for n in graph.node:
        n.input[:] = ["joined" if i == mask else i for i in n.input]
    at = next(i for i, n in enumerate(graph.node) if mask in n.output) + 1
    for offset, n in enumerate([helper.make_node("Slice", [mask, "zero", "one", "three"], ["left"]),
                                helper.make_node("Slice", [mask, "one", "most", "three"], ["right"]),
                                helper.make_node("Concat", ["left", "right"], ["joined"], axis=3)]):
        graph.node.insert(at + offset, n)
    for name, value in {"zero": 0, "one": 1, "three": 3, "most": 2**62}.items():
        graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    onnx.save(model, tmp_path / "model.onnx")
    assert WINDOW < recognised(tmp_path / "model.onnx")["max_positions"] < 8192
    assert gives_the_logits_of_onnx_runtime(tmp_path / "model.onnx")


@pytest.mark.parametrize("sees", ["later", "prefix", "all"])
def test_a_prefix_that_sees_itself_is_no_masked_model(tmp_path, sees):
    """Tokens of a prefix see each other and nothing behind it: served plain. Only where the first token sees the last one
    is the model for blanks."""
    small, size = np.float32(-1e9), 8
    nodes = [helper.make_node("Gather", ["e", "ids"], ["x"]), helper.make_node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
             helper.make_node("MatMul", ["x", "k"], ["scores"]), helper.make_node("Shape", ["ids"], ["n"], start=1, end=2),
             helper.make_node("Squeeze", ["n"], ["length"]), helper.make_node("Range", ["zero", "length", "one"], ["keys"]),
             helper.make_node("Unsqueeze", ["keys", "axis"], ["rows"]),
             helper.make_node("LessOrEqual", ["keys", "rows"], ["causal"]), helper.make_node("Less", ["keys", "size"], ["prefix"]),
             helper.make_node("Or", ["causal", "prefix"], ["shown"]), helper.make_node("Where", ["shown", "scores", "low"], ["masked"]),
             helper.make_node("Softmax", ["masked"], ["p"]), helper.make_node("MatMul", ["p", "x"], ["y"]),
             helper.make_node("MatMul", ["y", "head"], ["logits"])]
    table = np.random.default_rng(0).standard_normal((32, 8)).astype(np.float32)
    last = {"later": 0, "prefix": size, "all": 1 << 40}[sees]
    stored = {"e": table, "head": table.T.copy(), "zero": np.array(0), "one": np.array(1), "axis": np.array([1]),
              "size": np.array(last), "low": small}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["B", "S"])],
                              [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["B", "S", 32])],
                              [numpy_helper.from_array(np.asarray(a), n) for n, a in stored.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    run = subprocess.run([BIN / "ark-serve", "--check", "--model", tmp_path / "model.onnx"], capture_output=True, text=True,
                         timeout=300)
    said = run.stdout + run.stderr
    assert ("fills blanks" in said, "a later token is seen" in said) == (sees == "all", sees != "later"), said
    assert run.returncode == (65 if sees == "all" else 0)

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

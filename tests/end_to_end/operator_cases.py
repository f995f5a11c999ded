"""Small graphs with what ONNX Runtime makes of them, as data sets for `ark-run --suite`."""

import json
import subprocess

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ark_server import BIN
from oracle import open_session

BINARY = BIN / "ark-run"
MICROSOFT, CLASSIC = "com.microsoft", "ai.onnx.ml"
TYPES = {np.dtype(t): helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in ("f4", "f8", "i8", "i4", "i1", "u1", "?", "O")}
NAMED = {"tensor(float)": TensorProto.FLOAT, "tensor(int32)": TensorProto.INT32, "tensor(uint8)": TensorProto.UINT8,
         "tensor(int8)": TensorProto.INT8, "tensor(double)": TensorProto.DOUBLE, "tensor(bool)": TensorProto.BOOL,
         "tensor(string)": TensorProto.STRING}


def node(op, inputs, outputs="y", domain="", **attributes):
    """Inputs and outputs by name, apart by blanks; `_` is one left out."""
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), domain=domain, **attributes)


def write_case(folder, nodes, feeds, weights=None, outputs=("y",), opset=17, sizes=None, results=None, atol=None,
               imports=None):
    """The graph with what ONNX Runtime makes of it, or `results`; `sizes` of inputs may have names; `imports` stand for `opset`."""
    inputs = [helper.make_tensor_value_info(n, TYPES[a.dtype], (sizes or {}).get(n, a.shape)) for n, a in feeds.items()]
    infos = [helper.make_empty_tensor_value_info(n) for n in outputs]
    stored = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "case", inputs, infos, stored)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1), helper.make_opsetid(CLASSIC, 3)]
    model = helper.make_model(graph, opset_imports=imports or opsets, ir_version=8 if opset < 21 else 10)
    session = open_session(model.SerializeToString())
    data = folder / "test_data_set_0"
    data.mkdir(parents=True)
    for info, actual in zip(model.graph.output, session.get_outputs()):
        elem_type = NAMED.get(actual.type, TensorProto.INT64)
        info.CopyFrom(helper.make_tensor_value_info(info.name, elem_type, actual.shape))
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    if atol is not None:
        (folder / "data.json").write_text(json.dumps({"rtol": 1e-3, "atol": atol}))
    results = session.run(None, feeds) if results is None else results
    for kind, named in (("input", feeds.items()), ("output", zip(outputs, results))):
        for index, (name, array) in enumerate(named):
            (data / f"{kind}_{index}.pb").write_bytes(numpy_helper.from_array(array, name).SerializeToString())


def agrees(folder, count=1, drivers=("dynamic", "static")):
    for driver in drivers:
        run = subprocess.run([BINARY, "--suite", folder, "--driver", driver], capture_output=True, text=True,
                             timeout=300)
        assert run.stdout.splitlines()[-1] == f"{count} passed, 0 failed, 0 skipped", run.stdout + run.stderr


def random(*shape, scale=1.0):
    return (np.random.default_rng(len(shape)).standard_normal(shape) * scale).astype(np.float32)

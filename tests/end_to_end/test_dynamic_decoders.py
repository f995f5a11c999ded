"""Decoders whose activations are rounded as they run, by ONNX Runtime's quantizer. The decoder that is recognised must
give what the file's weights give with real activations; the plain graph what ONNX Runtime makes of the file itself."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from ark_server import FIXTURES
from test_quantized_decoders import agree, by_ark, by_onnx_runtime, preset, pytestmark, write  # noqa: F401

SIZES = {"layers": 2, "hidden": 64, "heads": 4, "intermediate": 96, "vocab": 100}


def quantize(source, target, **options):
    quantize_dynamic(source, target, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT,
                                                    "MatMulConstBOnly": options.pop("weights_only", True)}, **options)


def fuse(path):
    """As ONNX Runtime writes what it has optimized."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def with_real_activations(source, target):
    """The same weights, (code - zero) * scale in f32, in products of reals."""
    model = onnx.load(source)
    real, ones, nodes = {}, set(), []
    as_float = lambda x, name: helper.make_node("Cast", [x], [name], to=onnx.TensorProto.FLOAT)
    for n in model.graph.node:
        if n.op_type == "DynamicQuantizeLinear":
            real[n.output[0]] = n.input[0]
            ones.add(n.output[1])
            continue
        if n.op_type == "MatMulInteger":
            operands = list(n.input[:2])
            for i, codes in enumerate(operands):
                operands[i] = real.get(codes) or f"{n.name}_real_{i}"
                if codes not in real:
                    nodes += [as_float(codes, f"{n.name}_codes_{i}"), as_float(n.input[2 + i], f"{n.name}_zero_{i}"),
                              helper.make_node("Sub", [f"{n.name}_codes_{i}", f"{n.name}_zero_{i}"], [operands[i]])]
            n = helper.make_node("MatMul", operands, n.output, name=n.name)
        nodes.append(n)
    for n in nodes:
        n.input[:] = ["real_one" if i in ones else i for i in n.input]
    model.graph.initializer.append(numpy_helper.from_array(np.array(1, np.float32), "real_one"))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, target)


def check(path, oracle):
    want, feeds = by_onnx_runtime(oracle)
    literal, _ = by_onnx_runtime(path)
    assert np.abs(want - literal).max() > 1e-3 * np.abs(want).max()  # the rounding can be told from none
    for tp in "1", "2":
        agree(by_ark(path, feeds, "--driver", "decoder", "--tp", tp), want)
    agree(by_ark(path, feeds, "--driver", "dynamic"), literal)


KINDS = {
    "int8": {}, "int8-columns": {"per_channel": True}, "uint8": {"weight_type": QuantType.QUInt8},
    "uint8-columns": {"weight_type": QuantType.QUInt8, "per_channel": True},
    "reduced": {"reduce_range": True, "per_channel": True}, "scores-too": {"weights_only": False},
}


@pytest.mark.parametrize("fused", [False, True], ids=["standard", "fused"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_decoders_of_the_dynamic_quantizer(tmp_path, monkeypatch, name, kind, fused):
    monkeypatch.setenv("ARK_RUN_ACTIVATIONS", "f32")
    real, path = tmp_path / "real.onnx", tmp_path / "model.onnx"
    write(preset(name, **SIZES), real)
    quantize(real, path, **KINDS[kind])
    with_real_activations(path, real)
    if fused:
        fuse(path)
    check(path, real)


@pytest.mark.skipif(not FIXTURES.exists(), reason=f"no {FIXTURES}")
@pytest.mark.parametrize("name", ["gpt2-dynamo", "gpt2-ort-fused", "llama-dynamo-latest", "llama-genai-fp32",
                                  "llama-ort-fused"])
def test_exporters_files_of_the_dynamic_quantizer(tmp_path, monkeypatch, name):
    monkeypatch.setenv("ARK_RUN_ACTIVATIONS", "f32")
    real, path = tmp_path / "real.onnx", tmp_path / "model.onnx"
    quantize(FIXTURES / name / "model.onnx", path)
    with_real_activations(path, real)
    check(path, real)

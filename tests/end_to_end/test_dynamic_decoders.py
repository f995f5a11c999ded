"""Decoders whose activations are rounded as they run, by ONNX Runtime's quantizer. The decoder that is recognised must
give what the file's weights give with real activations; the plain graph what ONNX Runtime makes of the file itself."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static

from ark_server import FIXTURES
from oracle import ADDS_EXACTLY, open_session
from test_quantized_decoders import agree, by_ark, by_onnx_runtime, preset, pytestmark, write  # noqa: F401

SIZES = {"layers": 2, "hidden": 64, "heads": 4, "intermediate": 96, "vocab": 100}


def quantize(source, target, **options):
    options.setdefault("reduce_range", not ADDS_EXACTLY and options.get("weight_type") != QuantType.QUInt8)
    quantize_dynamic(source, target, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT,
                                                    "MatMulConstBOnly": options.pop("weights_only", True)}, **options)


def fuse(path):
    """As ONNX Runtime writes what it has optimized."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    open_session(str(path), options)


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
                if codes not in real and len(n.input) < 3 + i:
                    nodes.append(as_float(codes, operands[i]))
                elif codes not in real:
                    nodes += [as_float(codes, f"{n.name}_codes_{i}"), as_float(n.input[2 + i], f"{n.name}_zero_{i}"),
                              helper.make_node("Sub", [f"{n.name}_codes_{i}", f"{n.name}_zero_{i}"], [operands[i]])]
            n = helper.make_node("MatMul", operands, n.output, name=n.name)
        if n.op_type == "QAttention":
            codes, w, bias, x_scale, scale, mask, x_zero, zero, *past = n.input
            if codes not in real:
                real[codes] = codes + "_real"
                nodes.append(helper.make_node("DequantizeLinear", [codes, x_scale, x_zero], [real[codes]]))
            nodes += [as_float(w, w + "_codes"), as_float(zero, w + "_zero"),
                      helper.make_node("Sub", [w + "_codes", w + "_zero"], [w + "_apart"]),
                      helper.make_node("Mul", [w + "_apart", scale], [w + "_real"])]
            kept = {a.name: helper.get_attribute_value(a) for a in n.attribute}
            n = helper.make_node("Attention", [real[codes], w + "_real", bias, mask, *past], n.output, name=n.name,
                                 domain=n.domain, **kept)
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


# Of others an element of llama's values lies within 1e-8 of the middle of two codes, and each runtime takes another one.
SEEDS = {"scores-too": 2}


@pytest.mark.parametrize("fused", [False, True], ids=["standard", "fused"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_decoders_of_the_dynamic_quantizer(tmp_path, monkeypatch, name, kind, fused):
    monkeypatch.setenv("ARK_RUN_ACTIVATIONS", "f32")
    real, path = tmp_path / "real.onnx", tmp_path / "model.onnx"
    write(preset(name, **SIZES), real, SEEDS.get(kind, 0))
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


def write_attention(path, direct):
    """A decoder of one block whose projections lie in com.microsoft's Attention, as ONNX Runtime fuses GPT-2's."""
    random, hidden, heads, vocab = np.random.default_rng(3), 32, 4, 100
    weights = {"table": (vocab, hidden), "w": (hidden, 3 * hidden), "b": (3 * hidden,), "head": (hidden, vocab)}
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["x" if direct else "rows"]),
             *([] if direct else [helper.make_node("Tanh", ["rows"], ["x"])]),
             helper.make_node("Attention", ["x", "w", "b", "", "past_0"], ["mixed", "present_0"], name="attention",
                              domain="com.microsoft", num_heads=heads, unidirectional=1),
             helper.make_node("Add", ["x", "mixed"], ["y"]),
             helper.make_node("MatMul", ["y", "head"], ["logits"], name="head")]
    value = lambda name, kind, *shape: helper.make_tensor_value_info(name, kind, shape)
    real = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "attention", [value("input_ids", onnx.TensorProto.INT64, "batch", "sequence"),
                             value("past_0", real, 2, "batch", heads, "past", hidden // heads)],
        [value("logits", real, "batch", "sequence", vocab), value("present_0", real, 2, "batch", heads, "total", 8)],
        [numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) / 4, n) for n, shape in weights.items()])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.parametrize("direct", [False, True])  # True: it reads the table's bytes as they are
@pytest.mark.parametrize("kind", ["int8", "uint8-columns"])
def test_attention_of_bytes(tmp_path, monkeypatch, kind, direct):
    monkeypatch.setenv("ARK_RUN_ACTIVATIONS", "f32")
    real, path = tmp_path / "real.onnx", tmp_path / "model.onnx"
    write_attention(real, direct)
    quantize(real, path, **KINDS[kind])
    assert any(n.op_type == "QAttention" for n in onnx.load(path).graph.node)
    with_real_activations(path, real)
    check(path, real)


SPELLINGS = {  # of the product of codes `i` with the scale `s` of the rows and constants `w` of the weights
    "one by one": lambda add, i, s, w: add("Mul", add("Mul", i, s), w(np.ravel)),
    "weights first": lambda add, i, s, w: add("Mul", add("Mul", i, w(np.ravel)), s),
    "rows of scales": lambda add, i, s, w: add("Mul", add("Mul", w(lambda a: a.reshape(1, -1)), s), i),
    "one more axis": lambda add, i, s, w: add("Squeeze", add("Mul", add("Mul", s, w(lambda a: a.reshape(1, 1, 1, -1))), i),
                                              w(lambda a: np.array([0]))),
    "weights much later": lambda add, i, s, w: add("Mul", add("Neg", add("Mul", s, i)), w(lambda a: -a)),
}


@pytest.mark.parametrize("zeros", ["both", "one for all columns", "none of the weights", "none of the rows"])
@pytest.mark.parametrize("way", SPELLINGS)
def test_products_of_bytes_however_they_are_spelled(tmp_path, monkeypatch, way, zeros):
    monkeypatch.setenv("ARK_RUN_ACTIVATIONS", "f32")
    real, path = tmp_path / "real.onnx", tmp_path / "model.onnx"
    write(preset("llama", **SIZES), real)
    model = onnx.load(real)
    weights = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    nodes = []

    def add(op, *inputs, outputs=1, **attributes):
        names = [f"new_{len(nodes)}_{i}" for i in range(outputs)]
        nodes.append(helper.make_node(op, inputs, names, name=names[0], **attributes))
        return names if outputs > 1 else names[0]

    def constant(array):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), f"c{len(model.graph.initializer)}"))
        return model.graph.initializer[-1].name

    for n in model.graph.node:
        if n.op_type != "MatMul" or n.input[1] not in weights:
            nodes.append(n)
            continue
        w = weights[n.input[1]]
        scale = (np.abs(w).max(0) / (120 if ADDS_EXACTLY else 60)).astype(np.float32)
        zero = np.full(w.shape[1] if zeros == "both" else (), 0 if zeros == "none of the weights" else 3, np.int8)
        q, s, z = add("DynamicQuantizeLinear", n.input[0], outputs=3)
        w_zero = [] if zeros == "none of the weights" else [constant(zero)]
        i = add("MatMulInteger", q, constant((np.round(w / scale) + zero).astype(np.int8)),
                "" if zeros == "none of the rows" else z, *w_zero)
        y = SPELLINGS[way](add, add("Cast", i, to=onnx.TensorProto.FLOAT), s, lambda form: constant(form(scale)))
        nodes.append(helper.make_node("Identity", [y], n.output))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, path)
    literal, feeds = by_onnx_runtime(path)
    if zeros == "none of the rows" or way == "one more axis":  # other numbers than the rows', or of another shape
        refusal = by_ark(path, feeds, "--driver", "decoder", refused=True)
        assert "has no form that works token by token" in refusal
        return agree(by_ark(path, feeds, "--driver", "dynamic"), literal)
    with_real_activations(path, real)
    check(path, real)


class Calibration(CalibrationDataReader):
    def __init__(self, feeds):
        self.feeds = iter([feeds])

    def get_next(self):
        return next(self.feeds, None)


@pytest.mark.parametrize("codes", [QuantType.QUInt8, QuantType.QInt8, QuantType.QUInt16])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_decoders_that_round_by_constant_scales(tmp_path, name, codes):
    """What they do to each number is kept, so that the file itself is the oracle; but a sum that lies between two codes
    may become the other one, a step of the calibrated range away."""
    real, path = tmp_path / "real.onnx", tmp_path / "model.onnx"
    write(preset(name, **SIZES), real)
    model = onnx.load(real)
    weights = {i.name for i in model.graph.initializer}
    scores = [n.name for n in model.graph.node if n.op_type == "MatMul" and n.input[1] not in weights]
    want, feeds = by_onnx_runtime(real)
    quantize_static(real, path, Calibration(feeds), activation_type=codes, weight_type=QuantType.QInt8,
                    per_channel=True, op_types_to_quantize=["MatMul", "Gemm", "Gather"], nodes_to_exclude=scores)
    assert sum(n.op_type == "QuantizeLinear" for n in onnx.load(path).graph.node) > 15
    literal, _ = by_onnx_runtime(path)
    assert np.abs(want - literal).max() > 1e-3 * np.abs(want).max()
    for tp in "1", "2":
        agree(by_ark(path, feeds, "--driver", "decoder", "--tp", tp), literal, 0.02)

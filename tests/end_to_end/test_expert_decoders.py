"""Mixtures of experts as ONNX Runtime GenAI's builder writes them, in a decoder of that builder: recognised, the numbers of
ONNX Runtime, the same bytes on any number of ranks."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from test_microsoft_nodes import BINARY, FIXTURES, MICROSOFT
from test_quantized_decoders import agree, by_ark

SOURCE = FIXTURES / "llama-genai-fp32" / "model.onnx"
pytestmark = pytest.mark.skipif(not BINARY.exists() or not SOURCE.exists(), reason=f"no {BINARY} or {SOURCE}")
EXPERTS, HIDDEN, INNER, HEADS = 6, 64, 64, 8


class Decoder:
    """The builder's decoder with its feed-forward layers replaced, and its attention given more operands."""

    def __init__(self, path):
        self.path, self.model = path, onnx.load(SOURCE)
        self.graph = self.model.graph
        self.random = np.random.default_rng(7)

    def constant(self, name, array):
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def reals(self, *shape, scale=0.3):
        return (self.random.standard_normal(shape) * scale).astype(np.float32)

    def attention(self, **attributes):
        """`head_sink`: an operand."""
        for node in [n for n in self.graph.node if n.op_type == "GroupQueryAttention"]:
            heads = next(a.i for a in node.attribute if a.name == "num_heads")
            if attributes.get("head_sink"):
                del node.input[11:]
                node.input.extend([""] * (11 - len(node.input)))
                node.input.append(self.constant(f"{node.name}.sinks", self.reals(heads, scale=2)))
            kept = [a for a in node.attribute if a.name not in attributes]
            del node.attribute[:]
            node.attribute.extend(kept + [helper.make_attribute(k, v) for k, v in attributes.items() if k != "head_sink"])

    def experts(self, make):
        """`make(self, layer, x, router, y)`: the nodes of one layer."""
        for layer in range(3):
            mlp = [n for n in self.graph.node if n.name.startswith(f"/model/layers.{layer}/mlp/")]
            at = list(self.graph.node).index(mlp[0])
            x, y, p = mlp[0].input[0], mlp[-1].output[0], f"layers.{layer}."
            w = self.constant(p + "router", self.reals(HIDDEN, EXPERTS, scale=1))
            new = [helper.make_node("MatMul", [x, w], [p + "scores"], p + "router"),
                   helper.make_node("Reshape", [p + "scores", self.constant(p + "flat", np.array([-1, EXPERTS]))],
                                    [p + "routed"], p + "reshape"), *make(self, p, x, p + "routed", y)]
            rest = [n for n in self.graph.node if n not in mlp]
            del self.graph.node[:]
            self.graph.node.extend([*rest[:at], *new, *rest[at:]])

    def save(self):
        if MICROSOFT not in {o.domain for o in self.model.opset_import}:
            self.model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
        onnx.save(self.model, self.path)


def reals(d, p, x, router, y, *, fused, biased, **attributes):
    n = INNER * (2 if fused else 1)
    names = [d.constant(p + "w1", d.reals(EXPERTS, n, HIDDEN)), "", d.constant(p + "w2", d.reals(EXPERTS, HIDDEN, INNER)), ""]
    if biased:
        names[1::2] = [d.constant(p + "b1", d.reals(EXPERTS, n)), d.constant(p + "b2", d.reals(EXPERTS, HIDDEN))]
    return [helper.make_node("MoE", [x, router, *names], [y], p + "moe", domain=MICROSOFT, **attributes)]


def codes(d, p, x, router, y, *, fused, biased, bits, block, zeros, **attributes):
    n = INNER * (2 if fused else 1)

    def stored(name, rows, columns):
        blocks = [columns // block] if block else []
        scales = d.random.uniform(.01, .04, [EXPERTS, rows, *blocks]).astype(np.float32) / (1 if bits == 4 else 16)
        packed = d.random.integers(0, 256, (EXPERTS, rows, columns * bits // 8), np.uint8)
        places = [EXPERTS, rows, -(-blocks[0] * bits // 8)] if block else [EXPERTS, -(-rows * bits // 8)]
        nibbles = d.random.integers(6, 11, (2, *places)) if bits == 4 else d.random.integers(120, 136, (1, *places))
        low = nibbles[0] + 16 * nibbles[1] if bits == 4 else nibbles[0]
        return (d.constant(p + name, packed), d.constant(p + name + ".scales", scales),
                d.constant(p + name + ".zeros", low.astype(np.uint8)) if zeros else "")

    first, second = stored("w1", n, HIDDEN), stored("w2", HIDDEN, INNER)
    b1, b2 = (d.constant(p + "b1", d.reals(EXPERTS, n)), d.constant(p + "b2", d.reals(EXPERTS, HIDDEN))) if biased else ("", "")
    names = [first[0], first[1], b1, second[0], second[1], b2, "", "", "", first[2], second[2]]
    if block:
        attributes["block_size"] = block
    return [helper.make_node("QMoE", [x, router, *names], [y], p + "moe", domain=MICROSOFT, expert_weight_bits=bits, **attributes)]


def steps(path):
    """A prompt and tokens behind it: feeds and logits. What experts read and write are outputs here: else ONNX Runtime
    1.31.1 gives some of their memory to others while its MoE still needs it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    model = onnx.load(path)
    caches = [o.name for o in model.graph.output][1:]
    seen = {v for n in model.graph.node if n.op_type.endswith("MoE") for v in (*n.input[:2], n.output[0])}
    model.graph.output.extend(helper.make_empty_tensor_value_info(v) for v in sorted(seen))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(3).integers(3, 500, (1, 19))
    past = {name.replace("present", "past_key_values"): np.zeros((1, 2, 0, 16), np.float32) for name in caches}
    for begin, end in ((0, 13), (13, 18), (18, 19)):
        feeds = {"input_ids": ids[:, begin:end], "attention_mask": np.ones((1, end), np.int64), **past}
        logits, *present = session.run(["logits", *caches], feeds)
        past = {name.replace("present", "past_key_values"): a for name, a in zip(caches, present)}
        yield feeds, logits


GATED = dict(activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.702, activation_beta=1.0, swiglu_limit=7.0)
SINKS = dict(head_sink=1)
FORMS = {
    # As gpt-oss has it: biases, sinks, a window, 4-bit codes by block.
    "gpt-oss": (SINKS | dict(local_window_size=8), codes, dict(fused=True, biased=True, bits=4, block=32, zeros=False, k=4,
                                                               normalize_routing_weights=1, **GATED)),
    "asymmetric": (dict(smooth_softmax=1), codes, dict(fused=True, biased=False, bits=4, block=16, zeros=True, k=2,
                                                       normalize_routing_weights=1, **GATED)),
    "by row": (dict(softcap=5.0), codes, dict(fused=False, biased=True, bits=8, block=0, zeros=True, k=2,
                                              normalize_routing_weights=1, activation_type="silu")),
    "reals": ({}, reals, dict(fused=True, biased=True, k=2, normalize_routing_weights=1, **GATED)),
    "switch": ({}, reals, dict(fused=False, biased=True, k=1, normalize_routing_weights=0, activation_type="relu")),
}


@pytest.mark.parametrize("form", FORMS)
def test_mixtures_of_experts(tmp_path, form):
    attention, make, attributes = FORMS[form]
    decoder = Decoder(tmp_path / "model.onnx")
    decoder.attention(**attention)
    decoder.experts(lambda *a: make(*a, **attributes))
    decoder.save()
    for step, (feeds, logits) in enumerate(steps(decoder.path)):
        got = by_ark(decoder.path, feeds, "--driver", "decoder")
        agree(got, logits)
        if step == 0:
            agree(by_ark(decoder.path, feeds, "--driver", "dynamic"), logits)
            for ranks in (2, 4):
                np.testing.assert_array_equal(by_ark(decoder.path, feeds, "--driver", "decoder", "--tp", str(ranks)), got)

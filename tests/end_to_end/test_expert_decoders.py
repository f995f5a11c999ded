"""Mixtures of experts as ONNX Runtime GenAI's builder writes them, in a decoder of that builder: recognised, the numbers of
ONNX Runtime, the same bytes on any number of ranks."""

import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from oracle import open_session
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


class Nodes:
    """Of a layer that torch's exporter spells out."""

    def __init__(self, decoder, prefix):
        self.decoder, self.prefix, self.list = decoder, prefix, []

    def add(self, op, *inputs, outputs=1, to=None, **attributes):
        at = f"{self.prefix}{op}{len(self.list)}"
        inputs = [i if isinstance(i, str) else self.decoder.constant(f"{at}.{k}", np.asarray(i)) for k, i in enumerate(inputs)]
        made = [to] if to else [f"{at}:{k}" for k in range(outputs)]
        self.list.append(helper.make_node(op, inputs, made, at, **attributes))
        return made[0] if outputs == 1 else made

    def choices(self, router):
        scores, experts = self.add("TopK", router, [2], outputs=2)
        return experts, self.add("Softmax", scores, axis=-1)

    def in_best_groups(self, router):
        """As DeepSeek-V3 routes: the scores of experts outside the two best of three groups count as 0."""
        best, _ = self.add("TopK", self.add("Reshape", router, [-1, 3, EXPERTS // 3]), [2], outputs=2)
        groups = self.add("ReduceSum", best, [2], keepdims=0)
        chosen = self.add("TopK", groups, [2], outputs=2)[1]
        shape = self.add("Shape", groups)
        zeros = self.add("ConstantOfShape", shape, value=helper.make_tensor("zero", 1, [1], [0.0]))
        ones = self.add("Expand", np.float32(1), self.add("Shape", chosen))
        mask = self.add("Unsqueeze", self.add("ScatterElements", zeros, chosen, ones, axis=1), [2])
        mask = self.add("Reshape", self.add("Expand", mask, [1, 1, EXPERTS // 3]), [-1, EXPERTS])
        return self.add("Where", self.add("Greater", mask, np.float32(0)), router, np.float32(0))


def looked_up(d, p, x, router, y, *, turned):
    """transformers' batched_mm: the weights of each place (token, slot) are gathered."""
    n = Nodes(d, p)
    experts, shares = n.choices(n.in_best_groups(router) if turned else router)
    places = n.add("Reshape", experts, [-1])
    rows = n.add("Unsqueeze", n.add("Reshape", x, [-1, HIDDEN]), [1])
    rows = n.add("Reshape", n.add("Expand", rows, [1, 2, HIDDEN]), [-1, 1, HIDDEN])

    def product(rows, out, into):
        stack = d.reals(EXPERTS, *((into, out) if turned else (out, into)))
        own = n.add("Gather", stack, places, axis=0)
        return n.add("MatMul", rows, own if turned else n.add("Transpose", own, perm=[0, 2, 1]))

    h = n.add("Relu", product(rows, INNER, HIDDEN))
    h = n.add("Reshape", product(h, HIDDEN, INNER), [-1, 2, HIDDEN])
    h = n.add("ReduceSum", n.add("Mul", h, n.add("Unsqueeze", shares, [2])), [1], keepdims=0)
    n.add("Reshape", h, n.add("Shape", x), to=y)
    return n.list


def loop(d, p, x, router, y, *, order):
    """torch.export's form of transformers' loop over experts (OLMoE, FlexOlmo)."""
    n = Nodes(d, p)
    shares, experts = n.add("TopK", n.add("Softmax", router, axis=-1), [2], outputs=2)
    rows = n.add("Reshape", x, [-1, HIDDEN])
    total = n.add("Expand", np.float32(0), n.add("Shape", rows))
    mask = n.add("Equal", n.add("Unsqueeze", experts, [-1]), np.array(order))
    mask = n.add("Transpose", n.add("CastLike", mask, np.int64(0)), perm=[2, 1, 0])
    ones = n.add("Transpose", n.add("Unsqueeze", rows, [0]), perm=[1, 0, 2])
    for e in range(EXPERTS):
        own = n.add("Squeeze", n.add("Gather", mask, [e], axis=0), [0])
        at = n.add("Transpose", n.add("NonZero", own), perm=[1, 0])
        slots, tokens = (n.add("Slice", at, [i], [i + 1], [1]) for i in (0, 1))
        own = n.add("Transpose", n.add("GatherND", ones, tokens), perm=[1, 0, 2])
        h = n.add("Relu", n.add("Gemm", n.add("Reshape", own, [-1, HIDDEN]), d.reals(INNER, HIDDEN), transB=1))
        h = n.add("Gemm", h, d.reals(HIDDEN, INNER), transB=1)
        share = n.add("GatherND", n.add("Unsqueeze", shares, [-1]), n.add("Concat", tokens, slots, axis=1))
        total = n.add("ScatterND", total, tokens, n.add("Mul", h, share), reduction="add")
    n.add("Reshape", total, n.add("Shape", x), to=y)
    return n.list


def dense(d, p, x, router, y, *, biased):
    """gpt-oss as transformers computes it on CPUs: all experts for all tokens, and shares that are mostly 0."""
    n = Nodes(d, p)
    experts, shares = n.choices(router)
    zeros = n.add("ConstantOfShape", n.add("Shape", router), value=helper.make_tensor("zero", 1, [1], [0.0]))
    numbers = n.add("Transpose", n.add("ScatterElements", zeros, experts, shares, axis=1), perm=[1, 0])
    rows = n.add("Reshape", x, [-1, HIDDEN])
    if biased:  # as optimum writes it
        rows = n.add("Reshape", n.add("Tile", rows, [EXPERTS, 1]), [EXPERTS, -1, HIDDEN])
    else:
        rows = n.add("Expand", n.add("Unsqueeze", rows, [0]), [EXPERTS, 1, 1])
    both = n.add("MatMul", rows, d.reals(EXPERTS, HIDDEN, 2 * INNER))
    if biased:
        both = n.add("Add", both, d.reals(EXPERTS, 1, 2 * INNER))
    gate, up = (n.add("Slice", both, [first], [2**31], [2], [2]) for first in (0, 1))
    gate = n.add("Clip", gate, "", np.float32(7))
    h = n.add("Mul", n.add("Mul", gate, n.add("Sigmoid", n.add("Mul", gate, np.float32(1.702)))), n.add("Add", up, np.float32(1)))
    h = n.add("MatMul", h, d.reals(EXPERTS, INNER, HIDDEN))
    if biased:
        h = n.add("Add", h, d.reals(EXPERTS, 1, HIDDEN))
    h = n.add("ReduceSum", n.add("Mul", h, n.add("Unsqueeze", numbers, [2])), [0], keepdims=0)
    n.add("Reshape", h, n.add("Shape", x), to=y)
    return n.list


def steps(path):
    """A prompt and tokens behind it: feeds and logits. What experts read and write are outputs here: else ONNX Runtime
    1.31.1 gives some of their memory to others while its MoE still needs it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    model = onnx.load(path)
    caches = [o.name for o in model.graph.output][1:]
    seen = {v for n in model.graph.node if n.op_type.endswith("MoE") for v in (*n.input[:2], n.output[0])}
    model.graph.output.extend(helper.make_empty_tensor_value_info(v) for v in sorted(seen))
    session = open_session(model.SerializeToString(), options)
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
    "looked up": ({}, looked_up, dict(turned=False)),
    "looked up, turned, by groups": ({}, looked_up, dict(turned=True)),
    "loop": ({}, loop, dict(order=range(EXPERTS))),
    "dense": ({}, dense, dict(biased=False)),
    "dense with biases": ({}, dense, dict(biased=True)),
    "switch": ({}, reals, dict(fused=False, biased=True, k=1, normalize_routing_weights=0, activation_type="relu")),
}


@pytest.mark.parametrize("form", FORMS)
def test_mixtures_of_experts(tmp_path, form):
    attention, make, attributes = FORMS[form]
    decoder = Decoder(tmp_path / "model.onnx")
    decoder.attention(**attention)
    decoder.experts(lambda *a: make(*a, **attributes))
    decoder.save()
    graph = subprocess.run([BINARY.parent / "ark-inspect", decoder.path, "--stage", "recognise"], capture_output=True, text=True).stdout
    assert sum(" = ExpertMatMul(" in line for line in graph.splitlines()) == 3 * (3 if attributes.get("fused") else 2)
    for step, (feeds, logits) in enumerate(steps(decoder.path)):
        got = by_ark(decoder.path, feeds, "--driver", "decoder")
        agree(got, logits)
        if step == 0:
            agree(by_ark(decoder.path, feeds, "--driver", "dynamic"), logits)
            for ranks in (2, 4):
                np.testing.assert_array_equal(by_ark(decoder.path, feeds, "--driver", "decoder", "--tp", str(ranks)), got)


def test_a_loop_whose_experts_have_other_numbers_stays_one(tmp_path):
    decoder = Decoder(tmp_path / "model.onnx")
    decoder.experts(lambda *a: loop(*a, order=[1, 0, *range(2, EXPERTS)]))
    decoder.save()
    card = subprocess.run([BINARY.parent / "ark-inspect", decoder.path], capture_output=True, text=True).stdout
    assert "one sequence at a time" in card and "NonZero" in card, card
    feeds, logits = next(steps(decoder.path))
    agree(by_ark(decoder.path, feeds), logits)


def refused(folder, op, change, names, **attributes):
    """What is said of one node of this operator; `change`: of its operands."""
    random = np.random.default_rng(2)
    arrays = {"w1": random.standard_normal((EXPERTS, INNER, HIDDEN)).astype(np.float32),
              "w2": random.standard_normal((EXPERTS, HIDDEN, INNER)).astype(np.float32)}
    if op == "QMoE":
        arrays = {"w1": np.zeros((EXPERTS, INNER, HIDDEN // 2), np.uint8), "s1": np.ones((EXPERTS, INNER), np.float32),
                  "w2": np.zeros((EXPERTS, HIDDEN, INNER // 2), np.uint8), "s2": np.ones((EXPERTS, HIDDEN), np.float32)}
    arrays |= change
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [5, HIDDEN]),
              helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, [5, EXPERTS])]
    for name, array in list(arrays.items()):
        if array is None:
            del arrays[name]
            inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [EXPERTS, INNER, HIDDEN]))
    node = helper.make_node(op, names, ["y"], "mixed", domain=MICROSOFT, **{"k": 2, "activation_type": "silu"} | attributes)
    graph = helper.make_graph([node], "case", inputs, [helper.make_empty_tensor_value_info("y")],
                              [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)], ir_version=10)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    run = subprocess.run([BINARY.parent / "ark-inspect", folder / "model.onnx"], capture_output=True, text=True, timeout=60)
    assert run.returncode in (65, 69) and "mixed (" in run.stderr, run.stderr
    return run.stderr


MOE, QMOE = ["x", "r", "w1", "", "w2"], ["x", "r", "w1", "s1", "", "w2", "s2"]


@pytest.mark.parametrize("op, names, change, attributes, said", [
    ("MoE", MOE, {}, {"k": 7}, "k is 7, of 6 experts"), ("MoE", MOE, {}, {"k": 0}, "k is 0"),
    ("MoE", MOE, {}, {"use_sparse_mixer": 1}, "use_sparse_mixer"), ("MoE", MOE, {}, {"activation_type": "tanh"}, "none of relu"),
    ("MoE", MOE, {}, {"swiglu_fusion": 3}, "swiglu_fusion"), ("MoE", MOE, {}, {"activation_type": "swiglu"}, "second factor"),
    ("MoE", MOE, {"w1": None}, {}, "weights that are no constant"),
    ("MoE", MOE, {"w2": np.zeros((EXPERTS, HIDDEN, INNER - 1), np.float32)}, {}, "weights of shape [6, 64, 63]"),
    ("MoE", MOE, {"w1": np.zeros((EXPERTS - 1, INNER, HIDDEN), np.float32)}, {}, "weights of shape [5, 64, 64]"),
    ("MoE", MOE, {"w1": np.zeros((EXPERTS, INNER, HIDDEN), np.int32)}, {}, "input 2 is i32"),
    ("QMoE", QMOE, {}, {"expert_weight_bits": 2}, "2-bit weights of experts"),
    ("QMoE", QMOE, {}, {"block_size": 48}, "block_size 48"), ("QMoE", QMOE, {}, {"block_size": 32}, "scales of shape [6, 64]"),
    ("QMoE", QMOE, {}, {"quant_type": "fp4"}, "quant_type 'fp4'"), ("QMoE", QMOE, {}, {"weights_prepacked": 1}, "weights_prepacked"),
    ("QMoE", [*QMOE, "", "", "", "", "z"], {"z": np.zeros((EXPERTS, 31), np.uint8)}, {}, "zero points of shape [6, 31]")])
def test_what_is_wrong_with_a_mixture_is_named(tmp_path, op, names, change, attributes, said):
    assert said in refused(tmp_path, op, change, names, **attributes)


def unpacked(codes, scales, zeros, bits, block):
    """(code - zero) * scale, as the operator's documentation has it."""
    if bits == 4:
        codes, zeros = (np.stack([a & 15, a >> 4], -1).reshape(*a.shape[:-1], -1) for a in (codes, zeros))
    zeros = zeros[..., :scales.shape[-1]]
    return ((codes.astype(np.float64) - zeros.repeat(block, -1)) * scales.repeat(block, -1)).astype(np.float32)


@pytest.mark.parametrize("form", ["gate of its own", "8 bits by block", "weights of its own"])
def test_mixtures_that_onnx_runtime_runs_elsewhere_or_rounds(tmp_path, form):
    """Against the operator's documentation: a third product, which CPUs lack there; 8 bits by block, whose rows are rounded
    there; shares that are not the scores."""
    random = np.random.default_rng(11)
    reals = lambda *shape: (random.standard_normal(shape) * .4).astype(np.float32)
    x, r = reals(2, 5, HIDDEN), reals(10, EXPERTS) * 5
    feeds, attributes = {"x": x, "r": r}, {"k": 3, "activation_type": "silu", "normalize_routing_weights": 1}
    chosen = np.argsort(-r, axis=1)[:, :3]
    picked = np.take_along_axis(r, chosen, 1)
    shares = np.exp(picked) / np.exp(picked).sum(1, keepdims=True)
    bits = 8 if form == "8 bits by block" else 4
    if form == "gate of its own":
        op, w = "MoE", [reals(EXPERTS, INNER, HIDDEN), reals(EXPERTS, HIDDEN, INNER), reals(EXPERTS, INNER, HIDDEN)]
        stored = dict(zip(("w1", "w2", "w3"), w))
        names = ["x", "r", "w1", "", "w2", "", "w3"]
    else:
        op, stored, w = "QMoE", {}, []
        for i, (n, k) in enumerate(((INNER, HIDDEN), (HIDDEN, INNER))):
            parts = [random.integers(0, 256, (EXPERTS, n, k * bits // 8), np.uint8),
                     random.uniform(.5, 1, (EXPERTS, n, k // 16)).astype(np.float32) / 2 ** bits,
                     random.integers(0, 256, (EXPERTS, n, k // 16 * bits // 8), np.uint8)]
            stored |= {f"{kind}{i}": a for kind, a in zip("wsz", parts)}
            w.append(unpacked(*parts, bits, 16))
        w.append(None)
        names = ["x", "r", "w0", "s0", "", "w1", "s1", "", "", "", "", "z0", "z1"]
        attributes |= {"expert_weight_bits": bits, "block_size": 16}
        if form == "weights of its own":
            feeds["given"] = np.abs(reals(10, EXPERTS))
            names += ["", "given"]
            shares = np.take_along_axis(feeds["given"], chosen, 1)
            shares /= shares.sum(1, keepdims=True)
    y = np.zeros((10, HIDDEN))
    for t, row in enumerate(x.reshape(10, HIDDEN).astype(np.float64)):
        for e, share in zip(chosen[t], shares[t]):
            g = w[0][e] @ row
            h = g / (1 + np.exp(-g)) * (1 if w[2] is None else w[2][e] @ row)
            y[t] += share * (w[1][e] @ h)
    inputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape) for n, a in feeds.items()]
    graph = helper.make_graph([helper.make_node(op, names, ["y"], domain=MICROSOFT, **attributes)], "case", inputs,
                              [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, x.shape)],
                              [numpy_helper.from_array(a, n) for n, a in stored.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)], ir_version=10),
              tmp_path / "model.onnx")
    command = [BINARY, tmp_path / "model.onnx", "--output-dir", tmp_path]
    for name, array in feeds.items():
        np.save(tmp_path / f"in_{name}.npy", array)
        command += ["--input", f"{name}={tmp_path / f'in_{name}.npy'}"]
    for driver in ("dynamic", "static"):
        run = subprocess.run([*command, "--driver", driver], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        agree(np.load(tmp_path / "y.npy"), y.reshape(x.shape))

"""Decoders that carry states of one size from step to step (convolutions, linear attention), with caches beside them or
without: served one sequence at a time, with ONNX Runtime's tokens."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ark_server import BIN, Server
from operator_cases import MICROSOFT
from oracle import open_session
from test_static_caches import tool

pytestmark = pytest.mark.skipif(not (BIN / "ark-run").exists(), reason="no ark-run (scripts/build.sh makes it)")
VOCAB, HIDDEN, HEADS, EACH, TAPS = 64, 32, 4, 8, 4
PROMPT, NEW = [3, 17, 42, 5, 9, 60, 2], 12


class Hybrid:
    """Layers by their letters: `c`onvolution, `d`elta rule, `m`amba's recurrence by a Scan, `a`ttention, what an `e`ncoder made."""

    def __init__(self, layers):
        self.nodes, self.inputs, self.outputs, self.weights = [], [], [], {}
        self.random = np.random.default_rng(7)
        self.layers = layers

    def add(self, op, *inputs, outputs=None, domain="", **attributes):
        made = outputs or [f"made{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op, inputs, made, f"{op}_{len(self.nodes)}", domain=domain, **attributes))
        return made[0]

    def weight(self, *shape, scale=.3):
        name = f"w{len(self.weights)}"
        self.weights[name] = (self.random.standard_normal(shape) * scale).astype(np.float32)
        return name

    def product(self, x, width=HIDDEN):
        return self.add("MatMul", x, self.weight(HIDDEN, width))

    def carried(self, name, *shape):
        """All states have names that tell nothing; some have the same shape."""
        self.inputs.append(helper.make_tensor_value_info(f"in{len(self.inputs)}", TensorProto.FLOAT, ["batch", *shape]))
        self.outputs.append(helper.make_tensor_value_info(f"out_{name}", TensorProto.FLOAT, ["batch", *shape]))
        return self.inputs[-1].name, self.outputs[-1].name

    def convolution(self, x, layer):
        given, left = self.carried(f"c{layer}", HIDDEN, TAPS - 1)
        y = self.add("CausalConvWithState", self.add("Transpose", x, perm=[0, 2, 1]), self.weight(HIDDEN, 1, TAPS), "", given,
                     outputs=[f"conv{layer}", left], domain=MICROSOFT, activation="silu")
        return self.add("Transpose", y, perm=[0, 2, 1])

    def delta(self, x, layer):
        given, left = self.carried(f"d{layer}", HEADS, EACH, EACH)
        decay = self.add("Neg", self.add("Softplus", self.product(x, HEADS)))
        rate = self.add("Sigmoid", self.product(x, HEADS))
        return self.add("LinearAttention", self.product(x), self.product(x), self.product(x), given, decay, rate,
                        outputs=[f"delta{layer}", left], domain=MICROSOFT, q_num_heads=HEADS, kv_num_heads=HEADS)

    def mamba(self, x, layer):
        given, left = self.carried(f"m{layer}", HIDDEN)
        value = helper.make_tensor_value_info
        row = ["batch", HIDDEN]
        body = helper.make_graph(
            [helper.make_node("Mul", ["before", "factor"], ["kept"]), helper.make_node("Add", ["kept", "added"], ["after"]),
             helper.make_node("Identity", ["after"], ["given"])], "step",
            [value(n, TensorProto.FLOAT, row) for n in ("before", "factor", "added")],
            [value(n, TensorProto.FLOAT, row) for n in ("after", "given")])
        factor = self.add("Sigmoid", self.product(x))
        self.add("Scan", given, factor, self.product(x), outputs=[left, f"scan{layer}"], body=body, num_scan_inputs=2,
                 scan_input_axes=[1, 1], scan_output_axes=[1])
        return f"scan{layer}"

    def attention(self, x, layer):
        caches = []
        for name in ("k", "v"):
            self.inputs.append(helper.make_tensor_value_info(f"past_{name}{layer}", TensorProto.FLOAT, ["batch", HEADS, "past", EACH]))
            self.outputs.append(helper.make_tensor_value_info(f"present_{name}{layer}", TensorProto.FLOAT, ["batch", HEADS, "all", EACH]))
            caches += [self.inputs[-1].name]
        return self.add("Attention", self.product(x), self.product(x), self.product(x), "", *caches,
                        outputs=[f"att{layer}", f"present_k{layer}", f"present_v{layer}"], q_num_heads=HEADS, kv_num_heads=HEADS,
                        is_causal=1)

    def encoder(self, x, layer):
        given, left = self.carried(f"e{layer}", 3, HIDDEN)
        self.add("Identity", given, outputs=[left])
        self.weights["middle"] = np.array([1])
        return self.add("Add", x, self.add("ReduceMean", given, "middle"))

    def save(self, path, new="new"):
        x = self.add("Gather", self.weight(VOCAB, HIDDEN, scale=1), "ids")
        kinds = {"c": self.convolution, "d": self.delta, "m": self.mamba, "a": self.attention, "e": self.encoder}
        for layer, kind in enumerate(self.layers):
            x = self.add("Add", x, self.product(kinds[kind](x, layer)))
        self.add("MatMul", x, self.weight(HIDDEN, VOCAB), outputs=["logits"])
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes, "hybrid", [value("ids", TensorProto.INT64, ["batch", new]), *self.inputs],
            [value("logits", TensorProto.FLOAT, ["batch", new, VOCAB]), *self.outputs],
            [numpy_helper.from_array(a, n) for n, a in self.weights.items()])
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid(MICROSOFT, 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def tokens_by_onnx_runtime(path, prompt, count):
    session = open_session(path)
    carried = [i for i in session.get_inputs() if i.name != "ids"]
    values = [np.zeros([1, *(0 if n == "past" else n for n in i.shape[1:])], np.float32) for i in carried]
    one = session.get_inputs()[0].shape[1] == 1
    tokens, steps = [], [[token] for token in prompt] if one else [prompt]
    while len(tokens) < count:
        for new in steps:
            logits, *values = session.run(None, {"ids": np.array([new]), **{i.name: v for i, v in zip(carried, values)}})
        steps = [[int(logits[0, -1].argmax())]]
        tokens += steps[0]
    return tokens


@pytest.mark.parametrize("layers, new", [*((layers, "new") for layers in ("c", "dd", "mm", "cdaca", "mdc")), ("cda", 1)])
def test_states_are_carried(tmp_path, layers, new):
    path = tmp_path / "model.onnx"
    Hybrid(layers).save(path, new)
    assert "is a state of one size" in json.loads(tool("ark-inspect", path, "--json").stdout)["serving"]
    wanted = tokens_by_onnx_runtime(path, PROMPT, NEW)
    run = tool("ark-run", path, "--prompt-ids", ",".join(map(str, PROMPT)), "--max-tokens", str(NEW), "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["token_ids"] == wanted
    assert len(set(wanted)) > 2


def test_what_is_handed_on_as_it_came_is_no_state(tmp_path):
    path = tmp_path / "model.onnx"
    Hybrid("ce").save(path)
    assert "input in1 is neither token ids" in json.loads(tool("ark-inspect", path, "--json").stdout)["serving"]


def test_sequences_at_once_keep_their_states_apart(tmp_path):
    path = tmp_path / "model.onnx"
    Hybrid("cda").save(path)
    prompts = [PROMPT, PROMPT[:3], [9] * 40, [1, 2]]
    with Server("--model", path, "--max-num-batched-tokens", 16) as server:
        ask = {"model": server.model, "max_tokens": NEW, "temperature": 0, "logprobs": 0, "prompt": prompts}
        choices = server.post("/v1/completions", ask | {"return_token_ids": True}).json()["choices"]
    for prompt, choice in zip(prompts, choices):
        assert choice["token_ids"] == tokens_by_onnx_runtime(path, prompt, NEW)

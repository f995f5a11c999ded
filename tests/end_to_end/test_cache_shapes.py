"""Decoders whose caches' shapes do not say what is in them: buffers of a fixed size that GroupQueryAttention writes behind
as many tokens as it is told, also of exports for a fixed number of new tokens; and batch and heads in one axis (BLOOM's).
Tokens must be ONNX Runtime's."""

import functools
import json
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ark_server import BIN
from graph import Graph
from oracle import open_session
from test_mask_forms import ark_run, by_ark as continued

HEADS, GROUPS, DIM, VOCAB, LAYERS, LENGTH = 4, 2, 16, 97, 2, 40
HIDDEN = HEADS * DIM
PROMPTS, COUNT = [[5, 17, 3, 42, 9, 77, 23], [8], [(i * 37 + 11) % VOCAB for i in range(21)]], 6
by_ark = functools.partial(continued, count=COUNT)
WHOLE, INT, REAL = TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT


class Builder:
    def __init__(self):
        self.g, self.random, self.pasts, self.presents = Graph(opset=17), np.random.default_rng(3), [], []

    def matrix(self, *shape):
        values = self.random.normal(0, 1.6 * shape[0] ** -0.5, shape)
        return self.g.weight(f"weight_{len(self.g.weights)}", shape, lambda: values)

    def table(self, name, values):
        return self.g.weight(name, values.shape, lambda: values)

    def caches(self, layer, past, present):
        """Names of both pasts and presents; a shape each for keys and values."""
        names = [[f"{when}.{layer}.{part}" for part in ("key", "value")] for when in ("past", "present")]
        self.pasts += zip(names[0], past)
        self.presents += zip(names[1], present)
        return names

    def save(self, path, attend, inputs, batch, tokens):
        g = self.g
        g.input("input_ids", WHOLE, [batch, tokens])
        for one in inputs:
            g.input(*one)
        x = g("Gather", self.matrix(VOCAB, HIDDEN), "input_ids")
        for layer in range(LAYERS):
            x = g("Add", x, g("MatMul", attend(layer, g("Tanh", x)), self.matrix(HIDDEN, HIDDEN)))
        g.output(g("MatMul", g("Tanh", x), self.matrix(HIDDEN, VOCAB), out="logits"), REAL, [batch, tokens, VOCAB])
        for name, shape in self.pasts:
            g.input(name, REAL, shape)
        for name, shape in self.presents:
            g.output(name, REAL, shape)
        g.save(path)


def write_buffers(path, lengths="mask", tokens="sequence", batch="batch", mask_width="total", rotary=True, window=-1, room=LENGTH,
                  shown=None, biased=False):
    b = Builder()
    g = b.g
    angles = np.outer(np.arange(64), 1e4 ** (-np.arange(0, DIM, 2) / DIM))
    if lengths == "mask":
        inputs = [("attention_mask", WHOLE, [batch, mask_width])]
    else:
        inputs = [("seqlens_k", INT, [batch]), ("total_sequence_length", INT, [])]

    def counted():
        if lengths != "mask":
            return "seqlens_k", "total_sequence_length"
        marks = g("ReduceSum", "attention_mask", g.const([1]), keepdims=0)
        if shown:  # not all that there are
            marks = g("Min", marks, g.const([shown]))
        return (g.cast(g("Sub", marks, g.const([1])), INT), g.cast(g.size("attention_mask", 1), INT))

    def bias():
        """Of as many keys as the mask says, linear in their places."""
        count = lambda size: g.cast(g("Range", g.const(0), size, g.const(1)), REAL)
        slopes = b.table("slopes", -2. ** (-2 * np.arange(1, HEADS + 1)).reshape(1, HEADS, 1, 1))
        queries = g("Mul", g.unsqueeze(count(g.size("input_ids", 1)), 1), g.const(0, np.float32))
        return g("Add", g("Mul", slopes, g("Neg", count(g.size("attention_mask", 1)))), queries)

    def attend(layer, x):
        buffer = [batch, GROUPS, room, DIM]
        past, present = b.caches(layer, [buffer] * 2, [buffer] * 2)
        packed = g("MatMul", x, b.matrix(HIDDEN, (HEADS + 2 * GROUPS) * DIM))
        tables = [b.table("cos", np.cos(angles)), b.table("sin", np.sin(angles))] if rotary else ["", ""]
        more = ["", bias()] if biased else []
        g.nodes.append(helper.make_node(
            "GroupQueryAttention", [packed, "", "", *past, *counted(), *tables, *more], [f"attended_{layer}", *present], f"attend_{layer}",
            domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=int(rotary), local_window_size=window))
        return f"attended_{layer}"

    b.save(path, attend, inputs, batch, tokens)


def write_merged(path, parts="batch x heads", summed=False, batch="batch", tokens="sequence"):
    """As optimum wrote BLOOM; `summed`: over the tokens of a step, which is no batched decoder."""
    b = Builder()
    g = b.g

    def attend(layer, x):
        past, present = b.caches(layer, [[parts, DIM, "past"], [parts, "past", DIM]], [[parts, DIM, "total"], [parts, "total", DIM]])
        if summed:
            x = g("Add", x, g("Mul", g("CumSum", x, g.const(1)), g.const(0.05, np.float32)))
        rows, tokens, total = g.size("input_ids", 0), g.size("input_ids", 1), g.size("attention_mask", 1)
        both = g("Mul", rows, g.const(HEADS))
        apart = g.reshape(g("MatMul", x, b.matrix(HIDDEN, 3 * HIDDEN)), rows, tokens, HEADS, 3, DIM)
        q, k, v = (g("Gather", apart, g.const(i), axis=3) for i in range(3))
        q, v = (g.reshape(g.transpose(y, 0, 2, 1, 3), both, tokens, DIM) for y in (q, v))
        k = g.reshape(g.transpose(k, 0, 2, 3, 1), both, DIM, tokens)
        k, v = g("Concat", past[0], k, out=present[0], axis=2), g("Concat", past[1], v, out=present[1], axis=1)
        marks = g.cast("attention_mask", REAL)
        places = g("Mul", g("Sub", g("CumSum", marks, g.const(1)), g.const(1, np.float32)), marks)
        slopes = b.table("slopes", 2. ** (-2 * np.arange(1, HEADS + 1)).reshape(1, HEADS, 1))
        biases = g.reshape(g("Mul", slopes, g.unsqueeze(places, 1)), both, 1, total)
        scores = g("Add", biases, g("Mul", g("MatMul", q, k), g.const(DIM ** -0.5, np.float32)))
        keys, queries = g("Range", g.const(0), total, g.const(1)), g("Range", g("Sub", total, tokens), total, g.const(1))
        hidden = g("Greater", keys, g.unsqueeze(queries, 1))
        scores = g("Where", hidden, g.const(-3.4e38, np.float32), g.reshape(scores, rows, HEADS, tokens, total))
        shares = g.reshape(g("Softmax", scores, axis=-1), both, tokens, total)
        mixed = g.reshape(g("MatMul", shares, v), rows, HEADS, tokens, DIM)
        return g.reshape(g.transpose(mixed, 0, 2, 1, 3), rows, tokens, HIDDEN)

    b.save(path, attend, [("attention_mask", WHOLE, [batch, "total"])], batch, tokens)


def by_onnx_runtime(path, prompt, each=None):
    """Greedily; `each`: tokens of a step, the last ones of a prompt's being followed by others that do not count."""
    session = open_session(str(path))
    inputs = {i.name: i for i in session.get_inputs()}
    caches, tokens, past, queue = {}, [], 0, list(prompt)
    for name, i in inputs.items():
        if name.startswith("past."):
            sizes = {"batch": 1, "batch x heads": HEADS, "past": 0, None: HEADS}
            caches[name] = np.zeros([sizes.get(d, d) for d in i.shape], np.float32)
    while len(tokens) < COUNT:
        new = queue[:each]
        queue = queue[len(new):]
        ids = new + [1] * ((each or len(new)) - len(new))
        total = past + len(ids)
        feeds = {"input_ids": np.array([ids]), "seqlens_k": np.array([total - 1], np.int32),
                 "total_sequence_length": np.array(total, np.int32), **caches}
        if mask := inputs.get("attention_mask"):
            width = mask.shape[1] if isinstance(mask.shape[1], int) else total
            feeds["attention_mask"] = (np.arange(width) < total).astype(np.int64)[None]
        logits, *present = session.run(None, {n: a for n, a in feeds.items() if n in inputs})
        caches = {o.name.replace("present", "past"): p for o, p in zip(session.get_outputs()[1:], present)}
        past += len(new)
        if not queue:
            queue = [int(logits[0, len(new) - 1].argmax())]
            tokens += queue
    return tokens


def card_of(path):
    return json.loads(subprocess.run([BIN / "ark-inspect", path, "--json"], capture_output=True, text=True, timeout=60).stdout)


def expected_of(path, each=None):
    expected = [by_onnx_runtime(path, prompt, each) for prompt in PROMPTS]
    assert len({token for tokens in expected for token in tokens}) > 5  # else much that is wrong would look right
    return expected


@pytest.mark.parametrize("form", [
    {}, {"lengths": "inputs"}, {"window": 5}, {"rotary": False}, {"batch": 1}, {"batch": 1, "mask_width": LENGTH},
    *({"batch": 1, "tokens": n, "room": 48, "lengths": lengths} for n in (1, 16) for lengths in ("mask", "inputs")),
    {"batch": 1, "tokens": 1, "mask_width": LENGTH}, {"biased": True}, {"biased": True, "batch": 1, "mask_width": LENGTH},
    {"batch": 1, "tokens": 16, "room": 48, "mask_width": 48, "window": 5}],
    ids=lambda form: " ".join(f"{k}={v}" for k, v in form.items()) or "open")
def test_buffers_are_served_as_caches_that_grow(tmp_path, form):
    path = tmp_path / "model.onnx"
    write_buffers(path, **form)
    card = card_of(path)
    assert card["serving"].startswith("batched") and card["context"]["tokens"] == form.get("room", LENGTH), card["serving"]
    expected = expected_of(path, form.get("tokens"))
    for ranks in ("1", "2"):
        assert [by_ark(path, prompt, "--tp", ranks) for prompt in PROMPTS] == expected


@pytest.mark.parametrize("write", [write_buffers, write_merged])
@pytest.mark.parametrize("tokens", [1, GROUPS, HEADS, DIM, 2 * DIM])
def test_a_fixed_number_of_new_tokens_is_no_limit_of_caches_that_grow(tmp_path, tokens, write):
    """Also where it is the number of something else."""
    how = {"room": "past"} if write is write_buffers else {}
    for name, form in (("fixed", {"batch": 1, "tokens": tokens}), ("open", {})):
        write(tmp_path / name, **how, **form)
    assert card_of(tmp_path / "fixed")["serving"].startswith("batched")
    found = [by_ark(tmp_path / "fixed", prompt, "--tp", "2") for prompt in PROMPTS]
    assert found == expected_of(tmp_path / "open")


def test_buffers_whose_lengths_do_not_say_what_they_hold_are_refused_by_name(tmp_path):
    path = tmp_path / "model.onnx"
    write_buffers(path, shown=3)
    said = card_of(path)["serving"]
    run = ark_run(path, PROMPTS[0])
    assert run.returncode == 65
    for text in (said, run.stderr):
        assert f"past.0.key [batch, {GROUPS}, {LENGTH}, {DIM}] is a cache of a fixed size" in text and "PAST" not in text, text
        assert "export the model with caches whose length is open" in text


def test_a_plain_model_of_several_tokens_at_a_time_is_refused_by_name(tmp_path):
    path = tmp_path / "model.onnx"
    write_buffers(path, batch=1, tokens=16, room="past", shown=3)
    said, run = card_of(path)["serving"], ark_run(path, PROMPTS[0])
    assert run.returncode == 65
    for text in (said, run.stderr):
        assert "input 'input_ids' [1, 16] fixes the number of tokens" in text, text
    assert "not for ark-serve" in said


@pytest.mark.parametrize("form", [{}, {"parts": None}, {"batch": 1, "parts": HEADS}], ids=["open", "nameless", "one row"])
def test_batch_and_heads_in_one_axis(tmp_path, form):
    path = tmp_path / "model.onnx"
    write_merged(path, **form)
    assert card_of(path)["serving"].startswith("batched")
    expected = expected_of(path)
    for options in (["--tp", "1"], ["--tp", "2"], ["--driver", "dynamic"]):
        assert [by_ark(path, prompt, *options) for prompt in PROMPTS] == expected


def test_they_start_empty_where_a_model_is_served_plain(tmp_path):
    path = tmp_path / "model.onnx"
    write_merged(path, summed=True)
    assert "one sequence at a time" in card_of(path)["serving"]
    assert [by_ark(path, prompt) for prompt in PROMPTS] == expected_of(path)

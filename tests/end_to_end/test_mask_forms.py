"""Decoders whose exporters wrote masks and positions in other words: what marks hidden keys, one row a query, numbers
of other types, positions counted from the mask. Tokens must be ONNX Runtime's, driven as the file means it."""

import json
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ark_server import BIN
from graph import TO_END, Graph
from oracle import open_session

HEADS, DIM, VOCAB, LAYERS = 2, 8, 61, 2
HIDDEN = HEADS * DIM
PROMPTS, COUNT = [[3, 17, 42, 5, 9, 55, 2], [8, 31, 60, 12], [1, 2, 3, 4, 5, 6, 7, 8, 9]], 4
HIDES = -1e9
TABLE = 300  # rows of a causal mask that is stored


def builder():
    """A graph, and what adds weights to it."""
    g, random = Graph(opset=17), np.random.default_rng(11)

    def matrix(*shape):
        values = random.normal(0, 1, shape)
        return g.weight(f"weight_{len(g.weights)}", shape, lambda: values)

    return g, matrix


def positions_of(g, kind, tokens):
    if kind in ("int64", "float32", "float16"):
        return "position_ids"
    if kind == "fourfold":  # in the text, then in time, height and width
        return g("Gather", "position_ids", g.const(1), axis=0)
    if kind == "cut":
        return g.slice("position_ids", 1, 0, g.sizes(tokens))
    if kind == "mask size":
        size = g.size("attention_mask", 1)
        return g.unsqueeze(g("Range", g("Sub", size, tokens), size, g.const(1)), 0)
    if kind.startswith("from past"):
        begin = g("Reshape", "start", g.const([])) if kind.endswith("row") else "start"
        return g.unsqueeze(g("Range", begin, g("Add", begin, tokens), g.const(1)), 0)
    counted = g("Sub", g("CumSum", g("Cast", "attention_mask", to=TensorProto.INT64), g.const(1)), g.const(1))
    assert kind == "counted"
    return g.slice(counted, 1, g("Neg", g.sizes(tokens)), TO_END)


def bias_of(g, kind, tokens, total):
    """[batch or 1, 1, tokens, total], added to scores."""
    zero, hides = g.const(0, np.float32), g.const(HIDES, np.float32)
    if kind == "added by query":
        return "attention_mask"
    if kind == "kept by query":
        return g("Where", "attention_mask", zero, hides)
    if kind in ("hides by query", "hides in rows"):
        return g("Where", "attention_mask", hides, zero)
    if kind in ("multiplied", "multiplied in rows"):
        return g("Mul", g("Sub", g.const(1, np.float32), "attention_mask"), hides)
    if kind == "table":
        table = g.const(np.triu(np.full((1, 1, TABLE, TABLE), HIDES), 1), np.float32)
        return g.slice(g.slice(table, 2, g.sizes(g("Sub", total, tokens)), g.sizes(total)), 3, 0, g.sizes(total))
    keys, queries = g("Range", g.const(0), total, g.const(1)), g("Range", g("Sub", total, tokens), total, g.const(1))
    later = g("Greater", keys, g.unsqueeze(queries, 1))
    causal = g("Where", later, hides, zero)
    if kind in ("none", "size"):
        return causal
    axes = g.const([0, 1, 2] if kind == "one row" else [1, 2])
    marked = g("Cast", g("Unsqueeze", "attention_mask", axes), to=TensorProto.BOOL)
    return g("Add", causal, g("Where", marked, hides, zero) if kind == "hides" else g("Where", marked, zero, hides))


WHOLE, BYTE, BIT, REAL = TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL, TensorProto.FLOAT
MASK_TYPES = {"kept": WHOLE, "one row": WHOLE, "size": WHOLE, "bytes": BYTE, "hides": BIT, "hides in rows": BIT,
              "hides by query": BIT, "kept by query": BIT, "multiplied": REAL, "multiplied in rows": REAL,
              "added by query": REAL}
POSITION_TYPES = {"int64": TensorProto.INT64, "cut": TensorProto.INT64, "fourfold": TensorProto.INT64,
                  "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
AXES = {"one row": 1, "hides in rows": 2, "multiplied in rows": 2, "kept by query": 2, "added by query": 2,
        "hides by query": 4, "multiplied": 4}


def write(path, mask, positions, names, types=False):
    g, matrix = builder()

    def value(name, type_, *shape):
        slip = lambda i: shape[i].replace("total", "sequence") if name == "attention_mask" else shape[i]
        same = lambda i: slip(i).replace("past", "sequence") if isinstance(shape[i], str) else shape[i]
        other = {"own": lambda i: f"{name}.{i}", "none": lambda i: None, "shared": lambda i: shape[i], "slip": slip,
                 "same": same}[names]
        dims = [d if isinstance(d, int) else other(i) for i, d in enumerate(shape)]
        return helper.make_tensor_value_info(name, type_, dims)

    inputs, outputs = g.inputs, g.outputs
    inputs.append(value("input_ids", TensorProto.INT64, "batch", "sequence"))
    if mask in MASK_TYPES:
        shapes = {1: ("total",), 2: ("sequence", "total"), 4: ("batch", 1, "sequence", "total")}
        shape = shapes.get(AXES.get(mask), ("batch", "total"))
        inputs.append(value("attention_mask", MASK_TYPES[mask], *shape))
    if positions in POSITION_TYPES:
        length = "longer" if positions == "cut" else "sequence"
        several = [4] if positions == "fourfold" else []
        inputs.append(value("position_ids", POSITION_TYPES[positions], *several, "batch", length))
    if positions.startswith("from past"):
        inputs.append(helper.make_tensor_value_info("start", TensorProto.INT64, [1] if positions.endswith("row") else []))
    x = g("Gather", matrix(VOCAB, HIDDEN), "input_ids")
    if types:
        inputs.append(value("token_type_ids", TensorProto.INT64, "batch", "longer"))
        kinds = g.slice("token_type_ids", 1, 0, g.sizes(g.size("input_ids", 1)))
        x = g("Add", x, g("Gather", matrix(2, HIDDEN), kinds))
    tokens = g.size("input_ids", 1)
    total = g("Add", g.size("past_0_key", 2), tokens)
    place = g("Cast", positions_of(g, positions, tokens), to=TensorProto.FLOAT)
    angles = g("Mul", g("Unsqueeze", place, g.const([1, 3])), g.const([1.0, 0.3, 0.1, 0.03], np.float32))
    cos, sin = g("Cos", angles), g("Sin", angles)
    bias, rows = bias_of(g, mask, tokens, total), 0
    if mask == "table":  # as torch.export counts what a slice leaves
        within = lambda size: g("Min", size, g.const(TABLE))
        rows = g("Max", g.const(0), g("Sub", within(total), within(g("Sub", total, tokens))))

    def heads_of(x):
        x = g("Reshape", g("MatMul", x, matrix(HIDDEN, HIDDEN)), g.const([0, 0, HEADS, DIM]))
        return g("Transpose", x, perm=[0, 2, 1, 3])

    def turned(x):
        half = lambda begin: g("Slice", x, g.const([begin]), g.const([begin + DIM // 2]), g.const([3]))
        left, right = half(0), half(DIM // 2)
        return g("Concat", g("Sub", g("Mul", left, cos), g("Mul", right, sin)),
                 g("Add", g("Mul", right, cos), g("Mul", left, sin)), axis=-1)

    for layer in range(LAYERS):
        cache = [f"past_{layer}_{part}" for part in ("key", "value")]
        inputs += [value(name, TensorProto.FLOAT, "batch", HEADS, "past", DIM) for name in cache]
        y = g("Tanh", x)
        query, key, own = turned(heads_of(y)), turned(heads_of(y)), heads_of(y)
        for past, new in zip(cache, (key, own)):
            present = g("Concat", past, new, out=past.replace("past", "present"), axis=2)
            outputs.append(value(present, TensorProto.FLOAT, "batch", HEADS, "total", DIM))
        keys, values = (o.name for o in outputs[-2:])
        scores = g("Mul", g("MatMul", query, g("Transpose", keys, perm=[0, 1, 3, 2])), g.const(DIM ** -0.5, np.float32))
        mixed = g("MatMul", g("Softmax", g("Add", scores, bias), axis=-1), values)
        mixed = g.reshape(g("Transpose", mixed, perm=[0, 2, 1, 3]), 0, rows, HIDDEN)
        x = g("Add", x, g("MatMul", mixed, matrix(HIDDEN, HIDDEN)))
    outputs.insert(0, value(g("MatMul", x, matrix(HIDDEN, VOCAB), out="logits"), TensorProto.FLOAT, "batch", "sequence", VOCAB))
    g.save(path)


def mask_for(kind, past, count):
    total = past + count
    causal = np.arange(total) <= past + np.arange(count)[:, None]
    return {"kept": np.ones((1, total), np.int64), "one row": np.ones(total, np.int64),
            "size": np.ones((1, total), np.int64),
            "bytes": np.ones((1, total), np.uint8), "hides": np.zeros((1, total), bool),
            "hides in rows": ~causal, "multiplied in rows": causal.astype(np.float32),
            "multiplied": causal[None, None].astype(np.float32), "hides by query": ~causal[None, None],
            "kept by query": causal, "added by query": np.where(causal, 0, HIDES).astype(np.float32)}[kind]


def by_onnx_runtime(path, mask, positions, prompt, types=False):
    session = open_session(str(path))
    feeds = {f"past_{layer}_{part}": np.zeros((1, HEADS, 0, DIM), np.float32)
             for layer in range(LAYERS) for part in ("key", "value")}
    tokens, past, new = [], 0, prompt
    for _ in range(COUNT):
        feeds["input_ids"] = np.array([new], np.int64)
        places = past + np.arange(len(new) + (5 if positions == "cut" else 0))
        if positions in POSITION_TYPES:
            places = places[None].astype(helper.tensor_dtype_to_np_dtype(POSITION_TYPES[positions]))
            feeds["position_ids"] = np.stack([places] * 4) if positions == "fourfold" else places
        if types:
            feeds["token_type_ids"] = np.zeros((1, len(new) + 3), np.int64)
        if positions.startswith("from past"):
            feeds["start"] = np.array([past] if positions.endswith("row") else past, np.int64)
        if mask in MASK_TYPES:
            feeds["attention_mask"] = mask_for(mask, past, len(new))
        logits, *present = session.run(None, feeds)
        feeds |= {o.name.replace("present", "past"): p for o, p in zip(session.get_outputs()[1:], present)}
        past += len(new)
        new = [int(logits[0, -1].argmax())]
        tokens += new
    return tokens


def ark_run(path, prompt, *options, count=COUNT):
    return subprocess.run([BIN / "ark-run", path, "--prompt-ids", ",".join(map(str, prompt)), "--max-tokens", str(count),
                           "--ignore-eos", "--json", "--no-cache", *options], capture_output=True, text=True, timeout=60)


def by_ark(path, prompt, *options, count=COUNT):
    run = ark_run(path, prompt, *options, count=count)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)["token_ids"]


KINDS = [
    ("kept", "counted"), ("size", "counted"), ("bytes", "counted"), ("size", "mask size"), ("kept", "float32"),
    ("none", "float16"), ("kept", "cut"), ("none", "cut"), ("bytes", "int64"), ("hides", "int64"),
    ("hides by query", "int64"), ("multiplied", "int64"), ("kept by query", "int64"), ("added by query", "int64"),
    ("hides in rows", "int64"), ("multiplied in rows", "int64"), ("one row", "int64"), ("none", "from past"),
    ("kept", "from past row"), ("none", "fourfold"), ("kept", "fourfold")]


# One row of as many numbers as tokens is positions, not a mask whose sizes have one name by a slip.
@pytest.mark.parametrize("mask,positions,names", [
    (*kind, names) for kind in KINDS for names in ("own", "none", "shared", "slip") if (kind[0], names) != ("one row", "slip")])
def test_tokens_are_those_of_onnx_runtime(tmp_path, mask, positions, names):
    check(tmp_path / "model.onnx", mask, positions, names)


@pytest.mark.parametrize("mask,positions", [("kept", "counted"), ("size", "mask size"), ("none", "int64"),
                                            ("added by query", "int64")])
def test_caches_may_be_called_as_long_as_the_tokens(tmp_path, mask, positions):
    check(tmp_path / "model.onnx", mask, positions, "same")


@pytest.mark.parametrize("mask", ["kept", "hides", "hides by query", "multiplied", "multiplied in rows"])
def test_they_are_where_a_model_is_served_plain(tmp_path, mask):
    """Its last rows are summed up over the tokens of a step, which no token's own row tells."""
    path = tmp_path / "model.onnx"
    write(path, mask, "int64", "own")
    model = onnx.load(path)
    nodes = model.graph.node
    head = next(n for n in nodes if "logits" in n.output)
    place, rows = list(nodes).index(head), head.input[0]
    model.graph.initializer.append(numpy_helper.from_array(np.array(1), "tokens_axis"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.05, np.float32), "share"))
    head.input[0] = "summed"
    summed = [helper.make_node("CumSum", [rows, "tokens_axis"], ["sums"]), helper.make_node("Mul", ["sums", "share"], ["part"]),
              helper.make_node("Add", [rows, "part"], ["summed"])]
    nodes_after = [*nodes[:place], *summed, *nodes[place:]]
    del nodes[:]
    nodes.extend(nodes_after)
    onnx.save(model, path)
    card = subprocess.run([BIN / "ark-inspect", path], capture_output=True, text=True, timeout=60).stdout
    assert "one sequence at a time" in card and "CumSum" in card, card
    for prompt in PROMPTS:
        assert by_ark(path, prompt) == by_onnx_runtime(path, mask, "int64", prompt)


@pytest.mark.parametrize("rows", [5, 40])
@pytest.mark.parametrize("shape", [["batch", 1], [1], []])
def test_what_chooses_something_else_is_refused_by_name(tmp_path, shape, rows):
    path = tmp_path / "model.onnx"
    write(path, "kept", "int64", "none")
    model = onnx.load(path)
    graph, table = model.graph, np.ones((rows, HIDDEN), np.float32)
    graph.input.append(helper.make_tensor_value_info("language", TensorProto.INT64, shape))
    graph.initializer.append(numpy_helper.from_array(table, "languages"))
    gather = next(n for n in graph.node if n.op_type == "Gather" and n.input[1] == "input_ids")
    chosen = [helper.make_node("Gather", ["languages", "language"], ["chosen"]),
              helper.make_node("Add", ["plain", "chosen"], [gather.output[0]])]
    gather.output[0] = "plain"
    place = list(graph.node).index(gather) + 1
    nodes = [*graph.node[:place], *chosen, *graph.node[place:]]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, path)
    run = ark_run(path, PROMPTS[0])
    assert run.returncode == 65 and "language" in run.stderr, run.stdout + run.stderr


@pytest.mark.parametrize("names", ["own", "none", "shared"])
def test_types_of_tokens_may_be_cut_to_them(tmp_path, names):
    check(tmp_path / "model.onnx", "kept", "int64", names, types=True)


def test_rows_may_be_counted_by_what_a_table_has(tmp_path):
    """As many as are cut out of it: the tokens, for all that it has rows for."""
    path = tmp_path / "model.onnx"
    check(path, "table", "int64", "own")
    card = subprocess.run([BIN / "ark-inspect", path], capture_output=True, text=True, timeout=60).stdout
    assert "batched" in card and f"{TABLE} tokens" in card, card


def check(path, mask, positions, names, types=False):
    write(path, mask, positions, names, types)
    expected = [by_onnx_runtime(path, mask, positions, prompt, types) for prompt in PROMPTS]
    assert len({token for tokens in expected for token in tokens}) > 5  # else much that is wrong would look right
    assert [by_ark(path, prompt) for prompt in PROMPTS] == expected
    assert by_ark(path, PROMPTS[0], "--driver", "dynamic") == expected[0]  # plain, though it need not be

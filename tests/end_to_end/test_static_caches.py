"""Decoders whose caches have a fixed size and are written in place: served as if they grew, with ONNX Runtime's tokens."""

import json
import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracle import open_session
from test_microsoft_nodes import BINARY

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")
VOCAB, HEADS, GROUPS, EACH, LENGTH, LAYERS = 64, 4, 2, 8, 24, 2
HIDDEN, PROMPT, NEW = HEADS * EACH, [3, 17, 42, 5, 9, 60, 2], 12


class Decoder:
    """Layers of attention over caches [batch, groups, LENGTH, each]; what differs is `write` and `attend`."""

    def __init__(self, form, hides=True):
        self.form, self.hides, self.nodes, self.random = form, hides, [], np.random.default_rng(5)
        self.weights = {"one": np.array([1]), "places": np.arange(LENGTH), "low": np.float32(-1e9), "zero": np.float32(0),
                        "split": np.array([0, 0, -1, EACH]), "join": np.array([0, 0, HIDDEN]), "scale": np.float32(EACH ** -.5),
                        "grouped": np.array([0, GROUPS, 1, LENGTH, EACH]), "heads": np.array([0, HEADS, LENGTH, EACH])}

    def add(self, op, *inputs, output=None, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [output or f"made{len(self.nodes)}"], f"{op}_{len(self.nodes)}", **attributes))
        return self.nodes[-1].output[0]

    def weight(self, *shape, scale=.2):
        name = f"w{len(self.weights)}"
        self.weights[name] = (self.random.standard_normal(shape) * scale).astype(np.float32)
        return name

    def heads(self, x, count):
        return self.add("Transpose", self.add("Reshape", self.add("MatMul", x, self.weight(HIDDEN, count * EACH)), "split"),
                        perm=[0, 2, 1, 3])

    def write(self, cache, new, output):
        if self.form == "TensorScatter":
            return self.add("TensorScatter", cache, new, "first", output=output, axis=2)
        if self.form == "ScatterND":
            there, rows = (self.add("Transpose", x, perm=[2, 0, 1, 3]) for x in (cache, new))
            written = self.add("ScatterND", there, self.add("Unsqueeze", "position", "one"), rows)
            return self.add("Transpose", written, output=output, perm=[1, 2, 0, 3])
        lengths = self.add("Concat", "one", "one", self.add("Shape", "position"), "one", axis=0)
        index = self.add("Expand", self.add("Reshape", "position", lengths), self.add("Shape", new))
        return self.add("ScatterElements", cache, index, new, output=output, axis=2)

    def attend(self, q, k, v):
        if self.form == "TensorScatter":
            return self.add("Attention", q, k, v, "", "", "", "valid", is_causal=1)
        k, v = (self.add("Reshape", self.add("Expand", self.add("Reshape", x, "grouped"), "wide"), "heads") for x in (k, v))
        shown = self.add("LessOrEqual", "places", self.add("Unsqueeze", "position", "one"))
        if self.form == "mask":  # of the caches' places, beside what positions say
            given = self.add("Unsqueeze", self.add("Cast", "mask", to=TensorProto.BOOL), "middle")
            shown = self.add("And", shown, given)
        if not self.hides:
            shown = self.add("Or", shown, self.add("GreaterOrEqual", "places", "late"))
        scores = self.add("Mul", self.add("MatMul", q, self.add("Transpose", k, perm=[0, 1, 3, 2])), "scale")
        if self.form == "ScatterND":
            scores = self.add("Add", scores, self.add("Where", shown, "zero", "low"))
        else:
            scores = self.add("Where", shown, scores, "low")
        return self.add("MatMul", self.add("Softmax", scores, axis=-1), v)

    def save(self, path):
        self.weights |= {"wide": np.array([1, GROUPS, HEADS // GROUPS, LENGTH, EACH]), "late": np.array(LENGTH - 2),
                         "middle": np.array([1, 2])}
        value = helper.make_tensor_value_info
        inputs = [value("ids", TensorProto.INT64, ["batch", "new"])]
        inputs.append(value("position", TensorProto.INT64, ["new"]))
        if self.form == "mask":
            inputs.append(value("mask", TensorProto.INT64, ["batch", LENGTH]))
        if self.form == "TensorScatter":
            inputs += [value("first", TensorProto.INT64, ["batch"]), value("valid", TensorProto.INT64, ["batch"])]
        outputs = [value("logits", TensorProto.FLOAT, ["batch", "new", VOCAB])]
        x = self.add("Add", self.add("Gather", self.weight(VOCAB, HIDDEN), "ids"),
                     self.add("Gather", self.weight(LENGTH, HIDDEN, scale=1), "position"))
        for layer in range(LAYERS):
            q, k, v = self.heads(x, HEADS), self.heads(x, GROUPS), self.heads(x, GROUPS)
            caches = []
            for name, new in (("k", k), ("v", v)):
                inputs.append(value(f"{name}{layer}", TensorProto.FLOAT, ["batch", GROUPS, LENGTH, EACH]))
                outputs.append(value(f"{name}{layer}_out", TensorProto.FLOAT, ["batch", GROUPS, LENGTH, EACH]))
                caches.append(self.write(f"{name}{layer}", new, f"{name}{layer}_out"))
            y = self.add("Reshape", self.add("Transpose", self.attend(q, *caches), perm=[0, 2, 1, 3]), "join")
            x = self.add("Add", x, self.add("MatMul", y, self.weight(HIDDEN, HIDDEN)))
        self.add("MatMul", x, self.weight(HIDDEN, VOCAB), output="logits")
        used = {i for n in self.nodes for i in n.input}
        graph = helper.make_graph(self.nodes, "static", inputs, outputs,
                                  [numpy_helper.from_array(a, n) for n, a in self.weights.items() if n in used])
        opset = 24 if self.form == "TensorScatter" else 18
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)


def tokens_by_onnx_runtime(path):
    """Greedily, in place, the rest of the caches holding what must not be seen."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = open_session(path, options)
    caches = {i.name: np.full([1, *i.shape[1:]], 9, np.float32) for i in session.get_inputs() if i.name[:-1] in ("k", "v")}
    names, tokens, past, new = {i.name for i in session.get_inputs()}, [], 0, PROMPT
    while len(tokens) < NEW:
        feeds = {"ids": np.array([new]), "position": np.arange(past, past + len(new)), "first": np.array([past]),
                 "valid": np.array([past + len(new)]), "mask": (np.arange(LENGTH) < past + len(new)).astype(int)[None], **caches}
        logits, *written = session.run(None, {k: v for k, v in feeds.items() if k in names})
        caches = dict(zip(caches, written))
        past += len(new)
        new = [int(logits[0, -1].argmax())]
        tokens += new
    return tokens


def tool(name, path, *options):
    return subprocess.run([BINARY.parent / name, path, *options], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("form", ["TensorScatter", "ScatterND", "ScatterElements", "mask"])
def test_caches_written_in_place(tmp_path, form):
    path = tmp_path / "model.onnx"
    Decoder(form).save(path)
    card = json.loads(tool("ark-inspect", path, "--json").stdout)
    assert card["serving"].startswith("batched") and card["context"]["tokens"] == LENGTH
    wanted = tokens_by_onnx_runtime(path)
    for ranks in ("1", "2"):
        run = tool("ark-run", path, "--prompt-ids", ",".join(map(str, PROMPT)), "--max-tokens", str(NEW), "--json", "--tp", ranks)
        assert run.returncode == 0, run.stderr
        assert json.loads(run.stdout)["token_ids"] == wanted
    assert len(set(wanted)) > NEW // 2


def test_a_mask_that_shows_what_was_not_written_is_no_cache_that_grows(tmp_path):
    path = tmp_path / "model.onnx"
    Decoder("ScatterElements", hides=False).save(path)
    said = json.loads(tool("ark-inspect", path, "--json").stdout)["serving"]
    assert "the mask shows places of a cache of fixed size that nothing was written to" in said

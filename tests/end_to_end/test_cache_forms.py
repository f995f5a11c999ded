"""Files that keep their caches in unusual ways, driven as ONNX Runtime drives them; and how long sequences may get."""

import json
import re
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ark_server import FIXTURES
from llama_random import write
from oracle import open_session
from presets import preset
from test_mask_reach import ZOO as WINDOWED
from test_microsoft_nodes import BINARY, MICROSOFT, agrees, node, random, write_case

ZOO = WINDOWED.parent
pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")
needs_zoo = pytest.mark.skipif(not ZOO.exists(), reason=f"no {ZOO} (models/zoo.py)")


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("past, tokens, lengths", [(8, 1, [5]), (8, 3, [7]), (8, 1, [5, 3]), (8, 1, [9]), (5, 1, [5]), (8, 4, [4])])
def test_a_past_with_room_for_what_is_to_come(tmp_path, past, tokens, lengths, is_stored):
    """The present is as long as the past, unless more than that is asked for: whatever is new lies behind what counts."""
    rows = len(lengths)
    counts = {"last": np.array(lengths, np.int32) - 1, "total": np.array(max(lengths), np.int32)}
    feeds = {"q": random(rows, tokens, 64), "k": random(rows, tokens, 32), "v": random(tokens, rows, 32).swapaxes(0, 1),
             "pk": random(rows, 2, past, 16), "pv": random(2, rows, past, 16).swapaxes(0, 1)}
    nodes = [node("GroupQueryAttention", "q k v pk pv last total cos sin", "y ok ov", MICROSOFT, num_heads=4,
                  kv_num_heads=2, do_rotary=1)]
    angles = random(64, 8)
    weights = {"cos": np.cos(angles), "sin": np.sin(angles)} | (counts if is_stored else {})
    write_case(tmp_path / "case", nodes, feeds if is_stored else feeds | counts, weights, ("y", "ok", "ov"))
    agrees(tmp_path, drivers=["dynamic", "static"] if is_stored else ["dynamic", "auto"])


def merged_decoder(encoder_sizes):
    """One layer of an encoder-decoder as Optimum merges it: an If chooses whether caches are read or made."""
    width, heads, each = 16, 2, 8
    names = ["emb", "wq", "wk", "wv", "eq", "ek", "ev", "head"]
    rng = np.random.default_rng(0)
    stored = {n: rng.standard_normal((32, width) if n == "emb" else (width, 32 if n == "head" else width)) * .3 for n in names}
    stored = {n: a.astype(np.float32) for n, a in stored.items()}
    stored |= {"split": np.array([0, 0, heads, each]), "join": np.array([0, 0, width]), "one": np.float32(1),
               "low": np.float32(-10000), "axes": np.array([1, 2])}

    def branch(cached):
        nodes = []

        def add(op, *inputs, **attributes):
            nodes.append(helper.make_node(op, inputs, [f"{'then' if cached else 'else'}_{len(nodes)}"], **attributes))
            return nodes[-1].output[0]

        def split(x, weights):
            return add("Transpose", add("Reshape", add("MatMul", x, weights), "split"), perm=[0, 2, 1, 3])

        def attend(q, k, v, bias=None):
            scores = add("MatMul", q, add("Transpose", k, perm=[0, 1, 3, 2]))
            weights = add("Softmax", add("Add", scores, bias) if bias else scores, axis=-1)
            return add("Reshape", add("Transpose", add("MatMul", weights, v), perm=[0, 2, 1, 3]), "join")

        x = add("Gather", "emb", "ids")
        keys, values = split(x, "wk"), split(x, "wv")
        if cached:
            keys, values = add("Concat", "past_dk", keys, axis=2), add("Concat", "past_dv", values, axis=2)
        h = add("Add", x, attend(split(x, "wq"), keys, values))
        other = [add("Identity", "past_ek"), add("Identity", "past_ev")] if cached else [split("enc", "ek"), split("enc", "ev")]
        hidden = add("Mul", add("Sub", "one", add("Cast", "mask", to=TensorProto.FLOAT)), "low")
        y = add("Add", h, attend(split(h, "eq"), *other, add("Unsqueeze", hidden, "axes")))
        outputs = [add("MatMul", y, "head"), keys, values, *other]
        return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs])

    caches = ["dk", "dv", "ek", "ev"]
    sizes = {"dk": "past_decoder_sequence_length", "ek": encoder_sizes}
    inputs = [("ids", TensorProto.INT64, ["batch_size", "decoder_sequence_length"]),
              ("enc", TensorProto.FLOAT, ["batch_size", "encoder_sequence_length", width]),
              ("mask", TensorProto.INT64, ["batch_size", "encoder_sequence_length"]),
              *[(f"past_{c}", TensorProto.FLOAT, ["batch_size", heads, sizes[c[0] + "k"], each]) for c in caches],
              ("use_cache_branch", TensorProto.BOOL, [1])]
    outputs = ["logits", *[f"present_{c}" for c in caches]]
    choice = helper.make_node("If", ["use_cache_branch"], outputs, then_branch=branch(True), else_branch=branch(False))
    graph = helper.make_graph([choice], "merged", [helper.make_tensor_value_info(*i) for i in inputs],
                              [helper.make_tensor_value_info(o, TensorProto.FLOAT, [None] * (3 if o == "logits" else 4)) for o in outputs],
                              [numpy_helper.from_array(np.asarray(a), n) for n, a in stored.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def first_and_next(session):
    """Feeds of the first step, whose caches are empty, and of the one behind it."""
    feeds = {"ids": np.array([[1, 2]]), "enc": random(1, 5, 16), "mask": np.ones((1, 5), np.int64)}
    empty = {f"past_{c}": np.zeros((1, 2, 0, 8), np.float32) for c in ("dk", "dv", "ek", "ev")}
    first = feeds | empty | {"use_cache_branch": np.array([False])}
    yield first
    present = dict(zip([o.name for o in session.get_outputs()], session.run(None, first)))
    full = {name: present[name.replace("past", "present")] for name in empty}
    yield feeds | full | {"ids": np.array([[3]]), "use_cache_branch": np.array([True])}


def run_model(folder, feeds, *options):
    for name, array in feeds.items():
        np.save(folder / f"{name}.npy", array)
    inputs = [part for name in feeds for part in ("--input", f"{name}={folder / name}.npy")]
    return subprocess.run([BINARY, folder / "model.onnx", *inputs, "--output-dir", folder, *options], capture_output=True,
                          text=True, timeout=300)


def test_a_merged_encoder_decoder_step_by_step(tmp_path):
    model = merged_decoder("encoder_sequence_length_out")
    onnx.save(model, tmp_path / "model.onnx")
    session = open_session(model.SerializeToString())
    for feeds in first_and_next(session):
        run = run_model(tmp_path, feeds)
        assert run.returncode == 0, run.stderr
        for output, wanted in zip(session.get_outputs(), session.run(None, feeds)):
            np.testing.assert_allclose(np.load(tmp_path / f"{output.name}.npy"), wanted, rtol=1e-4, atol=1e-5)


def test_one_name_for_two_sizes_is_refused_by_name(tmp_path):
    """ONNX Runtime warns and goes on; here a name is a promise, and the call that breaks it is told which."""
    model = merged_decoder("encoder_sequence_length")
    onnx.save(model, tmp_path / "model.onnx")
    session = open_session(model.SerializeToString())
    first, following = first_and_next(session)
    run = run_model(tmp_path, first)
    assert run.returncode != 0
    assert "input 'past_ek': has shape [1, 2, 0, 8], which does not fit [batch_size, 2, encoder_sequence_length, 8]" in run.stderr
    assert run_model(tmp_path, following).returncode == 0


def context(folder, tool):
    if tool == "ark-inspect":
        run = subprocess.run([BINARY.parent / tool, folder / "model.onnx", "--json"], capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)["context"]["tokens"]
    run = subprocess.run([BINARY.parent / tool, "--check", "--model", folder / "model.onnx"], capture_output=True, text=True,
                         timeout=300)
    return int(re.search(r"a sequence has up to (\d+)", run.stdout + run.stderr)[1])


@needs_zoo
@pytest.mark.parametrize("name, configured, served", [
    ("bloom", None, 2048), ("bloom", 100_000, 100_000), ("mpt", 4096, 4096), ("mpt", 100_000, 100_000),
    ("alibi-distance", 100_000, 100_000), ("llama", 4096, 4096), ("gpt2", None, 64), ("gpt2", 4096, 64)])
def test_the_same_context_is_shown_and_served(tmp_path, name, configured, served):
    """Biases that grow with the distance hide what is far away, as no window does; a table of positions ends the sequence
    before the configuration does."""
    (tmp_path / "model.onnx").write_bytes((ZOO / name / "model.onnx").read_bytes())
    if configured:
        (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": configured}))
    assert [context(tmp_path, tool) for tool in ("ark-inspect", "ark-serve")] == [served, served]


@pytest.mark.parametrize("driver", ["decoder", "dynamic"])
def test_a_decoder_with_caches_of_the_window_goes_on_as_with_whole_ones(tmp_path, driver):
    """As ONNX Runtime GenAI writes layers with a window; ONNX Runtime's numbers for the operator: test_microsoft_nodes.py."""
    texts = []
    for evicts in (0, 1):
        model = onnx.load(FIXTURES / "llama-genai-fp32" / "model.onnx")
        for one in model.graph.node:
            if one.op_type == "GroupQueryAttention":
                given = [a for a in one.attribute if a.name not in ("local_window_size", "sliding_window_cache")]
                del one.attribute[:]
                one.attribute.extend([*given, helper.make_attribute("local_window_size", 4),
                                      helper.make_attribute("sliding_window_cache", evicts)])
        onnx.save(model, tmp_path / "model.onnx")
        run = subprocess.run([BINARY, tmp_path / "model.onnx", "--driver", driver if evicts else "decoder", "--prompt-ids", "5,9,33,7,81,20,4",
                              "--max-tokens", "12", "--ignore-eos", "--json"], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        texts.append(json.loads(run.stdout)["token_ids"])
    assert len(texts[0]) == 12 and texts[0] == texts[1]


@pytest.mark.parametrize("name", ["alibi-distance", "mpt"])
def test_biases_that_16_bits_round_far_away_are_batched_for_as_far_as_they_are_exact(tmp_path, name):
    write(preset(name, dtype="f16", context=8192), tmp_path / "model.onnx", seed=3)
    card = subprocess.run([BINARY.parent / "ark-inspect", tmp_path / "model.onnx"], capture_output=True, text=True, timeout=60).stdout
    assert "batched" in card and "linear biases (ALiBi)" in card, card
    assert context(tmp_path, "ark-serve") >= 1024

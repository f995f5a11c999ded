"""Small graphs of what ONNX's own tests leave out, com.microsoft's operators above all, against ONNX Runtime."""

import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ark_server import FIXTURES
from operator_cases import BINARY, MICROSOFT, agrees, node, random, write_case
from oracle import open_session

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")


@pytest.mark.parametrize("op, weights", [("SkipLayerNormalization", "g b"), ("SkipSimplifiedLayerNormalization", "g")])
def test_skip_norms_without_an_epsilon(tmp_path, op, weights):
    """Rows so small that 1e-5 beside their variance would be seen."""
    feeds = {"x": random(2, 3, 8, scale=1e-4), "skip": random(2, 3, 8, scale=2e-5)}
    write_case(tmp_path / "case", [node(op, f"x skip {weights}", "y", MICROSOFT)], feeds,
               {"g": random(8), "b": random(8)})
    agrees(tmp_path)


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("segments", [True, False])
def test_embeddings_of_bytes(tmp_path, kind, segments):
    """As quantize_dynamic leaves a BERT that ONNX Runtime's optimizer has fused."""
    draw, low = np.random.default_rng(2), np.iinfo(kind).min
    weights = {}
    for place, (name, shape) in enumerate({"words": (20, 8), "places": (6, 8), "kinds": (2, 8), "g": (8,), "b": (8,)}.items()):
        weights |= {name: draw.integers(low, low + 256, shape).astype(kind), name + "_s": np.float32(0.01 + 0.003 * place),
                    name + "_z": np.array(low + 100 + 9 * place, kind)}
    names = ["words", "places", "kinds" if segments else "_", "g", "b"]
    inputs = ["ids", "types" if segments else "_", *names, "mask", *(n + "_s" if n != "_" else n for n in names),
              *(n + "_z" if n != "_" else n for n in names)]
    feeds = {"ids": np.array([[3, 19, 0], [7, 7, 1]], np.int32), "mask": np.array([[1, 1, 0], [1, 1, 1]], np.int32)}
    if segments:
        feeds["types"] = np.array([[0, 1, 1], [0, 0, 1]], np.int32)
    nodes = [node("QEmbedLayerNormalization", " ".join(inputs), "y m", MICROSOFT, epsilon=1e-6)]
    write_case(tmp_path / "case", nodes, feeds, weights, ("y", "m"))
    agrees(tmp_path)


@pytest.mark.parametrize("op, inputs, outputs, domain", [
    ("LayerNormalization", "x g b", "y mean deviation", ""),
    ("SimplifiedLayerNormalization", "x g", "y deviation", ""),
    ("SkipLayerNormalization", "x x g b", "y mean deviation sum", MICROSOFT),
    ("SkipSimplifiedLayerNormalization", "x x g", "y mean deviation sum", MICROSOFT)])
def test_norms_may_name_outputs_that_nothing_reads(tmp_path, op, inputs, outputs, domain):
    nodes = [node(op, inputs, outputs, domain, epsilon=1e-3)]
    write_case(tmp_path / "case", nodes, {"x": random(2, 3, 8)}, {"g": random(8), "b": random(8)})
    agrees(tmp_path)


@pytest.mark.parametrize("op, inputs, outputs", [("LayerNormalization", "x g b", "y mean deviation"),
                                                 ("SimplifiedLayerNormalization", "x g", "y deviation")])
def test_statistics_that_are_read(tmp_path, op, inputs, outputs):
    write_case(tmp_path / "case", [node(op, inputs, outputs, epsilon=1e-3)], {"x": random(2, 3, 8)},
               {"g": random(8), "b": random(8)}, outputs.split())
    agrees(tmp_path)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("heads", [0, 4])
def test_rotary_embedding_finds_its_heads(tmp_path, heads, interleaved):
    tables = {"c": random(16, 4), "s": random(4, 16).T.copy()}
    feeds = {"x": random(2, 3, 32), "p": np.array([[0, 1, 2], [7, 8, 9]])}
    attributes = {"num_heads": heads} if heads else {}
    nodes = [node("RotaryEmbedding", "x p c s", "y", MICROSOFT, interleaved=interleaved, **attributes)]
    write_case(tmp_path / "case", nodes, feeds, tables)
    agrees(tmp_path)


@pytest.mark.skipif(not FIXTURES.exists(), reason=f"no {FIXTURES}")
@pytest.mark.parametrize("perm", [(2, 0, 1), (0, 1, 2)])
def test_decoders_that_write_features_in_place(tmp_path, perm):
    """The embedding's features 0 and 63 become twice its features 5 and 7; a row of the batch must not pass for one."""
    model = onnx.load(FIXTURES / "llama-optimum" / "model.onnx")
    rows = next(n.output[0] for n in model.graph.node if n.op_type == "Gather" and "embed" in n.input[0])
    for n in model.graph.node:
        n.input[:] = ["written" if i == rows else i for i in n.input]
    back = [perm.index(i) for i in range(3)]
    first = max(i for i, n in enumerate(model.graph.node) if rows in n.output) + 1
    nodes = [node("Transpose", rows, "turned", perm=perm), node("GatherND", "turned taken", "some"),
             node("Add", "some some", "twice"), node("ScatterND", "turned places twice", "scattered"),
             node("Transpose", "scattered", "written", perm=back)]
    rest = [*model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend([*rest[:first], *nodes, *rest[first:]])
    last = 63 if perm[0] == 2 else 0
    weights = numbers(taken=[[5], [7]], places=[[0], [-1]]) if last else numbers(taken=[[0]], places=[[0]])
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in weights.items())
    onnx.save(model, tmp_path / "model.onnx")
    source = FIXTURES / "llama-optimum" / "test_data_set_0"
    feeds = {}
    data = tmp_path / "test_data_set_0"
    data.mkdir()
    for index, info in enumerate(model.graph.input):
        tensor = onnx.load_tensor(source / f"input_{index}.pb")
        onnx.save_tensor(tensor, data / f"input_{index}.pb")
        feeds[info.name] = numpy_helper.to_array(tensor)
    session = open_session(tmp_path / "model.onnx")
    for index, array in enumerate(session.run(None, feeds)):
        onnx.save_tensor(numpy_helper.from_array(array, session.get_outputs()[index].name), data / f"output_{index}.pb")
    verdicts = {}
    for driver in ("dynamic", "decoder"):
        run = subprocess.run([BINARY, tmp_path / "model.onnx", "--driver", driver, "--test-data", data],
                             capture_output=True, text=True, timeout=300)
        verdicts[driver] = run.stdout
    assert verdicts["dynamic"].startswith("PASS"), verdicts
    assert verdicts["decoder"].startswith("PASS") if last else "picks tokens out of" in verdicts["decoder"], verdicts


def numbers(**named):
    return {name: np.array(value) for name, value in named.items()}


SEQUENCES = {
    "unbind": ([node("SplitToSequence", "x", "s", axis=1, keepdims=0), node("SequenceAt", "s two", "a"),
                node("SequenceAt", "s last", "b"), node("Sub", "a b")], numbers(two=1, last=-1)),
    "chunks": ([node("SplitToSequence", "x size", "s", axis=2), node("SequenceAt", "s last", "y")],
               numbers(size=3, last=-1)),
    "parts": ([node("SplitToSequence", "x sizes", "s", axis=-1), node("SequenceAt", "s one", "y")],
              numbers(sizes=[2, 5, 1], one=1)),
    "stack": ([node("SequenceConstruct", "x z x", "s"), node("ConcatFromSequence", "s", axis=-1, new_axis=1)], {}),
    "join": ([node("SequenceConstruct", "x z", "s"), node("ConcatFromSequence", "s", axis=1)], {}),
    "list": ([node("SequenceEmpty", "", "e"), node("SequenceInsert", "e x", "f"),
              node("SequenceInsert", "f z zero", "g"), node("Identity", "g", "h"), node("SequenceErase", "h zero", "i"), node("SequenceLength", "h", "n"),
              node("Cast", "n", "m", to=TensorProto.FLOAT), node("SequenceAt", "i zero", "a"), node("Mul", "a m")],
             numbers(zero=0)),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_that_are_known_at_load(tmp_path, name):
    nodes, weights = SEQUENCES[name]
    write_case(tmp_path / "case", nodes, {"x": random(2, 3, 8), "z": random(2, 3, 8, scale=2)}, weights)
    agrees(tmp_path)


@pytest.mark.parametrize("place, reason", [("five", "place 5 of a sequence of 3")])
def test_places_in_sequences_that_are_not_known(tmp_path, place, reason):
    nodes = [node("SplitToSequence", "x", "s", axis=1, keepdims=0), node("SequenceAt", f"s {place}")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 8]),
              helper.make_tensor_value_info("at", TensorProto.INT64, [])]
    graph = helper.make_graph(nodes, "case", inputs, [helper.make_empty_tensor_value_info("y")],
                              [numpy_helper.from_array(np.array(5), "five")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "model.onnx")
    run = subprocess.run([BINARY, tmp_path / "model.onnx", "--driver", "dynamic"], capture_output=True, text=True,
                         timeout=300)
    assert run.returncode != 0 and reason in run.stderr and "SequenceAt" in run.stderr, run.stderr


@pytest.mark.skipif(not FIXTURES.exists(), reason=f"no {FIXTURES}")
@pytest.mark.parametrize("name", ["gpt2-optimum", "gpt2-ort-fused", "llama-ort-fused"])
def test_decoders_whose_norms_name_all_outputs(tmp_path, name):
    """The exporter's file, written a little differently, gives what the exporter's makers stored."""
    model = onnx.load(FIXTURES / name / "model.onnx")
    renamed = 0
    for n in model.graph.node:
        if n.op_type.endswith("LayerNormalization"):
            most = 4 if n.op_type.startswith("Skip") else 2 if n.op_type.startswith("Simplified") else 3
            names = [*n.output, *[""] * (most - len(n.output))]
            n.ClearField("output")
            n.output.extend(o or f"{n.name}_unread_{i}" for i, o in enumerate(names))
            renamed += 1
    assert renamed
    onnx.save(model, tmp_path / "model.onnx")
    sets = sorted((FIXTURES / name).glob("test_data_set_*"))
    run = subprocess.run([BINARY, tmp_path / "model.onnx", "--driver", "decoder", "--test-data", *sets],
                         capture_output=True, text=True, timeout=300)
    assert [line.split()[0] for line in run.stdout.splitlines()] == ["PASS"] * len(sets), run.stdout + run.stderr


SPECIAL = [np.nan, np.inf, -np.inf, 0, -0.0, 1e-40, -1e-40, 0.5, -0.5, 2.5, -2.5, 25, -25, 100, -100, 1e30, -1e30]


@pytest.mark.parametrize("op, attributes", [
    *((op, {}) for op in ("Sign", "Relu", "Sigmoid", "Softplus", "Softsign", "Mish", "HardSwish", "HardSigmoid", "Elu",
                          "Selu", "Celu", "LeakyRelu", "ThresholdedRelu", "Round", "Tanh", "Erf", "Reciprocal", "Sqrt",
                          "Tan", "Atan", "Sinh", "Asinh")),
    ("Elu", {"alpha": 1.5}), ("Selu", {"alpha": 1.5, "gamma": 0.5}), ("Celu", {"alpha": 1.5}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4})])
def test_pointwise_operators_on_special_values(tmp_path, op, attributes):
    values = np.array(SPECIAL, np.float32)
    if op == "Tan":  # its argument reduction is the C library's: 1e30 differs
        values = values[np.isnan(values) | (np.abs(values) < 1000)]
    write_case(tmp_path / "case", [node(op, "x", **attributes)], {"x": values}, opset=18)
    agrees(tmp_path)


@pytest.mark.parametrize("kind, values", [(np.uint8, [0, 1, 2, 7, 200]), (np.int8, [-9, -2, -1, 0, 1, 2, 9])])
@pytest.mark.parametrize("bias", [1.0, 0.5])
def test_shrinking_integers_by_real_numbers(tmp_path, kind, values, bias):
    write_case(tmp_path / "case", [node("Shrink", "x", lambd=1.5, bias=bias)], {"x": np.array(values, kind)})
    agrees(tmp_path)


@pytest.mark.parametrize("op, attributes", [("Min", {}), ("Max", {}), ("Mod", {"fmod": 1}), ("PRelu", {}), ("Pow", {})])
def test_pointwise_operators_on_pairs_of_special_values(tmp_path, op, attributes):
    a, b = (m.ravel() for m in np.meshgrid(np.array(SPECIAL, np.float32), np.array(SPECIAL, np.float32)))
    write_case(tmp_path / "case", [node(op, "a b", **attributes)], {"a": a, "b": b}, opset=18)
    agrees(tmp_path)


def grouped_query(**attributes):
    """Three tokens behind six."""
    feeds = {"q": random(1, 3, 64), "k": random(1, 3, 32), "v": random(3, 1, 32).swapaxes(0, 1),
             "pk": random(1, 2, 6, 16), "pv": random(1, 6, 2, 16).swapaxes(1, 2),
             "last": np.array([8], np.int32), "total": np.array(9, np.int32)}
    return feeds, {"num_heads": 4, "kv_num_heads": 2} | attributes


@pytest.mark.parametrize("attributes", [{}, {"smooth_softmax": 1}, {"local_window_size": 4}, {"softcap": 2.0}, {"causal": 0},
                                        {"local_window_size": 4, "softcap": 2.0, "scale": 0.5}])
@pytest.mark.parametrize("sinks", [False, True])
def test_grouped_query_attention_variants(tmp_path, attributes, sinks):
    feeds, attributes = grouped_query(**attributes)
    nodes = [node("GroupQueryAttention", "q k v pk pv last total", "y ok ov", MICROSOFT, **attributes)]
    if sinks:
        nodes[0].input.extend(["", "", "", "", "sink"])
    write_case(tmp_path / "case", nodes, feeds, {"sink": random(4, scale=3)} if sinks else {}, ("y", "ok", "ov"))
    agrees(tmp_path, drivers=["dynamic"])


def test_grouped_query_attention_with_norms_of_heads(tmp_path):
    """ONNX Runtime has them for GPUs only: they are a reshape, a norm and a reshape before the operator."""
    feeds, attributes = grouped_query(do_rotary=1)
    weights = {"g": random(16), "h": random(16, scale=2), "cos": np.cos(random(64, 8)), "sin": np.sin(random(64, 8)),
               "heads": np.array([0, 0, -1, 16]), "flat": np.array([0, 0, -1])}
    apart = [n for x, w in (("q", "g"), ("k", "h"))
             for n in (node("Reshape", f"{x} heads", f"{x}1"), node("SimplifiedLayerNormalization", f"{x}1 {w}", f"{x}2", epsilon=1e-3),
                       node("Reshape", f"{x}2 flat", f"{x}3"))]
    nodes = [*apart, node("GroupQueryAttention", "q3 k3 v pk pv last total cos sin", "y ok ov", MICROSOFT, **attributes)]
    write_case(tmp_path / "case", nodes, feeds, weights, ("y", "ok", "ov"))
    model = onnx.load(tmp_path / "case" / "model.onnx")
    del model.graph.node[:-1]
    one = model.graph.node[0]
    one.input[:] = ["q", "k", *one.input[2:], *[""] * 5, "g", "h"]
    one.attribute.append(helper.make_attribute("qk_norm_epsilon", 1e-3))
    onnx.save(model, tmp_path / "case" / "model.onnx")
    agrees(tmp_path, drivers=["dynamic"])


@pytest.mark.parametrize("before, new, room", [(2, 1, 4), (4, 1, 4), (9, 1, 4), (9, 1, 7), (3, 9, 4), (9, 8, 6), (0, 9, 5)])
@pytest.mark.parametrize("biased", [False, True])
def test_grouped_query_attention_with_a_cache_of_the_window(tmp_path, before, new, room, biased):
    """`before` tokens went through a cache of `room` rows, which holds what `resident` says: ONNX Runtime's layout."""
    window, total = 4, before + new
    feeds = {"q": random(1, new, 64), "k": random(1, new, 32), "v": random(new, 1, 32).swapaxes(0, 1),
             "pk": random(1, 2, room, 16), "pv": random(1, room, 2, 16).swapaxes(1, 2),
             "last": np.array([total - 1], np.int32), "total": np.array(total, np.int32)}
    weights = {"cos": np.cos(random(64, 8)), "sin": np.sin(random(64, 8)), "bias": random(1, 4, new, total)}
    one = node("GroupQueryAttention", "q k v pk pv last total cos sin", "y ok ov", MICROSOFT, num_heads=4, kv_num_heads=2,
               do_rotary=1, local_window_size=window, sliding_window_cache=1)
    if biased:
        one.input.extend(["", "bias"])
    # Rows of present behind the last token mean nothing: those that count are cut out.
    step = room - window + 1
    held = total if total <= room else total - step * -(-(total - room) // step)
    nodes = [one, node("Slice", "ok zero held axis", "k1"), node("Slice", "ov zero held axis", "v1")]
    weights |= {"zero": np.array([0]), "held": np.array([held]), "axis": np.array([2])}
    write_case(tmp_path / "case", nodes, feeds, weights, ("y", "k1", "v1"))
    agrees(tmp_path, drivers=["dynamic"])


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("operands, attributes", [
    ("x w b p", {"activation": "silu", "ndim": 1, "state_window": 0}), ("x w _ p", {"dilation": 2}), ("x w b", {"dilation": 3}),
    ("x w _ p", {"channels_last": 1, "activation": "swish"}), ("x w", {"channels_last": 1, "dilation": 2})])
def test_causal_convolutions_with_a_state(tmp_path, length, operands, attributes):
    """LFM2's and Qwen3.5's in ONNX Runtime GenAI's builder."""
    feeds = {"x": random(2, 4, length), "p": random(2, 4, 2 * attributes.get("dilation", 1))}
    if "channels_last" in attributes:
        feeds = {name: x.swapaxes(1, 2) for name, x in feeds.items()}
    feeds = {name: x for name, x in feeds.items() if name in operands}
    write_case(tmp_path / "case", [node("CausalConvWithState", operands, "y present", MICROSOFT, **attributes)], feeds,
               {"w": random(4, 1, 3), "b": random(4)}, ("y", "present"))
    agrees(tmp_path)


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("queries, heads", [(4, 4), (4, 2), (2, 4)])
@pytest.mark.parametrize("rule, operands", [
    ("linear", "q k v"), ("gated", "q k v _ g"), ("gated", "q k v s gk"), ("delta", "q k v s _ b"),
    ("gated_delta", "q k v s g b"), ("gated_delta", "q k v s gk b1")])
def test_linear_attention(tmp_path, rule, operands, queries, heads, length):
    """Qwen3.5's and its kin in ONNX Runtime GenAI's builder."""
    feeds = {"q": random(2, length, queries * 8), "k": random(2, length, heads * 8, scale=.3), "v": random(2, length, heads * 6),
             "s": random(2, heads, 8, 6), "g": -abs(random(2, length, heads)), "gk": -abs(random(2, length, heads * 8)),
             "b": abs(random(2, length, heads)), "b1": abs(random(2, length, 1))}
    one = node("LinearAttention", operands, "y present", MICROSOFT, update_rule=rule, q_num_heads=queries, kv_num_heads=heads)
    write_case(tmp_path / "case", [one], {name: x for name, x in feeds.items() if name in operands.split()}, None, ("y", "present"))
    agrees(tmp_path)


def test_linear_attention_whose_keys_have_as_many_heads_as_queries(tmp_path):
    """As GenAI's builder writes it where values have more."""
    feeds = {"q": random(2, 5, 16), "k": random(2, 5, 16, scale=.3), "v": random(2, 5, 24), "s": random(2, 4, 8, 6),
             "g": -abs(random(2, 5, 4)), "b": abs(random(2, 5, 4))}
    one = node("LinearAttention", "q k v s g b", "y present", MICROSOFT, q_num_heads=2, kv_num_heads=4)
    write_case(tmp_path / "case", [one], feeds, None, ("y", "present"))
    agrees(tmp_path)


@pytest.mark.parametrize("length", [1, 5])
def test_a_gated_delta_net_is_the_linear_attention_that_it_is_short_for(tmp_path, length):
    """ONNX Runtime has no CPU kernel of it: its parts are the oracle."""
    heads, keys, each, wide = 4, 2, 8, 6
    feeds = {"q": random(2, length, keys, each), "k": random(2, length, keys, each), "v": random(2, length, heads, wide),
             "a": random(2, length, heads), "b": random(2, length, heads), "s": random(2, heads, wide, each)}
    weights = {"A": random(heads), "dt": random(heads), "factor": -np.exp(random(heads)), "last": np.array([-1]),
               "little": np.float32(1e-6), "flat": np.array([0, 0, -1]), "apart": np.array([0, 0, heads, wide])}
    parts = []
    for name in "qk":
        parts += [node("Mul", f"{name} {name}", f"{name}1"), node("ReduceSum", f"{name}1 last", f"{name}2"),
                  node("Add", f"{name}2 little", f"{name}3"), node("Sqrt", f"{name}3", f"{name}4"),
                  node("Div", f"{name} {name}4", f"{name}5"), node("Reshape", f"{name}5 flat", f"{name}6")]
    parts += [node("Reshape", "v flat", "v6"), node("Transpose", "s", "turned", perm=[0, 1, 3, 2]),
              node("LinearAttentionGate", "a dt factor b", "decay beta", MICROSOFT),
              node("LinearAttention", "q6 k6 v6 turned decay beta", "y6 left", MICROSOFT, q_num_heads=keys, kv_num_heads=heads),
              node("Reshape", "y6 apart", "y"), node("Transpose", "left", "present", perm=[0, 1, 3, 2])]
    write_case(tmp_path / "case", parts, feeds, weights, ("y", "present"))
    agrees(tmp_path)
    model = onnx.load(tmp_path / "case" / "model.onnx")
    del model.graph.node[:]
    model.graph.node.append(node("GatedDeltaNet", "q k v _ a b s A dt", "y present", MICROSOFT, gate_activation="qwen",
                                 beta_activation="sigmoid", qk_l2_norm=1))
    onnx.save(model, tmp_path / "case" / "model.onnx")
    agrees(tmp_path)


@pytest.mark.parametrize("biased", [True, False])
def test_gates_of_linear_attention(tmp_path, biased):
    feeds = {"a": random(2, 3, 4), "b": random(2, 3, 4)}
    one = node("LinearAttentionGate", "a d f b" if biased else "a d f", "decay beta" if biased else "decay", MICROSOFT)
    write_case(tmp_path / "case", [one], feeds if biased else {"a": feeds["a"]}, {"d": random(4), "f": -abs(random(4))},
               ("decay", "beta") if biased else ("decay",))
    agrees(tmp_path)


@pytest.mark.parametrize("attributes", [{}, {"activation": "sigmoid", "epsilon": 1e-3}])
def test_gated_norms_of_heads(tmp_path, attributes):
    feeds = {"x": random(2, 3, 24), "z": random(2, 3, 24, scale=2)}
    write_case(tmp_path / "case", [node("GatedRMSNorm", "x g z", "y", MICROSOFT, **attributes)], feeds, {"g": random(8)})
    agrees(tmp_path)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("attributes, shape", [
    ({"num_heads": 2}, (2, 3, 32)), ({}, (2, 2, 3, 16)), ({"interleaved": 1, "num_heads": 2}, (2, 3, 32)),
    ({"rotary_embedding_dim": 16, "num_heads": 1}, (2, 3, 32))])
def test_rotations_by_three_positions(tmp_path, attributes, shape, layout):
    """Qwen's vision-language models: time, height and width turn pairs of their own."""
    feeds = {"x": random(*shape), "p": np.random.default_rng(3).integers(0, 40, (3, 2, 3))}
    one = node("MRotaryEmbedding", "x p cos sin", "y", MICROSOFT, mrope_section=[4, 2, 2], mrope_layout=layout, **attributes)
    write_case(tmp_path / "case", [one], feeds, {"cos": np.cos(random(40, 8)), "sin": np.sin(random(40, 8))})
    agrees(tmp_path)


def quantized_operands(shapes, kind):
    """Bytes with scales and zero points, as operators on them want these: names, feeds, weights."""
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    names, feeds, weights = [], {}, {"ys": np.float32(0.021), "yz": kind((low + high) // 2 - 5)}
    for i, shape in enumerate(shapes):
        feeds[f"x{i}"] = np.random.default_rng(i).integers(low, high, shape, endpoint=True).astype(kind)
        weights |= {f"s{i}": np.float32(0.013 + 0.004 * i), f"z{i}": kind((low + high) // 2 + 3 + i)}
        names += [f"x{i}", f"s{i}", f"z{i}"]
    return names, feeds, weights


IMAGE = (2, 3, 6, 5)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("op, shapes, attributes", [
    ("QLinearAdd", [(2, 3, 5), (3, 1)], {}),
    ("QLinearMul", [(2, 3, 5), (5,)], {}),
    ("QLinearSigmoid", [(4, 7)], {}),
    ("QLinearLeakyRelu", [(4, 7)], {"alpha": 0.3}),
    ("QLinearAveragePool", [IMAGE], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "strides": [2, 1]}),
    ("QLinearGlobalAveragePool", [IMAGE], {}),
    ("QLinearConcat", [(2, 3), (2, 4)], {"axis": 1}),
    ("QLinearSoftmax", [(3, 9)], {"axis": -1, "opset": 13}),
    ("QLinearWhere", [(3, 4), (4,)], {}),
    ("QGemm", [(3, 4), (4, 5)], {}),
    ("QGemm", [(4, 3), (5, 4)], {"transA": 1, "transB": 1, "alpha": 0.5})])
def test_operators_on_bytes_with_scales(tmp_path, op, shapes, attributes, kind):
    """What ONNX Runtime's quantizer writes in its QOperator format."""
    names, feeds, weights = quantized_operands(shapes, kind)
    inputs = [*names, "ys", "yz"]
    if op == "QLinearConcat":
        inputs = ["ys", "yz", *names]
    elif op == "QLinearWhere":
        weights["chosen"] = np.array([[True], [False], [True]])
        inputs.insert(0, "chosen")
    elif op == "QLinearSoftmax":
        weights |= {"ys": np.float32(1 / 256), "yz": kind(np.iinfo(kind).min)}
    elif op == "QGemm":
        weights |= {"bias": np.arange(-400, 600, 200, dtype=np.int32), "ys": np.float32(0.05)}
        inputs.insert(6, "bias")
    write_case(tmp_path / "case", [node(op, " ".join(inputs), "y", MICROSOFT, **attributes)], feeds, weights)
    agrees(tmp_path)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])  # ONNX Runtime itself ends at those of one operand
def test_results_without_a_zero_point_have_the_type_of_the_operands(tmp_path, op):
    names, feeds, weights = quantized_operands([(4, 7), (7,)], np.int8)
    del weights["yz"]
    write_case(tmp_path / "case", [node(op, " ".join([*names, "ys"]), "y", MICROSOFT)], feeds, weights)
    agrees(tmp_path)


@pytest.mark.parametrize("op, domain, operands", [("LayerNormalization", "", "x g b"), ("LayerNormalization", "", "x g"),
                                                  ("SimplifiedLayerNormalization", "", "x g")])
def test_norms_with_a_scale_for_each_head(tmp_path, op, domain, operands):
    """ONNX Runtime's optimiser fuses the norms of Command-R's heads so."""
    feeds = {"x": random(2, 3, 4, 8)}
    write_case(tmp_path / "case", [node(op, operands, "y", domain)], feeds, {"g": random(4, 8), "b": random(4, 1)})
    agrees(tmp_path)

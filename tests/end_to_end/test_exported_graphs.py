"""What torch writes of scripted loops, and ONNX Runtime's optimizers of images, BERT and T5, against ONNX Runtime; what it has
for GPUs only, and drawn numbers, against their definitions."""

import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from operator_cases import BINARY, MICROSOFT, agrees, node, random, write_case
from oracle import ADDS_EXACTLY

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")


def loop(inputs, outputs, state, body, results, weights=None):
    """One Loop whose body has the names of `state` (some of sequences, which begin with s) and gives `results`."""
    def info(name):
        kind = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
        return helper.make_value_info(name, helper.make_sequence_type_proto(kind) if name[0] == "s" else kind)

    going = [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    stored = [numpy_helper.from_array(a, name) for name, a in (weights or {}).items()]
    graph = helper.make_graph([node("Identity", "c", "again"), *body], "body", [*going, *map(info, state)],
                              [helper.make_tensor_value_info("again", TensorProto.BOOL, []), *map(info, results)], stored)
    return node("Loop", inputs, outputs, body=graph)


STEP = [node("SequenceAt", "parts i", "x"), node("Add", "x h", "sum"), node("Tanh", "sum", "next")]


@pytest.mark.parametrize("keep", [0, 1])
def test_sequences_in_loops(tmp_path, keep):
    """Slices that a loop picks by its counter, and lists that it appends to: `for x in xs.unbind(1): ...; out.append(h)`."""
    ends = {
        "stack": [node("ConcatFromSequence", "list", new_axis=1, axis=1)],
        "stack_last": [node("ConcatFromSequence", "list", new_axis=1, axis=-1)],
        "last": [node("SequenceAt", "list end")],
        "length": [node("SequenceLength", "list", "length"), node("CastLike", "length final", "n"), node("Mul", "n final")],
    }
    for name, end in ends.items():
        cut = [node("SplitToSequence", "xs", "parts", axis=1, keepdims=keep), node("SequenceLength", "parts", "trips"),
               node("SequenceEmpty", "", "none")]
        body = [*STEP, node("SequenceInsert", "s_in next", "s_out"), node("Mul", "next next", "power")]
        around = loop("trips _ first none", "final list squares", ["h", "s_in"], body, ["next", "s_out", "power"])
        feeds = {"xs": random(2, 5, 3), "first": random(*(2, 1, 3) if keep else (2, 3))}
        write_case(tmp_path / name, [*cut, around, *end], feeds, {"end": np.array(-1)}, ("y", "squares", "final"),
                   sizes={"xs": ["rows", "steps", 3], "first": ["rows", 1, 3] if keep else ["rows", 3]})
    agrees(tmp_path, len(ends), ["dynamic"])


def test_a_loop_that_inserts_in_front_is_refused(tmp_path):
    body = [node("Identity", "h", "next"), node("SequenceInsert", "s_in h zero", "s_out")]
    nodes = [node("SequenceEmpty", "", "none"), loop("trips _ x none", "h_last list", ["h", "s_in"], body, ["next", "s_out"]),
             node("ConcatFromSequence", "list", axis=0)]
    write_case(tmp_path / "case", nodes, {"x": random(2, 3)}, {"trips": np.array(3), "zero": np.array(0)})
    run = subprocess.run([BINARY, "--suite", tmp_path, "--driver", "dynamic"], capture_output=True, text=True, timeout=300)
    assert "(Loop) reads 'none', which is a sequence of tensors" in run.stdout, run.stdout


def test_optionals_that_are_tensors(tmp_path):
    nodes = [node("Optional", "x", "o"), node("OptionalHasElement", "o", "there"), node("OptionalGetElement", "o", "z"),
             node("Where", "there z zero")]
    write_case(tmp_path / "case", nodes, {"x": random(2, 3)}, {"zero": np.float32(0)}, opset=18)
    agrees(tmp_path)


def test_copies_of_the_standards_operators(tmp_path):
    draw = np.random.default_rng(4)

    def image(*shape):
        return draw.integers(0, 256, shape).astype(np.uint8)

    most = 100 if ADDS_EXACTLY else 60
    scales = {"xs": np.float32(0.02), "xz": np.uint8(120), "ws": np.float32(0.01), "wz": np.int8(0), "ys": np.float32(0.1),
              "yz": np.uint8(128), "w": draw.integers(-most, most, (4, 3, 3, 2)).astype(np.int8)}
    x = random(2, 3, 4)
    cases = [
        ([node("Trilu", "x k", "y", MICROSOFT, upper=0)], {"x": x}, {"k": np.array(1)}),
        ([node("GatherND", "x i", "y", MICROSOFT)], {"x": x, "i": np.array([[0, 1], [1, -1]])}, {}),
        ([node("Pad", "x p v", "y", MICROSOFT)], {"x": x}, {"p": np.array([0, 1, 0, 0, 0, 2]), "v": np.float32(3)}),
        ([node("ExpandDims", "x a", "y", MICROSOFT)], {"x": x}, {"a": np.array(-2, np.int32)}),
        ([node("Range", "a b c", "r", MICROSOFT), node("Cast", "r", "y", to=TensorProto.FLOAT)], {}, {"a": np.array(1), "b": np.array(9), "c": np.array(2)}),
        ([node("CDist", "a b", "y", MICROSOFT, metric="euclidean")], {"a": random(5, 4), "b": random(6, 4, scale=2)}, {}),
        ([node("CDist", "a b", "y", MICROSOFT)], {"a": random(5, 4), "b": random(6, 4, scale=2)}, {}),
        ([node("NhwcMaxPool", "x", "y", MICROSOFT, kernel_shape=[2, 3], strides=[2, 1], pads=[1, 0, 0, 0])], {"x": image(2, 6, 5, 3)}, {}),
        ([node("QLinearConv", "x xs xz w ws wz ys yz", "y", MICROSOFT, channels_last=1, strides=[1, 2])], {"x": image(2, 6, 7, 3)}, scales),
        ([node("QLinearConv", "x xs xz w ws wz ys yz", "y", MICROSOFT)], {"x": image(2, 3, 6, 7)}, scales),
        ([node("QLinearGlobalAveragePool", "x xs xz ys yz", "y", MICROSOFT, channels_last=1)], {"x": image(2, 6, 7, 3)}, scales),
        ([node("Unique", "x", "values idx counts", MICROSOFT), node("Cast", "idx", "f", to=TensorProto.FLOAT), node("Gather", "values idx", "g"),
          node("Add", "f g")], {"x": np.array([2, 1, 1, 3, 4, 3], np.float32)}, {}),
    ]
    drivers = {"dynamic": 0, "both": 0}
    for nodes, feeds, weights in cases:
        where = "dynamic" if nodes[0].op_type == "Unique" else "both"  # its sizes are data
        drivers[where] += 1
        used = {name for n in nodes for name in n.input}
        write_case(tmp_path / where / f"case{drivers[where]}", nodes, feeds, {n: a for n, a in weights.items() if n in used})
    agrees(tmp_path / "both", drivers["both"])
    agrees(tmp_path / "dynamic", drivers["dynamic"], ["dynamic"])


@pytest.mark.parametrize("mask", [[2, 3], [3, 2, 1, 0], [2, 3, 0, 2, 5, 0, 2, 5]])
def test_masks_that_are_lengths(tmp_path, mask):
    """Ends, ends and begins, and the cumulated form that ONNX Runtime reads as ends."""
    weights = {"w": random(8, 24), "b": random(24)}
    nodes = [node("Attention", "x w b m", "y", MICROSOFT, num_heads=2)]
    write_case(tmp_path / "case", nodes, {"x": random(2, 3, 8), "m": np.array(mask, np.int32)}, weights)
    agrees(tmp_path)


def run(folder, nodes, feeds, weights=None, outputs=("y",)):
    """What ark makes of a graph that ONNX Runtime has no kernels for."""
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    stored = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "case", infos, [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs], stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    folder.mkdir()
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "model.onnx")
    for name, array in feeds.items():
        np.save(folder / f"{name}.npy", array)
    given = [word for name in feeds for word in ("--input", f"{name}={folder / name}.npy")]
    done = subprocess.run([BINARY, folder / "model.onnx", *given, "--output-dir", folder / "out"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [np.load(folder / "out" / f"{name}.npy") for name in outputs]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def close(actual, expected):
    bound = 1e-5 * np.abs(expected).max()  # sums of at most 100 terms
    assert actual.shape == expected.shape and not (np.abs(actual - expected) > bound).any()


def test_operators_for_gpus(tmp_path):
    x, g, b = random(2, 4, 5, 8), random(8), random(1, 8)[0]
    skip = random(2, 8)
    s = x + skip[:, None, None] + b
    groups = s.astype(np.float64).reshape(2, 20, 2, 4)
    normal = (groups - groups.mean((1, 3), keepdims=True)) / np.sqrt(groups.var((1, 3), keepdims=True) + 1e-5)
    wanted = normal.reshape(s.shape) * g + b
    y, total = run(tmp_path / "norm", [node("SkipGroupNorm", "x g b skip b", "y s", MICROSOFT, groups=2, activation=1)],
                   {"x": x, "skip": skip}, {"g": g, "b": b}, ("y", "s"))
    close(y, wanted * sigmoid(wanted))
    close(total, s)
    close(run(tmp_path / "plain", [node("GroupNorm", "s g b", "y", MICROSOFT, groups=2, activation=0, channels_last=0)],
              {"s": s.transpose(0, 3, 1, 2).copy()}, {"g": g, "b": b})[0], wanted.transpose(0, 3, 1, 2))

    erf = np.vectorize(__import__("math").erf)
    left, right = np.split(x + b, 2, axis=-1)
    close(run(tmp_path / "gelu", [node("BiasSplitGelu", "x b", "y", MICROSOFT)], {"x": x}, {"b": b})[0],
          left * right * 0.5 * (1 + erf(right / np.sqrt(2))))
    close(run(tmp_path / "add", [node("BiasAdd", "x b z", "y", MICROSOFT)], {"x": x, "z": -2 * x}, {"b": b})[0], b - x)

    w = random(3, 2, 2, 8)
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(1, 2))  # [N, H, W, C, kH, kW]
    close(run(tmp_path / "conv", [node("NhwcConv", "x w", "y", MICROSOFT)], {"x": x}, {"w": w})[0],
          np.einsum("nhwcij,mijc->nhwm", windows, w))


def t5_bucket(ahead, buckets, most, both):
    """As in T5's paper and code: half of the buckets for each direction, of these half exact, the rest by logarithm."""
    first = 0
    if both:
        buckets //= 2
        first, distance = (buckets if ahead > 0 else 0), abs(ahead)
    else:
        distance = max(-ahead, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    return first + min(buckets - 1, exact + int(np.log(distance / exact) / np.log(most / exact) * (buckets - exact)))


@pytest.mark.parametrize("both", [0, 1])
def test_position_biases_for_gpus(tmp_path, both):
    table, queries, keys = random(12, 2), 9, 30
    nodes = [node("RelativePositionBias", "t q k", "y", MICROSOFT, max_distance=20, is_bidirectional=both)]
    expected = np.array([[table[t5_bucket(k - q, 12, 20, both)] for k in range(keys)] for q in range(queries)])
    got = run(tmp_path / "t5", nodes, {"q": np.array([queries]), "k": np.array([keys])},
              {"t": table.T.reshape(table.shape)})[0]  # "COL-major", says the operator's schema
    close(got, expected.transpose(2, 0, 1)[None])

    q, bias, rel, w, b8, a = random(2, 5, 8), random(8), random(1, 2, 5, 5), random(4, 8), random(1, 8)[0], random(1, 2, 1, 1)
    heads = (q + bias).reshape(2, 5, 2, 4).transpose(0, 2, 1, 3)
    u, r = np.split(sigmoid((heads @ w + b8).reshape(2, 2, 5, 2, 4).sum(-1)), 2, axis=-1)
    nodes = [node("GatedRelativePositionBias", "q bias rel w b8 a", "y", MICROSOFT, num_heads=2)]
    got = run(tmp_path / "wavlm", nodes, {"q": q, "rel": rel}, {"bias": bias, "w": w, "b8": b8, "a": a})[0]
    close(got, (u * (r * a - 1) + 2) * rel)


def test_drawn_numbers(tmp_path):
    """The same in every run, others in every node, and spread as asked for: bounds that chance breaks once in a million."""
    n = 40000
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["a"], scale=2.0, mean=1.0), helper.make_node("RandomNormalLike", ["x"], ["b"]),
             helper.make_node("RandomUniform", [], ["u"], shape=[n], low=-1.0, high=3.0, seed=7.0),
             helper.make_node("RandomUniform", [], ["v"], shape=[n], low=-1.0, high=3.0, seed=7.0),
             node("Mul", "p p", "half"), helper.make_node("Bernoulli", ["half"], ["heads"])]
    names = ("a", "b", "u", "v", "heads")
    feeds = {"x": np.zeros((200, 200), np.float32), "p": np.full(n, 0.5, np.float32)}
    first = run(tmp_path / "first", nodes, feeds, outputs=names)
    again = run(tmp_path / "again", nodes, feeds, outputs=names)
    assert all((one == other).all() for one, other in zip(first, again))
    a, b, u, v, heads = (array.ravel().astype(np.float64) for array in first)
    assert (u == v).all()  # of one seed
    wide = 5 / np.sqrt(n)  # five deviations of a mean of n numbers of deviation 1
    for normal in ((a - 1) / 2, b):
        assert abs(normal.mean()) < wide and abs(normal.var() - 1) < wide * np.sqrt(2) and abs((normal**4).mean() - 3) < wide * np.sqrt(96)
    assert abs(((a - 1) / 2 * b).mean()) < wide
    even = np.sort((u + 1) / 4)
    assert even[0] > 0 and even[-1] < 1
    assert np.abs(even - (np.arange(n) + 0.5) / n).max() < 2.7 / np.sqrt(n)  # Kolmogorov and Smirnov's bound
    assert set(heads) == {0, 1} and abs(heads.mean() - 0.25) < wide / 2

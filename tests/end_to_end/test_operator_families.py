"""Operators of speech, detection, time series and classic models in the ways that ONNX's own tests leave out, and graphs as
exporters write them, against ONNX Runtime. Many cases in one run: a process costs more than they do."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from operator_cases import BINARY, CLASSIC, TYPES, agrees, node, random, write_case

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")

ACTIVATIONS = ["Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign",
               "Softplus"]
TAKE_ALPHA = {"Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"}
TAKE_BETA = {"Affine", "ScaledTanh", "HardSigmoid"}


def random_layer(draw):
    """Nodes, feeds, weights, outputs of one RNN, GRU or LSTM."""
    op = str(draw.choice(["LSTM", "GRU", "RNN"]))
    gates, functions = {"LSTM": (4, 3), "GRU": (3, 2), "RNN": (1, 1)}[op]
    steps, rows, width, hidden = (int(draw.integers(1, most)) for most in (7, 7, 9, 20))
    direction = str(draw.choice(["forward", "reverse", "bidirectional"]))
    count = 2 if direction == "bidirectional" else 1
    attributes = {"hidden_size": hidden, "direction": direction}
    if draw.random() < 0.5:
        names = [str(name) for name in draw.choice(ACTIVATIONS, functions * count)]
        attributes["activations"] = names
        # What is left out of the lists' ends has ONNX's defaults; ONNX Runtime has others for three.
        for list_name, takers in (("activation_alpha", TAKE_ALPHA), ("activation_beta", TAKE_BETA)):
            taken = sum(name in takers for name in names)
            given = taken if {"Affine", "ScaledTanh", "ThresholdedRelu"} & set(names) else int(draw.integers(taken + 1))
            if given:
                attributes[list_name] = [float(np.float32(v)) for v in draw.uniform(0.1, 1.2, given)]
    if draw.random() < 0.3:
        attributes["clip"] = float(draw.uniform(0.2, 2))
    if op == "GRU" and draw.random() < 0.6:
        attributes["linear_before_reset"] = 1
    if op == "LSTM" and draw.random() < 0.3:
        attributes["input_forget"] = 1

    def real(*shape):
        return (draw.standard_normal(shape) * 0.7).astype(np.float32)

    optional = {"b": real(count, 2 * gates * hidden), "lengths": draw.integers(0, steps + 1, rows).astype(np.int32),
                "h": real(count, rows, hidden)}
    if op == "LSTM":
        optional |= {"c": real(count, rows, hidden), "p": real(count, 3 * hidden)}
    given = {name: array for name, array in optional.items() if draw.random() < 0.5}
    names = ["x", "w", "r", *(name if name in given else "_" for name in optional)]
    outputs = ("y", "y_h", "y_c") if op == "LSTM" else ("y", "y_h")
    weights = {"w": real(count, gates * hidden, width), "r": real(count, gates * hidden, hidden)}
    weights |= {name: given.pop(name) for name in ("b", "p") if name in given}
    layer = node(op, " ".join(names), " ".join(outputs), **attributes)
    return [layer], {"x": real(steps, rows, width)} | given, weights, outputs, {"x": ["steps", "rows", width]}


def test_recurrent_layers(tmp_path):
    draw = np.random.default_rng(7)
    count = 40
    for number in range(count):
        nodes, feeds, weights, outputs, sizes = random_layer(draw)
        write_case(tmp_path / f"case{number}", nodes, feeds, weights, outputs, 14 if number % 2 else 22, sizes)
    agrees(tmp_path, count)


def test_layers_of_the_dynamic_quantizer(tmp_path):
    """ONNX Runtime rounds the state in each step too: by half of 2 / 255 at most, times the sums of a gate's weights."""
    draw = np.random.default_rng(5)
    steps, rows, width, hidden = 5, 3, 4, 6
    cases = [(direction, kind, columns) for direction in ("reverse", "bidirectional") for kind in (np.int8, np.uint8) for columns in (0, 1)]
    for number, (direction, kind, columns) in enumerate(cases):
        count = 1 + (direction == "bidirectional")
        low = np.iinfo(kind).min
        weights = {"b": draw.standard_normal((count, 8 * hidden)).astype(np.float32)}
        for name, size in (("w", width), ("r", hidden)):
            scales = (count, 4 * hidden) if columns else (count,)
            weights |= {name: draw.integers(low, low + 256, (count, size, 4 * hidden)).astype(kind),
                        name + "s": draw.uniform(0.003, 0.006, scales).astype(np.float32),
                        name + "z": np.full(scales, low + 128, kind)}
        layer = node("DynamicQuantizeLSTM", "x w r b _ h _ _ ws wz rs rz", "y y_h y_c", "com.microsoft", hidden_size=hidden, direction=direction)
        feeds = {"x": random(steps, rows, width), "h": random(count, rows, hidden, scale=0.3)}
        write_case(tmp_path / f"case{number}", [layer], feeds, weights, ("y", "y_h", "y_c"), sizes={"x": ["steps", "rows", width]}, atol=0.02)
    agrees(tmp_path, len(cases))


def boxes_and_scores(draw, images=2, classes=3, count=24):
    corners = draw.uniform(0, 8, (images, count, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + draw.uniform(-3, 4, corners.shape)], axis=2).astype(np.float32)
    return boxes, draw.random((images, classes, count)).round(2).astype(np.float32)  # with equal scores


def test_detection(tmp_path):
    draw = np.random.default_rng(3)
    counts = {"fixed": 0, "chosen": 0}

    def case(nodes, feeds, weights=None, opset=22, where="fixed"):
        """Where the data choose the result's size, only the dynamic driver runs it."""
        counts[where] += 1
        write_case(tmp_path / where / f"case{counts[where]}", nodes, feeds, weights, opset=opset)

    def scalar(value, dtype=np.float32):
        return np.array([value], dtype)

    boxes, scores = boxes_and_scores(draw)
    for most, overlap, score, centre in ((4, 0.5, 0.4, 0), (100, 0.3, 0, 1), (2, 1, 0.9, 0), (0, 0.5, 0.5, 0), (7, 0, 2, 0)):
        weights = {"most": scalar(most, np.int64), "overlap": scalar(overlap), "score": scalar(score)}
        case([node("NonMaxSuppression", "b s most overlap score", center_point_box=centre)], {"b": boxes, "s": scores}, weights,
             where="chosen")
    case([node("NonMaxSuppression", "b s most")], {"b": boxes, "s": scores, "most": scalar(9, np.int64)}, where="chosen")
    regions = np.array([[0, 0, 7, 5], [3, 2, 3, 2], [-4, -4, 30, 20], [6, 5, 1, 1], [2.5, 1.5, 6.1, 4.2]], np.float32)
    images = np.array([0, 1, 1, 0, 1], np.int64)
    x = random(2, 3, 6, 9)
    for opset, mode, ratio, scale in ((10, "avg", 0, 1.0), (16, "avg", 2, 0.5), (16, "avg", 0, 1.5), (16, "max", 3, 1.0)):
        case([node("RoiAlign", "x r i", mode=mode, sampling_ratio=ratio, spatial_scale=scale, output_height=3, output_width=2)],
             {"x": x, "r": regions, "i": images}, opset=opset)
    rois = np.concatenate([images[:, None], np.abs(regions)], axis=1).astype(np.float32)
    case([node("MaxRoiPool", "x r", pooled_shape=[2, 3], spatial_scale=0.7)], {"x": x, "r": rois}, opset=10)
    grids = {4: (draw.uniform(-1.6, 1.6, (2, 5, 4, 2))).astype(np.float32),
             5: (draw.uniform(-1.6, 1.6, (2, 3, 4, 2, 3))).astype(np.float32)}
    for rank, mode in ((4, "linear"), (4, "nearest"), (4, "cubic"), (5, "linear"), (5, "nearest")):
        for padding in ("zeros", "border", "reflection"):
            for align in (0, 1):
                case([node("GridSample", "x g", mode=mode, padding_mode=padding, align_corners=align)],
                     {"x": x if rank == 4 else random(2, 2, 4, 3, 5), "g": grids[rank]})
    case([node("GridSample", "x g", mode="bicubic")], {"x": x, "g": grids[4]}, opset=16)
    for align in (0, 1):
        sizes = np.array([2, 3, 4, 5], np.int64)
        case([node("AffineGrid", "t s", align_corners=align)], {"t": random(2, 2, 3)}, {"s": sizes}, opset=20)
        case([node("AffineGrid", "t s", align_corners=align)], {"t": random(2, 3, 4), "s": np.array([2, 3, 4, 5, 2], np.int64)},
             opset=20, where="chosen")
    deformed = {"x": random(2, 4, 7, 6), "w": random(6, 2, 3, 2), "o": random(2, 24, 4, 5), "b": random(6), "m": random(2, 12, 4, 5)}
    case([node("DeformConv", "x w o b m", group=2, offset_group=2, strides=[2, 1], pads=[1, 0, 1, 0])], deformed)
    case([node("Col2Im", "x image block", dilations=[1, 2], pads=[1, 0, 0, 2], strides=[2, 1])], {"x": random(2, 12, 21)},
         {"image": np.array([5, 7]), "block": np.array([2, 2])}, opset=18)
    case([node("MaxPool", "x", "p i", kernel_shape=[2, 2], strides=[2, 2]),
          node("MaxUnpool", "p i", kernel_shape=[2, 2], strides=[2, 2])], {"x": random(2, 3, 6, 8)})
    agrees(tmp_path / "fixed", counts["fixed"])
    agrees(tmp_path / "chosen", counts["chosen"], drivers=["dynamic"])


def test_signals(tmp_path):
    cases = []

    def case(nodes, feeds, weights=None, opset=20, **more):
        cases.append(nodes)
        write_case(tmp_path / f"case{len(cases)}", nodes, feeds, weights, opset=opset, **more)

    def parts(numbers):
        return np.stack([numbers.real, numbers.imag], axis=-1).astype(np.float32)

    # By numpy in double: ONNX Runtime loses three digits of 400.
    for length in (1, 2, 16, 60, 67, 131, 400):  # powers, small and large primes
        weights = {"n": np.array(length), "axis": np.array(1)}
        real, pair = random(3, length, 1), random(3, length, 2)
        both = pair[..., 0].astype(complex) + 1j * pair[..., 1]
        case([node("DFT", "x n axis", onesided=1)], {"x": real}, weights, results=[parts(np.fft.rfft(real[..., 0].astype(float)))])
        case([node("DFT", "x n axis", inverse=1)], {"x": pair}, weights, results=[parts(np.fft.ifft(both))])
    case([node("DFT", "x", axis=2)], {"x": random(2, 3, 5, 4, 2)}, opset=17)
    case([node("DFT", "x n")], {"x": random(2, 9, 2)}, {"n": np.array(12)})
    case([node("DFT", "x n")], {"x": random(2, 9, 1)}, {"n": np.array(5)})
    # A log-mel front end as Whisper's exporters write it; the signal's length is the caller's.
    weights = {"step": np.array(40), "frame": np.array(100), "size": np.array(100), "bins": np.array(20), "rate": np.array(16000),
               "low": np.array(20, np.float32), "high": np.array(7600, np.float32), "floor": np.array(1e-10, np.float32)}
    front_end = [
        node("HannWindow", "size", "window"), node("STFT", "x step window frame", "spectrum", onesided=1),
        node("ReduceSumSquare", "spectrum last", "power", keepdims=0),
        node("MelWeightMatrix", "bins frame rate low high", "mel"), node("MatMul", "power mel", "energy"),
        node("Max", "energy floor", "bounded"), node("Log", "bounded")]
    weights["last"] = np.array([-1])
    case(front_end, {"x": random(2, 1000)}, weights, 18, sizes={"x": ["batch", "samples"]}, atol=1e-3)
    case([node("STFT", "x step _ frame")], {"x": random(1, 300, 1)}, {"step": np.array(64), "frame": np.array(128)}, 17, atol=1e-3)
    case([node("CumSum", "x axis")], {"x": random(3, 5)}, {"axis": np.array(-1)})
    case([node("Det", "x")], {"x": random(2, 3, 5, 5)})
    agrees(tmp_path, len(cases))


def test_a_tagger_as_torch_exports_it(tmp_path):
    """Two bidirectional layers over embedded tokens, batch first, with sizes that the caller chooses."""
    hidden, width, words, tags = 12, 10, 50, 5
    draw = np.random.default_rng(5)

    def real(*shape):
        return (draw.standard_normal(shape) * 0.4).astype(np.float32)

    weights = {"table": real(words, width), "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]),
               "flat": np.array([0, 0, -1]), "out": real(2 * hidden, tags), "bias": real(tags), "states": np.array([2]),
               "hidden": np.array([hidden])}
    nodes = [node("Gather", "table tokens", "embedded"), node("Transpose", "embedded", "x0", perm=[1, 0, 2]),
             node("Shape", "tokens", "shape"), node("Slice", "shape zero one", "batch"),
             node("Concat", "states batch hidden", "sizes", axis=0), node("ConstantOfShape", "sizes", "h0")]
    for layer, size in enumerate((width, 2 * hidden)):
        weights |= {f"w{layer}": real(2, 4 * hidden, size), f"r{layer}": real(2, 4 * hidden, hidden), f"b{layer}": real(2, 8 * hidden)}
        nodes += [node("LSTM", f"x{layer} w{layer} r{layer} b{layer} _ h0 h0", f"y{layer}", hidden_size=hidden,
                       direction="bidirectional"),
                  node("Transpose", f"y{layer}", f"t{layer}", perm=[0, 2, 1, 3]), node("Reshape", f"t{layer} flat", f"x{layer + 1}")]
    nodes += [node("Transpose", "x2", "rows", perm=[1, 0, 2]), node("MatMul", "rows out", "scores"), node("Add", "scores bias")]
    write_case(tmp_path / "case", nodes, {"tokens": draw.integers(0, words, (3, 7))}, weights, sizes={"tokens": ["batch", "seq"]})
    agrees(tmp_path)


def test_a_voice_detector_that_chooses_a_branch(tmp_path):
    """Silero's shape: STFT by a convolution, a recurrent cell with its state as input and output, `If` on the sample rate."""
    hidden = 8
    stored = {"w": random(1, 4 * hidden, 9), "r": random(1, 4 * hidden, hidden, scale=0.3), "b": random(1, 8 * hidden),
              "wide": random(18, 1, 16), "narrow": random(18, 1, 8), "rate16": np.array(16000), "zero": np.array([0]), "nine": np.array([9]),
              "eighteen": np.array([18]), "one": np.array([1]), "two": np.array([2]), "head": random(hidden, 1), "unit": np.array([0])}

    def branch(kernel, stride):
        graph = helper.make_graph([node("Conv", f"audio {kernel}", "spectrum", strides=[stride])], kernel, [],
                                  [helper.make_tensor_value_info("spectrum", TensorProto.FLOAT, None)])
        return graph

    choose = node("If", "is_wide", "spectrum", then_branch=branch("wide", 8), else_branch=branch("narrow", 4))
    nodes = [node("Equal", "rate rate16", "is_wide"), node("Unsqueeze", "x one", "audio"), choose,
             node("Slice", "spectrum zero nine one", "re"), node("Slice", "spectrum nine eighteen one", "im"),
             node("Mul", "re re", "re2"), node("Mul", "im im", "im2"), node("Add", "re2 im2", "power"), node("Sqrt", "power", "size"),
             node("Transpose", "size", "steps", perm=[2, 0, 1]), node("LSTM", "steps w r b _ h c", "all hn cn", hidden_size=hidden),
             node("Squeeze", "all one", "last"), node("MatMul", "last head", "score"), node("Sigmoid", "score", "y")]
    for number, (rate, samples) in enumerate(((16000, 128), (8000, 64))):
        feeds = {"x": random(2, samples), "rate": np.array(rate), "h": random(1, 2, hidden), "c": random(1, 2, hidden)}
        write_case(tmp_path / f"case{number}", nodes, feeds, stored, ("y", "hn", "cn"), sizes={"x": ["batch", "samples"]})
    agrees(tmp_path, 2, drivers=["dynamic"])


def test_a_detector_with_its_suppression(tmp_path):
    """A head as YOLO's exporters write it: boxes from a grid of cells, kept ones gathered by (image, class, box)."""
    weights = {"kernel": random(7, 4, 1, 1), "order": np.array([0, 7, -1]), "zero": np.array([0]), "four": np.array([4]),
               "end": np.array([7]), "one": np.array([1]), "two": np.array([2]), "three": np.array([3]), "most": np.array([5]),
               "overlap": np.array([0.4], np.float32), "least": np.array([0.55], np.float32), "eight": np.array(8, np.float32),
               "pair": np.array([0, 2])}
    nodes = [node("Conv", "x kernel", "raw"), node("Reshape", "raw order", "cells"), node("Slice", "cells zero four one", "places"),
             node("Sigmoid", "places", "unit"), node("Mul", "unit eight", "scaled"), node("Transpose", "scaled", "boxes", perm=[0, 2, 1]),
             node("Slice", "cells four end one", "logits"), node("Sigmoid", "logits", "scores"),
             node("NonMaxSuppression", "boxes scores most overlap least", "kept", center_point_box=1),
             node("Gather", "kept pair", "which", axis=1), node("GatherND", "boxes which", "y"), node("GatherND", "scores kept", "best")]
    write_case(tmp_path / "case", nodes, {"x": random(2, 4, 6, 5)}, weights, ("y", "best", "kept"),
               sizes={"x": ["batch", 4, "height", "width"]})
    agrees(tmp_path, drivers=["dynamic"])


def random_forest(draw, trees, depth, features, targets, prefix, only=None, positive=False):
    """Attributes of a TreeEnsemble: full trees whose leaves weigh all targets, or one."""
    lists = {f"nodes_{name}": [] for name in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids",
                                              "missing_value_tracks_true")}
    lists |= {f"{prefix}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}
    # Not BRANCH_NEQ: ONNX Runtime goes by the comparison there where the feature is NaN, the standard by missing_value_tracks_true.
    modes = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ"]
    for tree in range(trees):
        inner = 2**depth - 1
        for number in range(2 * inner + 1):
            leaf = number >= inner
            row = (tree, number, 0 if leaf else int(draw.integers(features)), "LEAF" if leaf else str(draw.choice(modes[:4 if tree else 5])),
                   float(np.float32(draw.normal())), 0 if leaf else 2 * number + 1, 0 if leaf else 2 * number + 2, int(draw.integers(2)))
            for values, value in zip(list(lists.values())[:8], row):
                values.append(value)
            for target in (range(targets) if only is None else [only]) if leaf else []:
                weight = abs(draw.normal()) / trees if positive else draw.normal()
                for values, value in zip(list(lists.values())[8:], (tree, number, int(target), float(np.float32(weight)))):
                    values.append(value)
    return lists


def test_classic_models(tmp_path):
    draw = np.random.default_rng(11)
    cases = []

    def case(op, feeds, outputs=("y",), atol=None, **attributes):
        cases.append(op)
        write_case(tmp_path / f"case{len(cases)}", [node(op, " ".join(feeds), " ".join(outputs), CLASSIC, **attributes)], feeds,
                   outputs=outputs, opset=15, atol=atol)

    x = random(70, 4)
    x[3, 1] = np.nan
    for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
        case("TreeEnsembleRegressor", {"x": x}, n_targets=3, aggregate_function=aggregate, base_values=[0.5, -1.0, 2.0],
             **random_forest(draw, 5, 4, 4, 3, "target"))
    both = ("y", "z")
    for transform in ("NONE", "SOFTMAX", "LOGISTIC"):
        case("TreeEnsembleClassifier", {"x": x}, both, classlabels_int64s=[7, -2, 5], post_transform=transform,
             **random_forest(draw, 6, 3, 4, 3, "class"))
        case("TreeEnsembleClassifier", {"x": x}, both, classlabels_int64s=[3, 4], post_transform=transform,
             **random_forest(draw, 3, 3, 4, 1, "class", only=0))
        for positive in (True, False):
            case("TreeEnsembleClassifier", {"x": x}, both, classlabels_int64s=[3, 4], post_transform=transform, base_values=[0.25],
                 **random_forest(draw, 3, 3, 4, 1, "class", only=0, positive=positive))
            case("TreeEnsembleClassifier", {"x": x}, both, classlabels_int64s=[0, 1], post_transform=transform,
                 **random_forest(draw, 3, 2, 4, 1, "class", only=1, positive=positive))
    clean = random(9, 4)
    three = {"coefficients": [float(v) for v in random(12)], "intercepts": [0.1, -0.2, 0.3]}
    for transform in ("NONE", "SOFTMAX", "LOGISTIC"):
        case("LinearClassifier", {"x": clean}, both, classlabels_ints=[4, 9, 2], post_transform=transform, multi_class=1, **three)
        case("LinearRegressor", {"x": clean}, targets=3, post_transform=transform, **three)
        case("LinearRegressor", {"x": clean}, targets=1, post_transform=transform, coefficients=three["coefficients"][:4])
        case("TreeEnsembleRegressor", {"x": x}, n_targets=1, post_transform=transform, **random_forest(draw, 2, 2, 4, 1, "target"))
    for transform in ("NONE", "LOGISTIC"):
        case("LinearClassifier", {"x": clean}, both, classlabels_ints=[4, 9], post_transform=transform,
             coefficients=three["coefficients"][:4], intercepts=[0.1])
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        machine = {"kernel_type": kernel, "kernel_params": [0.3, 0.5, 3.0], "support_vectors": [float(v) for v in random(7, 4).ravel()]}
        real = [float(v) for v in random(21)]
        for only_inside in (0, 1):
            case("SVMRegressor", {"x": clean + 20}, coefficients=real[:7], n_supports=7, rho=[0.2], one_class=only_inside, **machine)
        for transform in ("NONE", "LOGISTIC"):
            options = {"post_transform": transform} | machine
            case("SVMClassifier", {"x": clean}, both, classlabels_ints=[4, 9, 2], vectors_per_class=[3, 1, 3], coefficients=real[:14],
                 rho=[0.1, -0.2, 0.3], **options)
            case("SVMClassifier", {"x": clean}, both, classlabels_ints=[4, 9], vectors_per_class=[3, 4], coefficients=real[:7],
                 rho=[0.1], **options)
    case("SVMRegressor", {"x": clean}, coefficients=three["coefficients"][:4], rho=[0.2], kernel_params=[0.3, 0.5, 3.0])
    for norm in ("MAX", "L1", "L2"):
        case("Normalizer", {"x": np.vstack([clean, np.zeros((1, 4), np.float32)])}, norm=norm)
    case("Scaler", {"x": clean}, offset=[1.0, 2.0, 3.0, 4.0], scale=[0.5, 1.0, 2.0, 4.0])
    case("Scaler", {"x": np.arange(8).reshape(2, 4)}, offset=[1.5], scale=[0.5])
    case("Binarizer", {"x": clean}, threshold=0.3)
    case("Imputer", {"x": x}, replaced_value_float=float("nan"), imputed_value_floats=[1.0, 2.0, 3.0, 4.0])
    case("Imputer", {"x": np.arange(8).reshape(2, 4)}, replaced_value_int64=3, imputed_value_int64s=[-1])
    case("OneHotEncoder", {"x": np.array([[1, 5], [2, 9]])}, cats_int64s=[5, 1, 7])
    case("FeatureVectorizer", {"a": clean, "b": random(9, 2)}, inputdimensions=[4, 2])
    case("ArrayFeatureExtractor", {"x": clean, "i": np.array([[2, 0, 2]])})
    case("LabelEncoder", {"x": np.array([[3, 1], [8, 3]])}, keys_int64s=[1, 3, 3], values_floats=[0.5, 1.5, 2.5], default_float=-1.0)
    case("LabelEncoder", {"x": np.array([1.5, 1.25, 2.0], np.float32)}, keys_floats=[2.0, 1.5], values_int64s=[10, 20])
    agrees(tmp_path, len(cases))


@pytest.mark.parametrize("mask", ["none", "bool", "float"])
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("windows", [(-1, 1), (1, 0), (2, 2), (-1, 2**63 - 1), (2**63 - 1, 2)])
def test_attention_with_a_window_to_the_right(tmp_path, mask, past, windows):
    """Of encoders, which see so many tokens to both sides: by plain arithmetic, since ONNX Runtime has no such windows."""
    q, k, v = random(2, 2, 4, 8), random(2, 2, 4, 8) + 1, random(2, 2, 4, 8) - 1
    feeds, inputs = {"q": q, "k": k, "v": v}, "q k v"
    ahead = np.arange(4 + past) - (past + np.arange(4))[:, None]
    left, right = windows
    bias = np.where((ahead > right) | ((left >= 0) & (-ahead > left)), -np.inf, 0)
    if mask != "none":
        given = random(4, 4 + past) if mask == "float" else (random(4, 4 + past) > -1) | (ahead == 0)
        bias = bias + (given if mask == "float" else np.where(given, 0, -np.inf))
        feeds["m"], inputs = given, "q k v m"
    if past:
        feeds |= {"pk": random(2, 2, past, 8), "pv": random(2, 2, past, 8)}
        inputs = f"{inputs}{' _' if mask == 'none' else ''} pk pv"
        k, v = np.concatenate([feeds["pk"], k], 2), np.concatenate([feeds["pv"], v], 2)
    weights = np.exp(q @ k.swapaxes(2, 3) / np.sqrt(8) + bias)
    y = (weights / weights.sum(-1, keepdims=True) @ v).astype(np.float32)
    nodes = [node("Attention", inputs, "y", left_window_size=left, right_window_size=right)]
    data = tmp_path / "case" / "test_data_set_0"
    data.mkdir(parents=True)
    infos = [helper.make_tensor_value_info(n, TYPES[a.dtype], a.shape) for n, a in feeds.items()]
    graph = helper.make_graph(nodes, "case", infos, [helper.make_tensor_value_info("y", TensorProto.FLOAT, y.shape)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=10), tmp_path / "case" / "model.onnx")
    for kind, arrays in (("input", feeds.values()), ("output", [y])):
        for i, (name, array) in enumerate(zip([*feeds] if kind == "input" else ["y"], arrays)):
            onnx.save_tensor(numpy_helper.from_array(array, name), data / f"{kind}_{i}.pb")
    agrees(tmp_path)

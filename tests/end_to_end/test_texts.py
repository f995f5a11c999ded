"""String tensors, and what converters of scikit-learn write by default: labels that are strings, maps from labels to
probabilities, probabilities of support vector machines. Against ONNX Runtime."""

import subprocess

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from operator_cases import BINARY, CLASSIC, agrees, node, random, write_case
from oracle import open_session

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")

COLOURS = np.array([["red", "gr\u00fcn"], ["", "blue"], ["red", "a b"]], object)
NUMBERS = np.array([[3, -1], [2**53 + 1, 7], [3, 0]])


def texts(*values):
    return np.array(values, object)


def encoders():
    """Nodes, feeds and the opset of ai.onnx.ml."""
    keys = {"strings": ["red", "blue", "red"], "int64s": [7, 3, 7], "floats": [0.5, float("nan"), 0.5]}
    values = {"strings": ["first", "\u00e9", "last"], "int64s": [4, 5, 6], "floats": [0.25, -1.5, 3.0]}
    inputs = {"strings": COLOURS, "int64s": NUMBERS, "floats": np.array([[0.5, np.nan, 2]], np.float32)}
    for kind, x in inputs.items():
        for other, to in values.items():
            for default in ({}, {"default_" + other.rstrip("s"): to[1]}):
                yield node("LabelEncoder", "x", domain=CLASSIC, **{"keys_" + kind: keys[kind], "values_" + other: to}, **default), x, 3
    tensors = {"keys_tensor": texts("red", "blue"), "values_tensor": np.array([1.5, 2]), "default_tensor": np.array([-3.0])}
    yield node("LabelEncoder", "x", domain=CLASSIC, **{n: numpy_helper.from_array(t) for n, t in tensors.items()}), COLOURS, 4
    for x in (COLOURS, NUMBERS):
        yield node("LabelEncoder", "x", domain=CLASSIC, classes_strings=["red", "blue", "", "green"]), x, 1
        yield node("CategoryMapper", "x", domain=CLASSIC, cats_strings=["red", "blue"], cats_int64s=[3, 2**53 + 1]), x, 1
    yield node("OneHotEncoder", "x", domain=CLASSIC, cats_strings=["blue", "red"]), COLOURS, 1
    yield node("OneHotEncoder", "x", domain=CLASSIC, cats_strings=["blue", "red"], zeros=0), texts("red", "blue", "red"), 1
    yield node("OneHotEncoder", "x", domain=CLASSIC, cats_int64s=[7, 3, 2], zeros=0), np.array([[3], [7]]), 1


def test_encoders_of_texts(tmp_path):
    cases = list(encoders())
    for number, (encoder, x, version) in enumerate(cases):
        imports = [helper.make_opsetid("", 17), helper.make_opsetid(CLASSIC, version)]
        write_case(tmp_path / f"case{number}", [encoder], {"x": x}, imports=imports)
    agrees(tmp_path, len(cases), ["dynamic"])


def test_bags_of_words(tmp_path):
    words, numbers = texts("a", "b", "c", "a", "b", "b").reshape(2, 3), np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]])
    pool = {"ngram_counts": [0, 4], "ngram_indexes": [6, 1, 2, 3, 4, 5, 0], "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]}
    cases = [(numbers, dict(min_gram_length=least, max_gram_length=most, max_skip_count=skips, mode=mode, **pool,
                            **({} if mode == "TF" else {"weights": [0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]})))
             for mode in ("TF", "IDF", "TFIDF") for least, most, skips in ((1, 1, 0), (1, 2, 0), (2, 2, 5))]
    for x in (words, words[0]):
        cases.append((x, dict(min_gram_length=1, max_gram_length=2, max_skip_count=0, mode="TF", ngram_counts=[0, 2],
                              ngram_indexes=[2, 0, 1], pool_strings=["a", "b", "a", "b"])))
    for number, (x, attributes) in enumerate(cases):
        names = [["n", "length"][axis - x.ndim] for axis in range(x.ndim)]
        write_case(tmp_path / f"case{number}", [node("TfIdfVectorizer", "x", **attributes)], {"x": x}, sizes={"x": names})
    agrees(tmp_path, len(cases), ["dynamic"])


def test_distances(tmp_path):
    rows, others = random(9, 4) + 3, random(5, 4)
    for metric in ("euclidean", "sqeuclidean"):
        write_case(tmp_path / metric, [node("CDist", "a b", domain="com.microsoft", metric=metric)], {"a": rows, "b": others})
    agrees(tmp_path, 2)


def test_operators_of_texts(tmp_path):
    """Gather takes single texts: of longer pieces ONNX Runtime 1.31 copies the first text only."""
    weights = {"other": texts("red", "blue"), "place": np.array([1, 0]), "sizes": np.array([2, 3])}
    graphs = [[node("Equal", "x other")], [node("Gather", "x place", axis=1)], [node("Concat", "x x", axis=1)], [node("Reshape", "x sizes")],
              [node("Transpose", "x")], [node("Equal", "x other", "e"), node("Where", "e x other")], [node("Identity", "x")],
              [node("Constant", "", "two", value_strings=["", "blue"]), node("Equal", "x two")],
              [node("Gather", "x place", "g", axis=1), node("Cast", "g", to=TensorProto.STRING)]]
    for number, nodes in enumerate(graphs):
        write_case(tmp_path / f"case{number}", nodes, {"x": COLOURS}, weights, opset=19)
    agrees(tmp_path, len(graphs), ["dynamic"])


def test_casts_of_texts(tmp_path):
    reals = np.array([0.1, -2.5e-7, 1e20, np.inf, -np.inf, np.nan, 3], np.float32)
    cases = [(x, TensorProto.STRING) for x in (reals, reals.astype(np.float64), NUMBERS, NUMBERS.astype(np.uint8))]
    cases += [(texts("1.5", "-3e4", "NaN", "INF"), t) for t in (TensorProto.FLOAT, TensorProto.DOUBLE)]
    cases += [(texts("15", "-3", "9007199254740993"), TensorProto.INT64)]
    for number, (x, to) in enumerate(cases):
        write_case(tmp_path / f"case{number}", [node("Cast", "x", to=to)], {"x": x})
    agrees(tmp_path, len(cases), ["dynamic"])


def machine(classes, transform="NONE"):
    """A support vector machine with probabilities."""
    draw = np.random.default_rng(classes)
    pairs, vectors = classes * (classes - 1) // 2, 2 * classes
    reals = {"support_vectors": vectors * 3, "coefficients": vectors * (classes - 1), "rho": pairs, "prob_a": pairs, "prob_b": pairs}
    lists = {name: [float(np.float32(v)) for v in draw.standard_normal(count)] for name, count in reals.items()}
    return node("SVMClassifier", "x", "y z", CLASSIC, kernel_type="RBF", kernel_params=[0.3, 0.0, 3.0], vectors_per_class=[2] * classes,
                classlabels_strings=[f"class {i}" for i in range(classes)], post_transform=transform, **lists)


def test_classes_that_are_texts(tmp_path):
    linear = {"coefficients": [float(v) for v in random(9).ravel()], "intercepts": [0.1, -0.2, 0.3]}
    nodes = [node("LinearClassifier", "x", "y z", CLASSIC, classlabels_strings=["a", "b", "\u00e7"], multi_class=1, **linear),
             node("LinearClassifier", "x", "y z", CLASSIC, classlabels_strings=["no", "yes"], coefficients=[1.0, -1.0, 0.5], intercepts=[0.1]),
             *(machine(classes) for classes in (2, 3, 5))]
    for number, one in enumerate(nodes):
        write_case(tmp_path / f"case{number}", [one], {"x": random(40, 3, scale=2)}, outputs=("y", "z"), opset=15, atol=1e-5)
    agrees(tmp_path, len(nodes), ["dynamic"])


@pytest.mark.parametrize("labels", [{"classlabels_strings": ["no", "yes", "\u00e9"]}, {"classlabels_int64s": [7, -1, 3]}])
def test_a_map_is_scores_and_their_labels(tmp_path, labels):
    """As skl2onnx writes a classifier by default."""
    zipped = helper.make_sequence_type_proto(helper.make_map_type_proto(
        TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])))
    outputs = [helper.make_empty_tensor_value_info("label"), helper.make_value_info("probability", zipped)]
    outputs[0].type.tensor_type.elem_type = TensorProto.STRING
    graph = helper.make_graph(
        [node("LabelEncoder", "colour", "number", CLASSIC, keys_strings=["red", "gr\u00fcn"], values_floats=[1.0, -2.0]),
         node("LinearClassifier", "number", "chosen z", CLASSIC, classlabels_ints=[0, 1, 2], post_transform="SOFTMAX", multi_class=1,
              coefficients=[0.5, -1.0, 2.0], intercepts=[0.0, 1.0, 0.5]),
         node("LabelEncoder", "chosen", "label", CLASSIC, keys_int64s=[0, 1, 2], values_strings=["x", "\u00e9", "zz"]),
         node("ZipMap", "z", "probability", CLASSIC, **labels)],
        "zipped", [helper.make_tensor_value_info("colour", TensorProto.STRING, ["n", 1])], outputs)
    imports = [helper.make_opsetid("", 15), helper.make_opsetid(CLASSIC, 3)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    (tmp_path / "model.onnx").write_bytes(model)
    x = np.array([["red"], ["gr\u00fcn"], ["else"]])
    np.save(tmp_path / "x.npy", x)
    run = subprocess.run([BINARY, tmp_path / "model.onnx", "--input", f"colour={tmp_path}/x.npy", "--output-dir", tmp_path / "out"],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    kind = "string" if "classlabels_strings" in labels else "i64"
    assert run.stdout.splitlines() == ["label string[3]", "probability f32[3, 3]", f"probability.labels {kind}[3]"]
    label, maps = open_session(model).run(None, {"colour": x.astype(object)})
    actual = {name: np.load(tmp_path / "out" / f"{name}.npy") for name in ("label", "probability", "probability.labels")}
    assert actual["label"].tolist() == label.tolist()
    for row, expected in zip(actual["probability"], maps, strict=True):
        assert dict(zip(actual["probability.labels"].tolist(), row, strict=True)) == pytest.approx(expected)


def test_a_category_that_is_not_known_is_an_error_where_the_file_says_so(tmp_path):
    known = node("OneHotEncoder", "x", domain=CLASSIC, cats_strings=["a", "b"], zeros=0)
    write_case(tmp_path / "case", [known], {"x": texts("a")}, sizes={"x": ["n"]}, opset=15)
    np.save(tmp_path / "x.npy", np.array(["a", "c"]))
    run = subprocess.run([BINARY, tmp_path / "case" / "model.onnx", "--input", f"x={tmp_path}/x.npy"], capture_output=True, text=True,
                         timeout=60)
    assert run.returncode != 0 and "out of range" in run.stderr, run.stdout + run.stderr

"""What files do to rows, keys and tokens in ways that exporters seldom write: batched, with ONNX Runtime's tokens."""

import subprocess

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ark_server import BIN
from test_mask_forms import DIM, PROMPTS, VOCAB, by_ark, by_onnx_runtime, write

pytestmark = pytest.mark.skipif(not (BIN / "ark-run").exists(), reason="no ark-run (scripts/build.sh makes it)")


class Change:
    """A decoder whose nodes are replaced one by one."""

    def __init__(self, path):
        self.path = path
        write(path, "none", "int64", "own")
        self.model = onnx.load(path)
        self.added = []

    def stored(self, array):
        name = f"stored_{len(self.model.graph.initializer)}"
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op, *inputs, out=None, **attributes):
        self.added.append(helper.make_node(op, inputs, [out or f"added_{len(self.added)}"], **attributes))
        return self.added[-1].output[0]

    def save(self, fits, replace):
        """`replace` adds what stands for a node, and gives the names of its outputs to it."""
        nodes, found = list(self.model.graph.node), 0
        for node in nodes:
            if fits(node):
                replace(node)
                found += 1
            else:
                self.added.append(node)
        assert found
        del self.model.graph.node[:]
        self.model.graph.node.extend(self.added)
        onnx.save(self.model, self.path)


def is_batched(path):
    card = subprocess.run([BIN / "ark-inspect", path], capture_output=True, text=True, timeout=60).stdout
    return "batched" in card, card


def check(path):
    expected = [by_onnx_runtime(path, "none", "int64", prompt) for prompt in PROMPTS]
    assert len({token for tokens in expected for token in tokens}) > 5  # else much that is wrong would look right
    batched, card = is_batched(path)
    assert batched, card
    assert [by_ark(path, prompt) for prompt in PROMPTS] == expected


def test_tokens_that_count_from_the_end_of_a_table(tmp_path):
    change = Change(tmp_path / "model.onnx")

    def from_the_end(node):
        behind = change.add("Sub", node.input[1], change.stored(np.int64(VOCAB)))
        change.add("Gather", node.input[0], behind, out=node.output[0])

    change.save(lambda n: n.op_type == "Gather" and n.input[1] == "input_ids", from_the_end)
    check(change.path)


def test_rows_written_into_zeros_by_slices(tmp_path):
    """As torch.export writes `rotated[..., :half] = left; rotated[..., half:] = right`."""
    change = Change(tmp_path / "model.onnx")
    half = DIM // 2

    def by_slices(node):
        sizes = change.add("Concat", change.add("Shape", node.input[0], end=3), change.stored(np.array([DIM])), axis=0)
        rows = change.add("Transpose", change.add("ConstantOfShape", sizes), perm=[3, 1, 2, 0])
        for begin, part in zip((0, half), node.input):
            places = change.stored(np.arange(begin, begin + half)[:, None])
            rows = change.add("ScatterND", rows, places, change.add("Transpose", part, perm=[3, 1, 2, 0]))
        change.add("Transpose", rows, out=node.output[0], perm=[3, 1, 2, 0])

    change.save(lambda n: n.op_type == "Concat" and n.attribute[0].i == -1, by_slices)
    check(change.path)


@pytest.mark.parametrize("how", ["any", "all", "chosen"])
def test_queries_that_see_nothing_are_given_zeros(tmp_path, how):
    """torch's safe softmax, as decompositions of torch.export spell it: no query of a causal mask is one."""
    change = Change(tmp_path / "model.onnx")
    for node in change.model.graph.node:  # what hides is -inf
        value = numpy_helper.to_array(node.attribute[0].t) if node.op_type == "Constant" else np.zeros(1)
        if value.size == 1 and value < -1e8:
            node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.float32(-np.inf)))
    zero, least = change.stored(np.float32(0)), change.stored(np.float32(-np.inf))

    def safe(node):
        scores = node.input[0]
        hidden = change.add("Equal", scores, least)
        weights = change.add("Softmax", scores, axis=-1)
        if how == "all":
            hidden = change.add("Cast", hidden, to=onnx.TensorProto.INT32)
            none = change.add("Cast", change.add("ReduceMin", hidden, axes=[-1]), to=onnx.TensorProto.BOOL)
        else:
            seen = change.add("Cast", change.add("Not", hidden), to=onnx.TensorProto.INT64)
            some = change.add("Cast", change.add("ReduceMax", seen, axes=[-1]), to=onnx.TensorProto.BOOL)
            none = change.add("Not", some)
        chosen = (some, weights, zero) if how == "chosen" else (none, zero, weights)
        change.add("Where", *chosen, out=node.output[0])

    change.save(lambda n: n.op_type == "Softmax", safe)
    check(change.path)


def test_scores_that_another_mask_hides_are_served_plain(tmp_path):
    """Whether a query sees keys is told by other scores than those it weighs: no proof holds for these."""
    change = Change(tmp_path / "model.onnx")
    zero, most = change.stored(np.float32(0)), change.stored(np.float32(-1))

    def unsafe(node):
        hidden = change.add("Cast", change.add("Less", node.input[0], most), to=onnx.TensorProto.INT32)
        none = change.add("Cast", change.add("ReduceMin", hidden, axes=[-1]), to=onnx.TensorProto.BOOL)
        change.add("Where", none, zero, change.add("Softmax", node.input[0], axis=-1), out=node.output[0])

    change.save(lambda n: n.op_type == "Softmax", unsafe)
    batched, card = is_batched(change.path)
    assert not batched, card
    assert [by_ark(change.path, p) for p in PROMPTS] == [by_onnx_runtime(change.path, "none", "int64", p) for p in PROMPTS]


def test_weights_repeated_for_the_batch(tmp_path):
    """`bmm` of rows with an expanded weight is the product with the weight."""
    change = Change(tmp_path / "model.onnx")
    weights = {w.name for w in change.model.graph.initializer if len(w.dims) == 2}
    ends = [change.stored(np.array([n])) for n in (0, 1)]

    def repeated(node):
        rows = change.add("Slice", change.add("Shape", node.input[0]), *ends)
        sizes = next(list(w.dims) for w in change.model.graph.initializer if w.name == node.input[1])
        shape = change.add("Concat", rows, change.stored(np.array(sizes)), axis=0)
        change.add("MatMul", node.input[0], change.add("Expand", node.input[1], shape), out=node.output[0])

    change.save(lambda n: n.op_type == "MatMul" and n.input[1] in weights, repeated)
    check(change.path)


def test_values_times_weights_that_are_both_turned(tmp_path):
    """As Apple's and Qualcomm's forms have them: features in front of tokens."""
    change = Change(tmp_path / "model.onnx")
    weights = {n.output[0] for n in change.model.graph.node if n.op_type == "Softmax"}

    def turned(node):
        values, shares = (change.add("Transpose", node.input[i], perm=[0, 1, 3, 2]) for i in (1, 0))
        change.add("Transpose", change.add("MatMul", values, shares), out=node.output[0], perm=[0, 1, 3, 2])

    change.save(lambda n: n.op_type == "MatMul" and n.input[0] in weights, turned)
    check(change.path)


@pytest.mark.parametrize("axes", [1, 2])
def test_linear_layers_as_convolutions_of_one_place(tmp_path, axes):
    change = Change(tmp_path / "model.onnx")
    weights = {w.name: numpy_helper.to_array(w) for w in change.model.graph.initializer if len(w.dims) == 2}

    def convolved(node):
        kernel = weights[node.input[1]].T.reshape(*weights[node.input[1]].T.shape, *[1] * axes)
        bias = change.stored(np.linspace(-1, 1, kernel.shape[0], dtype=np.float32))
        rows = change.add("Transpose", node.input[0], perm=[0, 2, 1])
        if axes == 2:
            two = change.stored(np.array([2]))
            rows = change.add("Squeeze", change.add("Conv", change.add("Unsqueeze", rows, two), change.stored(kernel), bias), two)
        else:
            rows = change.add("Conv", rows, change.stored(kernel), bias)
        change.add("Transpose", rows, out=node.output[0], perm=[0, 2, 1])

    change.save(lambda n: n.op_type == "MatMul" and n.input[1] in weights, convolved)
    check(change.path)

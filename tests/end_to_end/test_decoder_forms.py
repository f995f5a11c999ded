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
        self.added.append(helper.make_node(op, inputs, [out or f"added_{id(self)}_{len(self.added)}"], **attributes))
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

"""Decoders whose weights a file stores quantized in less usual ways: recognised, and the same numbers as ONNX Runtime's."""

import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
from ml_dtypes import float8_e4m3fn as f8
from onnx import helper, numpy_helper
from onnxruntime.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer

from ark_server import BIN
from llama_random import write
from oracle import open_session
from presets import preset

BINARY = BIN / "ark-run"

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")

HIDDEN, IDS = 64, np.array([[5, 17, 3, 42, 9]])


def by_onnx_runtime(path):
    """Logits of IDS, and what was fed."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = open_session(str(path), options)
    feeds = {}
    for i in session.get_inputs():
        empty = [d if isinstance(d, int) else {"kv_cache_dim": 16}.get(d, int("batch" in d)) for d in i.shape]
        feeds[i.name] = {"input_ids": IDS, "attention_mask": np.ones_like(IDS),
                         "position_ids": np.arange(5)[None]}.get(i.name, np.zeros(empty, np.float32))
    return session.run(["logits"], feeds)[0], feeds


def by_ark(path, feeds, *options, refused=False):
    """The same logits, or what is said against it."""
    command = [BINARY, path, "--output-dir", path.parent, *options]
    for name, array in feeds.items():
        np.save(path.parent / f"in_{name}.npy", array)
        command += ["--input", f"{name}={path.parent / f'in_{name}.npy'}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert refused == (run.returncode != 0), run.stderr
    return run.stderr if refused else np.load(path.parent / "logits.npy")


def agree(got, want, bound=1e-4):
    np.testing.assert_allclose(got, want, rtol=0, atol=bound * np.abs(want).max())


class Decoder:
    """A zoo decoder whose graph is changed; new nodes come first, as they read constants only."""

    def __init__(self, folder, name, **sizes):
        self.path = folder / "model.onnx"
        sizes = {"layers": 2, "hidden": HIDDEN, "heads": 4, "intermediate": 96, "vocab": 100, "opset": 21} | sizes
        write(preset(name, **sizes), self.path)
        self.model = onnx.load(self.path)
        self.graph, self.new = self.model.graph, []
        self.weights = {i.name: numpy_helper.to_array(i) for i in self.graph.initializer}
        self.random = np.random.default_rng(1)

    def constant(self, array):
        name = f"new_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, op, *inputs, domain="", **attributes):
        inputs = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        name = f"made_{len(self.new)}"
        self.new.append(helper.make_node(op, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def products(self):
        """Nodes that multiply with a matrix of the file."""
        return [n for n in self.graph.node if n.op_type == "MatMul" and n.input[1] in self.weights]

    def replace(self, old, new):
        for node in self.graph.node:
            for i, name in enumerate(node.input):
                if name == old:
                    node.input[i] = new

    def codes(self, w, scales):
        return np.clip(np.round(w / scales), -128, 127).astype(np.int8)

    def per_column(self, w):
        scales = (np.abs(w).max(0) / 127).astype(np.float32)
        return self.add("DequantizeLinear", self.codes(w, scales), scales, axis=1)

    def save(self):
        nodes = self.new + list(self.graph.node)
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        if "com.microsoft" not in {o.domain for o in self.model.opset_import}:
            self.model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        self.model.ir_version = 10
        onnx.save(self.model, self.path)

    def agrees(self, refusal=""):
        """As the decoder that it is recognised as; if that is refused with those words, as the plain graph."""
        self.save()
        want, feeds = by_onnx_runtime(self.path)
        if refusal:
            assert refusal in by_ark(self.path, feeds, "--driver", "decoder", refused=True)
        agree(by_ark(self.path, feeds, "--driver", "dynamic" if refusal else "decoder"), want)


def inspected(*arguments):
    run = subprocess.run([BINARY.with_name("ark-inspect"), *arguments], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture
def llama(tmp_path):
    return Decoder(tmp_path, "llama", kv_heads=4, tied=False)


@pytest.fixture
def gpt2(tmp_path):
    return Decoder(tmp_path, "gpt2")


@pytest.mark.parametrize("parts", ["slices", "transposed"])
def test_two_matrices_of_the_same_codes(llama, parts):
    """They differ by what they read of one tensor of scales."""
    n, square = HIDDEN, [p.input[1] for p in llama.products() if llama.weights[p.input[1]].shape == (HIDDEN, HIDDEN)]
    codes = llama.constant(llama.random.integers(-128, 128, (n, n), np.int8))
    scales = llama.constant(llama.random.uniform(1e-4, 2e-3, (n * (1 + (parts == "slices")), n)).astype(np.float32))
    cut = lambda first: llama.add("Slice", scales, np.array([first]), np.array([first + n]), np.array([0]))
    views = [cut(0), cut(n)] if parts == "slices" else [scales, llama.add("Transpose", scales, perm=[1, 0])]
    for old, view in zip(square, views):
        llama.replace(old, llama.add("DequantizeLinear", codes, view, axis=0, block_size=1))
    llama.agrees()


def test_a_look_up_in_a_product(gpt2):
    """The table is what MatMulNBits makes, not what it multiplies with."""
    table = "model.embed_positions.weight"
    n = gpt2.weights[table].shape[1]
    codes = gpt2.random.integers(0, 256, (n, n // 32, 16), np.uint8)
    made = gpt2.add("MatMulNBits", gpt2.weights[table], codes, np.full((n, n // 32), 0.02, np.float32),
                    domain="com.microsoft", K=n, N=n, bits=4, block_size=32)
    gpt2.replace(table, made)
    gpt2.agrees(refusal="operator MatMulNBits in a mask or in positions is not understood")


@pytest.mark.parametrize("kind", [np.int32, np.int8])
def test_biases_and_norms_of_integers(gpt2, kind):
    for name, array in gpt2.weights.items():
        if array.ndim == 1 and ("bias" in name or kind == np.int8):
            scale = np.float32(np.abs(array).max() / 127 if kind == np.int8 else 1e-6)
            gpt2.replace(name, gpt2.add("DequantizeLinear", np.round(array / scale).astype(kind), scale))
    gpt2.agrees()


def test_one_scale_and_one_zero_point_of_other_ranks(llama):
    for node in llama.products():
        w = llama.weights[node.input[1]]
        scale = np.float32(np.abs(w).max() / 127)
        codes = (llama.codes(w, scale).astype(int) + 128).astype(np.uint8)
        llama.replace(node.input[1], llama.add("DequantizeLinear", codes, scale.reshape(1), np.array(128, np.uint8)))
    llama.agrees()


@pytest.mark.parametrize("kind", ["FP4", "NF4"])
@pytest.mark.parametrize("block", [16, 64])  # rows of 96 are 6 blocks, or cut blocks in the middle
def test_bitsandbytes_weights(llama, kind, block):
    quantizer = MatMulBnb4Quantizer(llama.model, getattr(MatMulBnb4Quantizer, kind), block)
    quantizer.process()
    assert sum(n.op_type == "MatMulBnb4" for n in llama.graph.node) == 2 * 7 + 1
    llama.agrees()
    stored = inspected(llama.path, "--stage", "weights").count(f"\n  {kind.lower()} [")
    assert stored == 2 * 7 + 1 if block == 16 else 0 < stored < 2 * 7 + 1  # cut blocks become numbers


F8 = {  # fp8_e4m3 weights, the ways they are written
    "cast": lambda d, w: d.add("Cast", w.astype(f8), to=onnx.TensorProto.FLOAT),
    "cast-twice": lambda d, w: d.add("Cast", d.add("Cast", w.astype(f8), to=onnx.TensorProto.FLOAT16),
                                     to=onnx.TensorProto.FLOAT),
    "scale": lambda d, w: d.add("DequantizeLinear", (w * 8).astype(f8), np.array(0.125, np.float32)),
    "zero-point": lambda d, w: d.add("DequantizeLinear", (w * 8).astype(f8), np.array(0.125, np.float32),
                                     np.array(0, f8)),
    "columns": lambda d, w: d.add("DequantizeLinear", (w * 64).astype(f8),
                                  (d.random.uniform(0.5, 2, w.shape[1]) / 64).astype(np.float32), axis=1),
    "turned": lambda d, w: d.add("Transpose", d.add("DequantizeLinear", (w.T * 64).astype(f8),
                                 (d.random.uniform(0.5, 2, w.shape[1]) / 64).astype(np.float32), axis=0), perm=[1, 0]),
    "blocks": lambda d, w: d.add("DequantizeLinear", (w * 64).astype(f8),
                                 (d.random.uniform(0.5, 2, (w.shape[0] // 16, w.shape[1])) / 64).astype(np.float32),
                                 axis=0, block_size=16),
}


@pytest.mark.parametrize("way", F8)
def test_fp8_weights(tmp_path, way):
    """Of more than the 65,536 elements up to which weights are widened at load: they stay as they are."""
    large = Decoder(tmp_path, "llama", kv_heads=4, tied=False, layers=1, hidden=320, intermediate=320, vocab=256)
    products = large.products()
    for node in products:
        large.replace(node.input[1], F8[way](large, large.weights[node.input[1]]))
    large.agrees()
    assert inspected(large.path, "--stage", "weights").count("\n  f8e4m3 [") == len(products)


def test_fp8_tables_are_looked_up_as_they_are_stored(tmp_path):
    large = Decoder(tmp_path, "llama", kv_heads=4, tied=False, layers=1, hidden=320, intermediate=320, vocab=256)
    table = next(n.input[0] for n in large.graph.node if n.op_type == "Gather" and n.input[0] in large.weights
                 and large.weights[n.input[0]].shape == (256, 320))
    large.replace(table, F8["cast"](large, large.weights[table]))
    large.agrees()


def test_activations_rounded_to_fp8_are_no_decoders(llama):
    """The plain graph rounds as the file says; a decoder's reals would stay f32."""
    at, look_up = next((i, n) for i, n in enumerate(llama.graph.node) if n.op_type == "Gather" and
                       n.input[0] in llama.weights and llama.weights[n.input[0]].shape[1:] == (HIDDEN,))
    rows = look_up.output[0]
    llama.replace(rows, "rounded_rows")
    llama.graph.node.insert(at + 1, helper.make_node("Cast", [rows], ["rows_f8"], to=onnx.TensorProto.FLOAT8E4M3FN))
    llama.graph.node.insert(at + 2, helper.make_node("Cast", ["rows_f8"], ["rounded_rows"], to=onnx.TensorProto.FLOAT))
    llama.agrees(refusal="rounds what is computed to f8e4m3")


BETWEEN = {
    "Unsqueeze": lambda d, w: d.add("Unsqueeze", d.per_column(w), np.array([0])),
    "Concat": lambda d, w: d.add("Concat", d.per_column(w[:, :40]), d.per_column(w[:, 40:]), axis=1),
    "Mul": lambda d, w: d.add("Mul", d.per_column(w), np.array(0.5, np.float32)),
    "Reshape": lambda d, w: d.add("Reshape", d.add("DequantizeLinear", d.codes(w, np.float32(0.01)).reshape(2, -1, 8),
                                                   np.float32(0.01)), np.array(w.shape)),
}


@pytest.mark.parametrize("op", BETWEEN)
def test_what_stands_between_a_matrix_and_its_product(llama, op):
    for node in llama.products():
        llama.replace(node.input[1], BETWEEN[op](llama, llama.weights[node.input[1]]))
    llama.agrees()


def test_large_weights_are_no_masks(llama):
    """They are not evaluated to learn where the file's tables end: 60 million elements, by one tensor of codes."""
    n, count = 1000, 60
    codes = llama.constant(llama.random.integers(-128, 128, (n, n), np.int8))
    last = next(node for node in llama.graph.node if "logits" in node.output)
    last.output[0] = x = "before_0"
    for i in range(count):
        w = llama.add("DequantizeLinear", codes, np.array(1e-3 + 1e-5 * i, np.float32))
        w = llama.add("Slice", w, *(np.array([v]) for v in (0, 100, 0))) if i == 0 else w
        w = llama.add("Slice", w, *(np.array([v]) for v in (0, 100, 1))) if i == count - 1 else w
        y = "logits" if i == count - 1 else f"before_{i + 1}"
        llama.graph.node.append(helper.make_node("MatMul", [x, w], [y]))
        x = y
    llama.save()
    run = subprocess.run([BINARY.with_name("ark-inspect"), llama.path, "--stage", "recognise"], capture_output=True,
                         text=True, timeout=300)
    assert f"{count} weights of 8 bits" in run.stdout, run.stdout[:1000] + run.stderr


def test_scales_that_are_quantized(llama):
    for node in llama.products():
        w = llama.weights[node.input[1]]
        scales = np.abs(w.reshape(-1, 16, w.shape[1])).max(1) / 100
        unit = np.float32(scales.max() / 127)
        stored = np.maximum(np.round(scales / unit), 1).astype(np.int8)
        codes = llama.codes(w, np.repeat(stored * unit, 16, axis=0))
        llama.replace(node.input[1], llama.add("DequantizeLinear", codes, llama.add("DequantizeLinear", stored, unit),
                                               axis=0, block_size=16))
    llama.agrees()


def test_a_large_matrix_is_not_unpacked_for_what_stands_between(tmp_path):
    large = Decoder(tmp_path, "llama", kv_heads=4, tied=False, layers=1, vocab=66000)  # x 64 = 4.2 million
    head = large.products()[-1].input[1]
    large.replace(head, BETWEEN["Mul"](large, large.weights[head]))
    large.agrees(refusal="dequantizes 4224000 elements for made_1 (Mul), where a product or a look-up would read them as "
                         "they are stored; at most 4000000 are unpacked")

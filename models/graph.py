"""Builds ONNX graphs the way torch's exporters write them: scoped node names, sizes fetched with
Shape -> Gather -> Concat, constants as Constant nodes, weights as initializers that are made only
when the file is written, so that a model larger than memory can be generated."""

import contextlib
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import quantized

DTYPES = {
    "f32": (TensorProto.FLOAT, np.dtype(np.float32)),
    "f16": (TensorProto.FLOAT16, np.dtype(np.float16)),
    "bf16": (TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
    "f8e4m3": (TensorProto.FLOAT8E4M3FN, np.dtype(ml_dtypes.float8_e4m3fn)),
}
TO_END = 2**63 - 1
EXTERNAL_ABOVE = 1 << 30  # bytes of weights; protobuf ends at 2 GiB
ALIGNMENT = 4096  # of weights in the external file, so that each can be mapped


class Weight:
    """One initializer: its type and shape now, its values when the file is written."""

    def __init__(self, name, elem_type, dtype, shape, make):
        self.name, self.elem_type, self.dtype, self.shape, self.make = name, elem_type, dtype, tuple(shape), make

    def nbytes(self):
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def data(self):
        array = np.asarray(self.make())
        if array.shape != self.shape and self.elem_type != TensorProto.UINT4:  # two elements a byte
            raise ValueError(f"weight {self.name} has shape {array.shape}, the graph needs {self.shape}")
        return np.ascontiguousarray(array.astype(self.dtype, copy=False)).tobytes()

    def proto(self):
        return TensorProto(name=self.name, data_type=self.elem_type, dims=self.shape)


class Graph:
    """Values are their names. Calling the graph adds a node: `y = g("Add", a, b)`."""

    def __init__(self, opset=18, dtype="f32", stored="dtype"):
        self.opset = opset
        self.float_type, self.float_dtype = DTYPES[dtype]
        self.quantized = stored if stored in quantized.STYLES else None
        self.stored = DTYPES[dtype if stored == "dtype" or self.quantized else stored]
        self.nodes, self.inputs, self.outputs, self.weights = [], [], [], {}
        self._scopes, self._counts = [], {}

    @contextlib.contextmanager
    def scope(self, name):
        self._scopes.append(name)
        yield
        self._scopes.pop()

    def __call__(self, op, *inputs, out=None, outputs=1, **attributes):
        path = "/" + "/".join([*self._scopes, op])
        count = self._counts.get(path, 0)
        self._counts[path] = count + 1
        name = f"{path}_{count}" if count else path
        names = [out] if out else [f"{name}_output_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=name, **attributes))
        return names[0] if len(names) == 1 else names

    def input(self, name, elem_type, shape):
        self.inputs.append(helper.make_tensor_value_info(name, elem_type, shape))
        return name

    def output(self, name, elem_type, shape):
        self.outputs.append(helper.make_tensor_value_info(name, elem_type, shape))

    def add(self, name, elem_type, dtype, shape, make):
        """An initializer as it is stored; asking again for a name gives the same one."""
        self.weights.setdefault(name, Weight(name, elem_type, np.dtype(dtype), shape, make))
        return name

    def weight(self, name, shape, make, along=0):
        """An initializer as the model's float type; asking again for a name gives the same one. `along`: the axis of
        a matrix that products sum over."""
        if self.quantized and len(shape) == 2:
            return quantized.dequantized(self, name, shape, make, along)
        self.weights.setdefault(name, Weight(name, *self.stored, shape, make))
        return name if self.stored[0] == self.float_type else self.cast(name, self.float_type)

    def const(self, value, dtype=np.int64):
        return self("Constant", value=numpy_helper.from_array(np.array(value, dtype=dtype)))

    def fconst(self, value):
        """A constant of the model's float type."""
        array = np.asarray(value, dtype=self.float_dtype)
        tensor = TensorProto(data_type=self.float_type, dims=array.shape, raw_data=array.tobytes())
        return self("Constant", value=tensor)

    # Frequent idioms.

    def cast(self, x, elem_type):
        return self("Cast", x, to=elem_type)

    def unsqueeze(self, x, *axes):
        for axis in axes:
            x = self("Unsqueeze", x, self.const([axis]))
        return x

    def transpose(self, x, *perm):
        return self("Transpose", x, perm=list(perm))

    def slice(self, x, axis, start, end, step=1):
        """start and end are numbers or names of 1-element tensors."""
        bound = lambda v: v if isinstance(v, str) else self.const([v])
        return self("Slice", x, bound(start), bound(end), self.const([axis]), self.const([step]))

    def reduce(self, op, x, axis):
        if self.opset >= 18:
            return self(op, x, self.const([axis]), keepdims=1)
        return self(op, x, axes=[axis], keepdims=1)

    def split(self, x, sizes, axis=-1):
        return self("Split", x, self.const(sizes), axis=axis, outputs=len(sizes))

    def size(self, x, axis):
        """The scalar size of one axis of x."""
        return self("Gather", self("Shape", x), self.const(axis), axis=0)

    def sizes(self, *items):
        """A shape tensor out of numbers and scalar names."""
        parts = [self.unsqueeze(i, 0) if isinstance(i, str) else self.const([i]) for i in items]
        return self("Concat", *parts, axis=0)

    def reshape(self, x, *items):
        return self("Reshape", x, self.sizes(*items))

    def expand(self, x, *items):
        """torch's expand, where -1 keeps an axis: the exporter replaces -1 by 1 at run time."""
        target = self("Reshape", self.sizes(*items), self.const([-1]))
        one = numpy_helper.from_array(np.array([1], dtype=np.int64))
        ones = self("ConstantOfShape", self("Shape", target), value=one)
        kept = self("Equal", target, self("Mul", ones, self.const(-1)))
        return self("Expand", x, self("Where", kept, ones, target))

    # Writing.

    def save(self, path, external_above=EXTERNAL_ABOVE):
        """Writes atomically; weights go to `path.data` when they are many."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if sum(w.nbytes() for w in self.weights.values()) > external_above:
            tensors = self._write_external(path.with_name(path.name + ".data"))
        else:
            tensors = [w.proto() for w in self.weights.values()]
            for tensor, weight in zip(tensors, self.weights.values()):
                tensor.raw_data = weight.data()
        graph = helper.make_graph(self.nodes, "main_graph", self.inputs, self.outputs, tensors)
        opsets = [helper.make_opsetid("", self.opset)]
        ir_version = helper.find_min_ir_version_for(opsets)
        if any(node.domain for node in self.nodes):
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        model = helper.make_model(graph, producer_name="pytorch", opset_imports=opsets, ir_version=ir_version)
        with replacing(path) as temporary:
            temporary.write_bytes(model.SerializeToString())

    def _write_external(self, path):
        tensors, offset = [], 0
        with replacing(path) as temporary, open(temporary, "wb") as file:
            for weight in self.weights.values():
                data = weight.data()
                file.write(b"\0" * (-offset % ALIGNMENT))
                offset += -offset % ALIGNMENT
                tensor = weight.proto()
                tensor.data_location = TensorProto.EXTERNAL
                for key, value in (("location", path.name), ("offset", offset), ("length", len(data))):
                    tensor.external_data.add(key=key, value=str(value))
                file.write(data)
                offset += len(data)
                tensors.append(tensor)
        return tensors


@contextlib.contextmanager
def replacing(path):
    """Yields a temporary path beside `path`, which replaces it if the block succeeds."""
    temporary = Path(path).with_name(f".{Path(path).name}.{os.getpid()}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path):
    """The model's structure, without external data."""
    return onnx.load(str(path), load_external_data=False)

"""Weights stored as codes, the ways exporters write them: DequantizeLinear in front of what reads them (int8 or fp8 for
each channel, uint4 in blocks) or behind a look-up (uint8-rows: one scale a tensor), or ONNX Runtime's MatMulNBits and GatherBlockQuantized (4 bits in blocks)."""

import ml_dtypes
import numpy as np
from onnx import TensorProto

BLOCK = 16  # the smallest that ONNX Runtime takes
STYLES = ("int8", "f8e4m3-scaled", "uint8-rows", "uint4", "nbits")


def blocks_of(size):
    return -(-size // BLOCK)


def quantize(array, bits):
    """Codes [rows, columns], scales and zeros [rows, blocks] of a matrix in blocks along its rows; asymmetric."""
    rows, columns = array.shape
    padded = np.zeros((rows, blocks_of(columns) * BLOCK), np.float32)
    padded[:, :columns] = array
    parts = padded.reshape(rows, -1, BLOCK)
    low, high = np.minimum(parts.min(2), 0), np.maximum(parts.max(2), 0)
    most = 2**bits - 1
    scales = np.maximum((high - low) / most, 1e-6).astype(np.float32)
    zeros = np.clip(np.round(-low / scales), 0, most)
    codes = np.clip(np.round(parts / scales[:, :, None]) + zeros[:, :, None], 0, most)
    return codes.reshape(rows, -1)[:, :columns].astype(np.uint8), scales, zeros.astype(np.uint8)


def packed(codes, width):
    """Two codes a byte, the first in the low bits; rows are filled with zeros up to `width` codes."""
    rows = np.zeros((len(codes), width), np.uint8)
    rows[:, :codes.shape[1]] = codes
    return rows[:, 0::2] | rows[:, 1::2] << 4


def dequantized(graph, name, shape, make, along):
    """The matrix as the graph's float type; blocks lie along axis `along`, the one that products sum over."""
    y = _dequantized(graph, name, shape, make, along)
    return y if graph.float_type == TensorProto.FLOAT else graph.cast(y, graph.float_type)


def _dequantized(graph, name, shape, make, along):
    if graph.quantized in ("int8", "uint8-rows"):
        scale = lambda: np.abs(make()).max(along) / 127
        codes = lambda: np.round(make() / np.expand_dims(scale(), along)).astype(np.int8)
        x = graph.add(name + "_quantized", TensorProto.INT8, np.int8, shape, codes)
        scales = graph.add(name + "_scale", TensorProto.FLOAT, np.float32, (shape[1 - along],), scale)
        return graph("DequantizeLinear", x, scales, axis=1 - along)
    if graph.quantized == "f8e4m3-scaled":
        scale = lambda: np.abs(make()).max(along) / 448
        codes = lambda: (make() / np.expand_dims(scale(), along)).astype(np.float32)
        x = graph.add(name + "_f8", TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn, shape, codes)
        scales = graph.add(name + "_scale", TensorProto.FLOAT, np.float32, (shape[1 - along],), scale)
        return graph("DequantizeLinear", x, scales, axis=1 - along)
    turned = (lambda a: a) if along == 1 else (lambda a: a.T)
    parts = lambda i: turned(quantize(turned(np.asarray(make())), 4)[i])
    places = tuple(blocks_of(n) if axis == along else n for axis, n in enumerate(shape))
    flat = lambda i: packed(parts(i).reshape(1, -1), -(-parts(i).size // 2) * 2)[0]
    x = graph.add(name + "_DQ_Q4", TensorProto.UINT4, np.uint8, shape, lambda: flat(0))
    scales = graph.add(name + "_DQ_scales", TensorProto.FLOAT, np.float32, places, lambda: parts(1))
    zeros = graph.add(name + "_DQ_zero_points", TensorProto.UINT4, np.uint8, places, lambda: flat(2))
    return graph("DequantizeLinear", x, scales, zeros, axis=along, block_size=BLOCK)


def dequantized_rows(graph, name, shape, make, ids):
    """Rows of a table of bytes, dequantized once they are found."""
    scale = lambda: (make().max() - make().min()) / 255
    zero = lambda: np.round(-make().min() / scale())
    codes = graph.add(name + "_rows", TensorProto.UINT8, np.uint8, shape,
                      lambda: np.clip(np.round(make() / scale()) + zero(), 0, 255))
    scales = graph.add(name + "_rows_scale", TensorProto.FLOAT, np.float32, (), scale)
    zeros = graph.add(name + "_rows_zero_point", TensorProto.UINT8, np.uint8, (), zero)
    return graph("DequantizeLinear", graph("Gather", codes, ids), scales, zeros)


def _nbits(graph, name, rows, columns, make):
    blocks = blocks_of(columns)
    codes = graph.add(name + "_Q4", TensorProto.UINT8, np.uint8, (rows, blocks, BLOCK // 2),
                      lambda: packed(quantize(make(), 4)[0], blocks * BLOCK).reshape(rows, blocks, -1))
    scales = graph.add(name + "_scales", graph.float_type, graph.float_dtype, (rows, blocks),
                       lambda: quantize(make(), 4)[1])
    zeros = graph.add(name + "_zero_points", TensorProto.UINT8, np.uint8, (rows, (blocks + 1) // 2),
                      lambda: packed(quantize(make(), 4)[2], (blocks + 1) // 2 * 2))
    return codes, scales, zeros


def nbits_product(graph, x, name, rows, columns, make, bias=None):
    """x W^T + bias, W [rows, columns]."""
    inputs = [x, *_nbits(graph, name, rows, columns, make)] + (["", bias] if bias else [])
    return graph("MatMulNBits", *inputs, domain="com.microsoft", K=columns, N=rows, bits=4, block_size=BLOCK)


def nbits_rows(graph, name, rows, columns, make, ids):
    """Rows of W [rows, columns]; the same tensors as nbits_product's. `columns` is a multiple of BLOCK."""
    codes, scales, zeros = _nbits(graph, name, rows, columns, make)
    data = graph("Reshape", codes, graph.const([rows, columns // 2]))
    return graph("GatherBlockQuantized", data, ids, scales, zeros, domain="com.microsoft", bits=4, block_size=BLOCK,
                 gather_axis=0, quantize_axis=1)

"""FLOAT TARGET int8|int4: what ONNX Runtime's own quantizers make of an ONNX file."""

import sys

source, target, precision = sys.argv[1:]
if precision == "int8":
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, per_channel=True, weight_type=QuantType.QInt8)
else:
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    # accuracy_level 4: rows in int8, the fastest that it has.
    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    onnx.save(quantizer.model.model, target)

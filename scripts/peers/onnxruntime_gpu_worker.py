"""Times ONNX Runtime's CUDA provider on a decoder as optimum exports it. Inputs, outputs, keys and values are bound on
the GPU and stay there; the best tokens are not taken."""

import sys

from gpu_common import options, report, times

args = options()
try:
    import numpy as np
    import onnxruntime as ort
except ImportError as error:
    sys.exit(f"{error.name} is not installed")
provider = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}[args.device]
if provider not in ort.get_available_providers():
    sys.exit(f"onnxruntime {ort.__version__} is a build without CUDA (onnxruntime-gpu has it)")
if args.device == "cuda" and hasattr(ort, "preload_dlls"):
    ort.preload_dlls()  # CUDA and cuDNN out of wheels
settings = ort.SessionOptions()
settings.log_severity_level = 3
session = ort.InferenceSession(args.model, settings, providers=[provider])
if session.get_providers()[0] != provider:
    sys.exit(f"onnxruntime {ort.__version__} cannot use its CUDA provider: libraries of CUDA or cuDNN are missing")
ELEMENTS = {"float": 1, "float16": 10, "bfloat16": 16}  # onnx.TensorProto's numbers
vocabulary = next(value.shape[2] for value in session.get_outputs() if value.name == "logits")
random = np.random.default_rng(0)


def place(array):
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), args.device, 0)


def room(value, shape):
    element = ELEMENTS[value.type.removeprefix("tensor(").removesuffix(")")]
    return ort.OrtValue.ortvalue_from_shape_and_type(shape, element, args.device, 0)


def bind(batch, tokens, past):
    """A binding of one run: `past` are the inputs of keys and values by name. Its outputs are room of its own."""
    binding, held = session.io_binding(), []
    length = next(iter(past.values())).shape()[2]
    small = {
        "input_ids": lambda: random.integers(0, vocabulary, (batch, tokens)),
        "attention_mask": lambda: np.ones((batch, length + tokens), np.int64),
        "position_ids": lambda: np.tile(np.arange(length, length + tokens), (batch, 1)),
    }
    for value in session.get_inputs():
        held.append(past[value.name] if value.name in past else place(small[value.name]().astype(np.int64)))
        binding.bind_ortvalue_input(value.name, held[-1])
    outputs = []
    for value in session.get_outputs():
        if value.name == "logits":
            shape = [batch, tokens, vocabulary]
        else:
            shape = [batch, value.shape[1], length + tokens, value.shape[3]]
        outputs.append(room(value, shape))
        binding.bind_ortvalue_output(value.name, outputs[-1])
    return binding, outputs, held


def measure(batch):
    pasts = [value for value in session.get_inputs() if len(value.shape) == 4]
    empty = {value.name: room(value, [batch, value.shape[1], 0, value.shape[3]]) for value in pasts}
    binding, outputs, _ = bind(batch, args.context, empty)
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    past = dict(zip((value.name for value in pasts), outputs[1:]))
    binding, _, held = bind(batch, 1, past)
    result = times(lambda: session.run_with_iobinding(binding), binding.synchronize_outputs)
    del held
    return result


report(args.batch, ort.__version__, measure)

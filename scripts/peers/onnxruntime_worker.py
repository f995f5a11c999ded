"""Times ONNX Runtime on a decoder as optimum exports it. Inputs are bound once, so no copies are timed."""

import time

import numpy as np
import onnxruntime
from common import memory, milliseconds, options, report

args = options()
settings = onnxruntime.SessionOptions()
settings.intra_op_num_threads = args.threads
settings.inter_op_num_threads = 1
start = time.perf_counter()
session = onnxruntime.InferenceSession(args.model, settings, providers=["CPUExecutionProvider"])
load_ms = 1000 * (time.perf_counter() - start)
loaded = memory("VmRSS")
random = np.random.default_rng(0)


def step(batch, tokens, past):
    """A function that runs the graph once and takes the best token of each sequence."""
    binding = session.io_binding()
    positions = np.tile(np.arange(past, past + tokens), (batch, 1))
    for value in session.get_inputs():
        if value.name == "input_ids":
            array = random.integers(100, 10000, (batch, tokens))
        elif value.name == "attention_mask":
            array = np.ones((batch, past + tokens), np.int64)
        elif value.name == "position_ids":
            array = positions
        else:
            heads, width = value.shape[1], value.shape[3]
            array = random.standard_normal((batch, heads, past, width), dtype=np.float32)
        binding.bind_ortvalue_input(value.name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for value in session.get_outputs():
        binding.bind_output(value.name, "cpu")

    def run():
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0].numpy()[:, -1].argmax(axis=-1)

    return run


start = time.perf_counter()
step(1, args.context, 0)()
first_token_ms = load_ms + 1000 * (time.perf_counter() - start)
decode = {str(b): milliseconds(step(b, 1, args.context)) for b in args.batch}
steady = memory("VmRSS")
prefill = {str(n): milliseconds(step(1, n, 0)) for n in args.prefill}
report(decode, prefill, loaded, steady, load_ms=load_ms, first_token_ms=first_token_ms)

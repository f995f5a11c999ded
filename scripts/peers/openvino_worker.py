"""Times OpenVINO on a decoder as optimum exports it, the way its own server runs one: keys and values as state, logits of
the last token only; weights as in the file (f32), computed in bf16, or compressed by NNCF to 8 or 4 bits."""

import time

import numpy as np
import openvino as ov
from common import memory, milliseconds, options, report
from openvino import opset13
from openvino._offline_transformations import apply_make_stateful_transformation

args = options(precision=("f32", "bf16", "int8", "int4"))
core = ov.Core()
settings = {"INFERENCE_NUM_THREADS": args.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if args.precision == "bf16" else "f32"}
random = np.random.default_rng(0)


def weights_compressed(model):
    """Symmetric 4 bits in groups of 32 with table and head in 8, as NNCF does by default; or 8 bits a channel."""
    if not args.precision.startswith("int"):
        return model
    import nncf

    nncf.set_log_level("ERROR")
    if args.precision == "int8":
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT4_SYM, group_size=32, ratio=1.0)


def compiled(batch):
    model = core.read_model(args.model)
    shapes, pairs = {}, {}
    for value in model.inputs:
        name, shape = value.any_name, list(value.partial_shape)
        shapes[name] = ov.PartialShape([batch, *shape[1:]])
        if name.startswith("past_key_values"):
            shapes[name][2] = -1
            pairs[name] = name.replace("past_key_values", "present")
    model.reshape(shapes)
    head = model.output("logits").get_node().input_value(0).get_node()
    rows = head.input_value(0)
    whole = [opset13.constant(np.array([n])) for n in (-1, np.iinfo(np.int64).max, 1, 1)]
    head.input(0).replace_source_output(opset13.slice(rows, *whole).output(0))
    model.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(model, pairs)
    return core.compile_model(weights_compressed(model), "CPU", settings)


def feeds(batch, first, count):
    return {"input_ids": random.integers(100, 10000, (batch, count)), "attention_mask": np.ones((batch, first + count), np.int64),
            "position_ids": np.tile(np.arange(first, first + count), (batch, 1))}


def step_of(request, batch, first, count):
    """Runs `count` tokens behind `first` ones."""
    request.infer(feeds(batch, first, count))
    return request.get_output_tensor(0).data[:, -1].argmax(axis=-1)


def decode_ms(batch):
    """Each step leaves its token in the state: the context grows by as many as there are repeats."""
    request = (model if batch == 1 else compiled(batch)).create_infer_request()
    step_of(request, batch, 0, args.context)
    length = args.context

    def step():
        nonlocal length
        step_of(request, batch, length, 1)
        length += 1

    return milliseconds(step)


def prefill_ms(tokens):
    request = model.create_infer_request()

    def step():
        request.reset_state()
        step_of(request, 1, 0, tokens)

    return milliseconds(step)


start = time.perf_counter()
model = compiled(1)
load_ms = 1000 * (time.perf_counter() - start)
loaded = memory("VmRSS")
decoded = {str(b): decode_ms(b) for b in args.batch}
steady = memory("VmRSS")
prefilled = {str(n): prefill_ms(n) for n in args.prefill}
report(decoded, prefilled, loaded, steady, load_ms=load_ms)

"""Runs a decoder of ours under ONNX Runtime: single steps with a cache, and greedy generation."""

from pathlib import Path

import numpy as np
import onnxruntime

NUMPY_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16,
               "tensor(int64)": np.int64, "tensor(int32)": np.int32}


# Whether ONNX Runtime does: without VNNI it adds pairs of products of unsigned rows with signed weights in 16 bits, which
# overflow where weights have more than seven.
ADDS_EXACTLY = "vnni" in Path("/proc/cpuinfo").read_text()


def open_session(model, options=None):
    """Of a path or serialised bytes, on the CPU, told to add exactly where it does not; 1.31.1 cannot load some files so."""
    options = options or onnxruntime.SessionOptions()
    load = lambda: onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    if ADDS_EXACTLY:
        return load()
    options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        return load()
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
        options.add_session_config_entry("session.x64quantprecision", "0")
        return load()


class Oracle:
    """`config` says how the caches are laid out; `model` is a path or serialised bytes."""

    def __init__(self, model, config, threads=2, optimise=True):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # f32 activations
        if not optimise:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.config = config
        self.types = {i.name: NUMPY_TYPES[i.type] for i in self.session.get_inputs()}
        self.output_names = [o.name for o in self.session.get_outputs()]

    def empty_past(self, batch):
        shapes = {"batch_size": batch, "past": 0}
        return {past: np.zeros([shapes.get(d, d) for d in shape], self.types[past])
                for past, _, shape, _ in self.config.caches()}

    def feeds(self, ids, past, mask=None):
        """The graph's inputs in its order. ids [B, S]; mask [B, P + S], all ones if None."""
        ids = np.asarray(ids)
        length = next((past[name].shape[axis] for name, _, _, axis in self.config.caches()), 0)
        if mask is None:
            mask = np.ones((len(ids), length + ids.shape[1]))
        positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)[:, length:]
        feeds = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **past}
        return {name: feeds[name].astype(dtype) for name, dtype in self.types.items()}

    def step(self, ids, past, mask=None):
        """Logits and the next past."""
        outputs = dict(zip(self.output_names, self.session.run(None, self.feeds(ids, past, mask))))
        return outputs["logits"], {p: outputs[present] for p, present, _, _ in self.config.caches()}

    def greedy(self, prompt, count):
        """Ids, and per step the distance from the best logit to the second."""
        ids, margins, past, feed = [], [], self.empty_past(1), prompt
        for _ in range(count):
            logits, past = self.step([feed], past)
            best = np.argsort(logits[0, -1].astype(np.float64))[::-1][:2]
            ids.append(int(best[0]))
            margins.append(round(float(logits[0, -1, best[0]] - logits[0, -1, best[1]]), 5))
            feed = ids[-1:] if self.config.cache else [*prompt, *ids]
        return ids, margins

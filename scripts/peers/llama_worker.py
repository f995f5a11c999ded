"""Times llama.cpp by its C interface (llama-cpp-python): raw decode calls, the cache cut back after each."""

import ctypes
import time

import llama_cpp as ll
import numpy as np
from common import memory, milliseconds, options, report

args = options()


@ll.llama_log_callback
def silent(level, text, data):
    del level, text, data


ll.llama_log_set(silent, ctypes.c_void_p(0))
ll.llama_backend_init()
start = time.perf_counter()
model_settings = ll.llama_model_default_params()
model_settings.n_gpu_layers = 0
model = ll.llama_model_load_from_file(args.model.encode(), model_settings)
if not model:
    raise SystemExit(f"llama.cpp cannot load {args.model}")
load_ms = 1000 * (time.perf_counter() - start)
loaded = memory("VmRSS")
vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
random = np.random.default_rng(0)


def open_context(sequences, tokens):
    settings = ll.llama_context_default_params()
    settings.n_ctx = sequences * (tokens + 64)
    settings.n_batch = settings.n_ubatch = max(512, sequences)
    settings.n_seq_max = sequences
    settings.n_threads = settings.n_threads_batch = args.threads
    return ll.llama_init_from_model(model, settings)


def decode(context, sequences, first, count):
    """One call: `count` tokens from position `first` in each sequence; logits for each one's last."""
    batch = ll.llama_batch_init(count * len(sequences), 0, 1)
    for sequence in sequences:
        for position in range(first, first + count):
            i = batch.n_tokens
            batch.token[i], batch.pos[i] = int(random.integers(100, 10000)), position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = position == first + count - 1
            batch.n_tokens += 1
    if ll.llama_decode(context, batch):
        raise SystemExit("llama_decode failed")
    best = []
    for i in range(batch.n_tokens):
        if batch.logits[i]:
            best.append(np.ctypeslib.as_array(ll.llama_get_logits_ith(context, i), (vocab,)).argmax())
    ll.llama_batch_free(batch)
    return best


def decode_ms(sequences):
    context = open_context(sequences, args.context)
    cache = ll.llama_get_memory(context)
    for sequence in range(sequences):
        decode(context, [sequence], 0, args.context)

    def step():
        decode(context, range(sequences), args.context, 1)
        for sequence in range(sequences):
            ll.llama_memory_seq_rm(cache, sequence, args.context, -1)

    result = milliseconds(step)
    ll.llama_free(context)
    return result


def prefill_ms(tokens):
    context = open_context(1, tokens)
    cache = ll.llama_get_memory(context)

    def step():
        ll.llama_memory_clear(cache, False)
        decode(context, [0], 0, tokens)

    result = milliseconds(step)
    ll.llama_free(context)
    return result


decoded = {str(b): decode_ms(b) for b in args.batch}
steady = memory("VmRSS")
prefilled = {str(n): prefill_ms(n) for n in args.prefill}
report(decoded, prefilled, loaded, steady, load_ms=load_ms)

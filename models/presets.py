"""Named decoders: published families in their own shape, and one for each way to write a graph."""

from config import Config

GPT2 = dict(norm="layer", positions="learned", qkv="packed", qkv_bias=True, out_bias=True, mlp_bias=True,
            linear="gemm", mlp="plain", activation="gelu-tanh", scale_style="div")
LLAMA = dict(kv_heads=2, tied=False)
GEMMA = dict(norm="gemma", head_dim=8, kv_heads=1, embed_scale=4.0, activation="gelu-tanh")
GEMMA2 = GEMMA | dict(kv_heads=2, norm_place="sandwich", attention_cap=20.0, logit_cap=5.0, window=4, window_every=2,
                      scale_style="query", attention_scale=0.25, mask="eager")
# Weights of more elements than the importer computes at load.
LARGE = dict(layers=1, hidden=264, intermediate=264, vocab=256)

FAMILIES = {
    "bloom": dict(norm="layer", positions="alibi-cumsum", embed_norm=True, qkv="per-head", qkv_bias=True,
                  out_bias=True, mlp="plain", mlp_bias=True, activation="gelu-tanh", past_layout="key-transposed",
                  mask="trilu"),
    "cohere": dict(norm="layer", residual="shared-norm", rotary="interleaved", logit_scale=0.0625, kv_heads=2),
    "falcon": dict(norm="layer", residual="shared-norm", kv_heads=1, qkv="packed", gqa="broadcast", mlp="plain",
                   activation="gelu", mask="trilu"),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA2 | dict(attention_cap=0.0, logit_cap=0.0, qk_norm="head"),
    "gpt2": GPT2,
    "gpt2-stacked": GPT2 | dict(past_layout="stacked", past_names="torchscript", mask="buffer", ids="int32"),
    "gptj": dict(norm="layer-nodes", residual="shared-norm", head_dim=8, rotary_dim=4, rotary="interleaved",
                 rotary_source="table", mlp="plain", mlp_bias=True, activation="gelu-tanh", tied=False, mask="buffer",
                 scale_style="div"),
    "granite": LLAMA | dict(residual_scale=0.22, embed_scale=12.0, logit_scale=0.25, attention_scale=0.125),
    "llama": LLAMA,
    "mistral": LLAMA | dict(window=4, head_dim=8),
    "mpt": dict(norm="layer", positions="alibi-range", qkv="packed", mlp="plain", activation="gelu", mask="ranges"),
    "neox": dict(norm="layer", residual="two-norms", qkv="per-head", qkv_bias=True, out_bias=True, head_dim=8,
                 rotary_dim=4, mlp="plain", mlp_bias=True, activation="gelu", tied=False, mask="eager"),
    "olmo2": dict(norm_place="post", qk_norm="full", tied=False),
    "opt": dict(norm="layer", positions="learned", position_offset=2, position_source="cumsum", qkv_bias=True,
                out_bias=True, mlp="plain", mlp_bias=True, activation="relu", scale_style="query", mask="trilu"),
    "phi2": dict(norm="layer", residual="shared-norm", qkv_bias=True, out_bias=True, head_dim=8, rotary_dim=4,
                 mlp="plain", mlp_bias=True, activation="gelu-tanh", tied=False),
    "phi3": dict(qkv="packed", mlp="packed", tied=False, kv_heads=2),
    "qwen2": dict(qkv_bias=True, kv_heads=2),
    "qwen3": dict(qk_norm="head", head_dim=8, kv_heads=2),
    "stablelm": dict(norm="layer", head_dim=8, rotary_dim=2, tied=False),
    "starcoder": GPT2 | dict(kv_heads=1, past_layout="joined", gqa="broadcast", mask="buffer"),
}

STYLES = {
    "alibi-distance": dict(positions="alibi-distance", norm="layer"),
    "heads-3": dict(heads=3, hidden=24, tied=True),
    "heads-6-2": LLAMA | dict(heads=6, hidden=24, intermediate=40, vocab=61),
    "last-logits": LLAMA | dict(logits="last"),
    "mask-none": LLAMA | dict(mask_input=False, mask="ranges"),
    "no-past": LLAMA | dict(cache=False, mask="eager"),
    "no-past-window": LLAMA | dict(cache=False, mask="ranges", window=600),
    "no-past-window-buffer": LLAMA | dict(cache=False, mask="buffer", window=600, context=1100),
    "no-past-window-trilu": LLAMA | dict(cache=False, mask="trilu", window=600, window_every=2),
    "no-position-ids": LLAMA | dict(position_source="range"),
    "no-position-ids-cumsum": LLAMA | dict(position_source="cumsum", mask="eager"),
    "no-positions": dict(positions="none"),
    "only-ids": LLAMA | dict(mask_input=False, position_source="range", mask="trilu"),
    "opset-14": LLAMA | dict(opset=14, mask="trilu"),
    "opset-17": LLAMA | dict(opset=17, norm="layer"),
    "opset-21": LLAMA | dict(opset=21),
    "past-anonymous": LLAMA | dict(past_names="anonymous"),
    "past-bshd": LLAMA | dict(past_layout="bshd"),
    "past-joined": LLAMA | dict(past_layout="joined"),
    "past-key-transposed": LLAMA | dict(past_layout="key-transposed", past_names="torchscript"),
    "past-stacked": LLAMA | dict(past_layout="stacked"),
    "query-groups": LLAMA | dict(gqa="grouped"),
    "rotary-interleaved": LLAMA | dict(rotary="interleaved"),
    "rotary-table": LLAMA | dict(rotary_source="table"),
    "quantized-int8": GPT2 | dict(stored="int8", linear="matmul"),
    "quantized-f8e4m3": LLAMA | dict(stored="f8e4m3-scaled", opset=19),
    "quantized-nbits": LLAMA | dict(stored="nbits", hidden=48, intermediate=40, tied=True, qkv_bias=True, qkv="packed"),
    "quantized-nbits-learned": GPT2 | dict(stored="nbits", hidden=48, intermediate=40, tied=False),
    "quantized-nbits-f16": LLAMA | dict(stored="nbits", dtype="f16", hidden=48, intermediate=40, tied=True),
    "quantized-uint4-f16": LLAMA | dict(stored="uint4", dtype="f16", opset=21, hidden=40, intermediate=40, head_dim=10),
    "quantized-rows": GPT2 | dict(stored="uint8-rows", tied=False),
    "quantized-uint4": GPT2 | dict(stored="uint4", opset=21, hidden=40, intermediate=40, head_dim=10),
    "scale-both": LLAMA | dict(scale_style="both", mask="ranges"),
    "stored-bf16": GPT2 | LARGE | dict(stored="bf16"),
    "stored-f8e4m3": LLAMA | LARGE | dict(stored="f8e4m3", opset=19),
    "stored-f16": LLAMA | LARGE | dict(stored="f16", tied=True),
    "window-buffer": LLAMA | dict(window=3, mask="buffer"),
    "window-ranges": LLAMA | dict(window=3, mask="ranges"),
    "window-trilu": LLAMA | dict(window=3, mask="trilu"),
    "llama-f16": LLAMA | dict(dtype="f16"),
    "gpt2-f16": GPT2 | dict(dtype="f16"),
}

# Graphs that look like decoders but mix tokens or sequences: they must be served plain.
BROKEN = {
    "broken-batch": LLAMA | dict(breaks="batch"),
    "broken-future": LLAMA | dict(breaks="future"),
    "broken-future-buffer": LLAMA | dict(breaks="future", mask="buffer"),
    "broken-sequence": LLAMA | dict(breaks="sequence"),
}

PRESETS = FAMILIES | STYLES | BROKEN


def preset(name, **changes):
    """The Config of a preset, with changes."""
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(sorted(PRESETS))}")
    return Config(**(PRESETS[name] | changes))

"""What a decoder looks like: sizes, and one field per way in which published decoders differ."""

import argparse
from dataclasses import dataclass, field, fields

CHOICES = {
    "dtype": ("f32", "f16", "bf16"),
    "stored": ("dtype", "f16", "bf16", "f8e4m3", "int8", "f8e4m3-scaled", "uint8-rows", "uint4", "nbits"),
    "ids": ("int64", "int32"),
    "norm": ("rms", "gemma", "layer", "layer-nodes"),
    "norm_place": ("pre", "post", "sandwich"),
    "residual": ("serial", "shared-norm", "two-norms"),
    "positions": ("rotary", "learned", "alibi-cumsum", "alibi-range", "alibi-distance", "none"),
    "position_source": ("input", "range", "cumsum"),
    "rotary": ("half", "interleaved"),
    "rotary_source": ("matmul", "table"),
    "qkv": ("separate", "packed", "per-head"),
    "linear": ("matmul", "gemm"),
    "qk_norm": ("none", "head", "full"),
    "scale_style": ("mul", "div", "query", "both"),
    "gqa": ("expand", "broadcast", "grouped"),
    "mask": ("sdpa", "eager", "ranges", "trilu", "buffer"),
    "mlp": ("gated", "packed", "plain"),
    "activation": ("silu", "gelu", "gelu-tanh", "relu"),
    "logits": ("all", "last"),
    "past_layout": ("bhsd", "bshd", "key-transposed", "stacked", "joined"),
    "past_names": ("optimum", "torchscript", "anonymous"),
    "breaks": ("none", "future", "batch", "sequence"),
}


@dataclass
class Config:
    # Sizes. 0 means: derived.
    layers: int = 2
    hidden: int = 16
    heads: int = 4
    kv_heads: int = 0  # as many as heads
    head_dim: int = 0  # hidden / heads
    intermediate: int = 32
    vocab: int = 64
    context: int = 64
    dtype: str = "f32"
    stored: str = "dtype"  # of the weights; another type than dtype stands behind a Cast; quantized.py
    ids: str = "int64"  # type of the integer inputs
    opset: int = 18

    norm: str = "rms"  # gemma: weight + 1; layer: the operator; layer-nodes: its nine nodes
    norm_place: str = "pre"  # post: on a branch's output (OLMo 2); sandwich: both (Gemma 2)
    eps: float = 1e-5
    embed_norm: bool = False  # BLOOM
    residual: str = "serial"  # shared-norm: x + attn(n(x)) + mlp(n(x)) (GPT-J); two-norms (NeoX)
    residual_scale: float = 1.0
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    tied: bool = True
    logits: str = "all"  # last: only the last token's row reaches the head

    positions: str = "rotary"
    position_source: str = "input"  # range: past .. past + S; cumsum: from the mask (OPT)
    position_offset: int = 0  # of learned positions
    rotary: str = "half"
    rotary_dim: int = 0  # head_dim
    rotary_source: str = "matmul"  # table: Gather from cos and sin tables
    rope_theta: float = 10000.0
    rope_factors: list = field(default=None, repr=False)  # divide the frequencies (Llama 3)

    qkv: str = "separate"  # packed: q | k | v; per-head: [heads, q | k | v] (NeoX)
    qkv_bias: bool = False
    out_bias: bool = False
    linear: str = "matmul"
    qk_norm: str = "none"  # head: over each head (Qwen 3); full: over all heads (OLMo 2)
    attention_scale: float = 0.0  # 1 / sqrt(head_dim)
    attention_cap: float = 0.0
    scale_style: str = "mul"  # query: on q; both: its square root on q and on k
    gqa: str = "expand"  # broadcast: MatMul's own (multi-query); grouped: five dimensions

    mask: str = "sdpa"
    mask_input: bool = True
    window: int = 0
    window_every: int = 1  # layers 0, n, 2n ... slide

    mlp: str = "gated"
    activation: str = "silu"
    mlp_bias: bool = False

    cache: bool = True  # False: every step gets the whole sequence
    past_layout: str = "bhsd"  # stacked: [2, B, H, P, D]; joined: [B, H, P, 2 D]
    past_names: str = "optimum"
    breaks: str = "none"  # a rule of decoders that the graph breaks: it must not be batched raggedly

    def __post_init__(self):
        self.kv_heads = self.kv_heads or self.heads
        self.head_dim = self.head_dim or self.hidden // self.heads
        self.rotary_dim = self.rotary_dim or self.head_dim
        self.attention_scale = self.attention_scale or self.head_dim**-0.5
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it can be {', '.join(allowed)}")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not divide into {self.kv_heads} key-value heads")
        if self.qkv == "per-head" and self.heads != self.kv_heads:
            raise ValueError("per-head qkv needs as many key-value heads as heads")
        if self.qkv == "per-head" and self.qk_norm == "full":
            raise ValueError("per-head qkv is never seen as one row, which qk_norm full needs")
        if self.gqa == "broadcast" and self.kv_heads != 1:
            raise ValueError("broadcast needs one key-value head")
        if self.gqa == "grouped" and self.positions.startswith("alibi"):
            raise ValueError("grouped attention has no ALiBi")
        if not self.mask_input and "cumsum" in (self.position_source, self.positions.removeprefix("alibi-")):
            raise ValueError("positions by cumsum need the mask as an input")

    @property
    def is_layer_norm(self):
        return self.norm.startswith("layer")

    @property
    def has_position_ids(self):
        return self.position_source == "input" and self.positions in ("rotary", "learned")

    def caches(self):
        """Per cache: input name, output name, shape with "past" where the length stands, the axis of it."""
        if not self.cache:
            return []
        kv, d = self.kv_heads, self.head_dim
        plain = ("batch_size", kv, "past", d), 2
        key, value = {
            "bhsd": (plain, plain),
            "bshd": ((("batch_size", "past", kv, d), 1),) * 2,
            "key-transposed": ((("batch_size", kv, d, "past"), 3), plain),
            "stacked": (((2, "batch_size", kv, "past", d), 3), None),
            "joined": ((("batch_size", kv, "past", 2 * d), 2), None),
        }[self.past_layout]
        result = []
        for layer in range(self.layers):
            parts = [("key", key), ("value", value)] if value else [("", key)]
            for part, (shape, axis) in parts:
                past, present = self._cache_names(layer, part, len(result))
                result.append((past, present, list(shape), axis))
        return result

    def _cache_names(self, layer, part, index):
        if self.past_names == "anonymous":
            return f"args_{index + 3}", f"clone_{index}"
        if self.past_names == "torchscript" or not part:
            infix = f"_{part}" if part else ""
            return f"past{infix}_{layer}", f"present{infix}_{layer}"
        return f"past_key_values.{layer}.{part}", f"present.{layer}.{part}"


def add_options(parser):
    """One option for each field of Config; unset ones are absent from the namespace."""
    for f in fields(Config):
        if f.name == "rope_factors":
            continue
        option = "--" + f.name.replace("_", "-")
        kind = {bool: argparse.BooleanOptionalAction}.get(f.type)
        if kind:
            parser.add_argument(option, action=kind, default=argparse.SUPPRESS)
        else:
            parser.add_argument(option, type=f.type, choices=CHOICES.get(f.name), default=argparse.SUPPRESS)


def options_of(namespace):
    names = {f.name for f in fields(Config)}
    return {k: v for k, v in vars(namespace).items() if k in names}

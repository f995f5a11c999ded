"""Writes a decoder-only transformer as an ONNX graph: one description, every published variation."""

import math

from onnx import TensorProto

from attention import Mask, Positions, append_cache, repeat_heads, rotate
from graph import TO_END, Graph
from quantized import dequantized_rows, nbits_product, nbits_rows

FLOAT = TensorProto.FLOAT


def build(config, weights):
    """The graph of `config`; weights(name, shape) gives an array under its transformers name, linear
    ones as [out, in], and is called only when the graph is saved."""
    return Decoder(config, weights).build()


class Decoder:
    def __init__(self, config, weights):
        self.config, self.weights = config, weights
        self.g = Graph(config.opset, config.dtype, config.stored)
        self.projections = 0

    def build(self):
        g, c = self.g, self.config
        int_type = TensorProto.INT64 if c.ids == "int64" else TensorProto.INT32
        batch, seq = "batch_size", "sequence_length"
        total = f"past_sequence_length + {seq}" if c.cache else seq
        ids = g.input("input_ids", int_type, [batch, seq])
        mask = g.input("attention_mask", int_type, [batch, total]) if c.mask_input else None
        position_ids = g.input("position_ids", int_type, [batch, seq]) if c.has_position_ids else None
        for past, _, shape, _ in c.caches():
            g.input(past, g.float_type, ["past_sequence_length" if d == "past" else d for d in shape])
        g.output("logits", g.float_type, [batch, seq if c.logits == "all" else 1, c.vocab])
        for _, present, shape, _ in c.caches():
            g.output(present, g.float_type, [total if d == "past" else d for d in shape])
        with g.scope("model"):
            hidden = self.layers(ids, mask, position_ids)
        self.head(hidden)
        return g

    def layers(self, ids, mask, position_ids):
        g, c = self.g, self.config
        with g.scope("embed_tokens"):
            x = self.look_up("model.embed_tokens", c.vocab, ids)
        past = [(past, axis) for past, _, _, axis in c.caches()[:1]]
        self.positions = Positions(g, c, x, mask, position_ids, *past)
        if c.embed_scale != 1:
            x = g("Mul", x, g.fconst(c.embed_scale))
        if c.positions == "learned":
            at = g("Add", self.positions.ids(), g.const(c.position_offset))
            rows = c.context + c.position_offset
            x = g("Add", x, self.look_up("model.embed_positions", rows, at))
        if c.embed_norm:
            x = self.norm(x, "embed_layernorm", c.hidden)
        self.mask = Mask(g, c, self.positions)
        self.rotary = self.positions.rotary() if c.positions == "rotary" else None
        self.alibi = self.positions.alibi() if c.positions.startswith("alibi") else None
        for layer in range(c.layers):
            with g.scope(f"layers.{layer}"):
                x = self.layer(x, layer)
        if c.breaks == "sequence":
            x = g("Add", x, g.reduce("ReduceMean", x, 1))
        if c.breaks == "batch":
            x = g("Sub", x, g("Mul", g.reduce("ReduceMean", x, 0), g.fconst(0.5)))
        return self.norm(x, "norm", c.hidden)

    def head(self, x):
        g, c = self.g, self.config
        if c.logits == "last":
            x = g.slice(x, 1, -1, TO_END)
        with g.scope("lm_head"):
            if c.tied and g.quantized == "nbits":
                logits = self.nbits_product(x, "model.embed_tokens", c.hidden, c.vocab)
            elif c.tied:
                logits = g("MatMul", x, g.transpose(self.table("model.embed_tokens", c.vocab), 1, 0))
            else:
                logits = self.linear(x, "lm_head", c.hidden, c.vocab, bias=False)
        if c.logit_scale != 1:
            logits = g("Mul", logits, g.fconst(c.logit_scale))
        if c.logit_cap:
            logits = self.cap(logits, c.logit_cap)
        g("Identity", logits, out="logits")

    def layer(self, x, layer):
        c, prefix = self.config, f"layers.{layer}."
        pre = (lambda v, name: self.norm(v, prefix + name, c.hidden)) if c.norm_place != "post" else lambda v, _: v
        after = (lambda v, name: v) if c.norm_place == "pre" else lambda v, name: self.norm(v, prefix + name, c.hidden)
        normed = pre(x, "input_layernorm")
        attended = after(self.attention(normed, layer), "post_attention_layernorm_out")
        if c.residual == "serial":
            x = self.add(x, attended)
            return self.add(x, after(self.mlp(pre(x, "post_attention_layernorm"), layer), "post_mlp_layernorm"))
        second = normed if c.residual == "shared-norm" else pre(x, "post_attention_layernorm")
        return self.add(x, self.g("Add", attended, after(self.mlp(second, layer), "post_mlp_layernorm")))

    def add(self, x, branch):
        g, scale = self.g, self.config.residual_scale
        return g("Add", x, branch if scale == 1 else g("Mul", branch, g.fconst(scale)))

    def attention(self, x, layer):
        g, c = self.g, self.config
        with g.scope("self_attn"):
            q, k, v = self.heads(x, layer)
            if self.rotary:
                q, k = (rotate(g, c, t, *self.rotary) for t in (q, k))
            per_layer = len(c.caches()) // c.layers
            caches = c.caches()[layer * per_layer:(layer + 1) * per_layer]
            k, v = append_cache(g, c, caches, k, v)
            sliding = c.window if layer % c.window_every == 0 else 0
            y = self.mix(q, repeat_heads(g, c, k), repeat_heads(g, c, v), sliding)
            y = g.reshape(g.transpose(y, 0, 2, 1, 3), g.size(x, 0), g.size(x, 1), c.heads * c.head_dim)
            return self.linear(y, f"model.layers.{layer}.self_attn.o_proj", c.heads * c.head_dim, c.hidden, c.out_bias)

    def heads(self, x, layer):
        """q [B, heads, S, D], k and v [B, kv_heads, S, D]."""
        g, c, prefix = self.g, self.config, f"model.layers.{layer}.self_attn."
        counts = [c.heads, c.kv_heads, c.kv_heads]
        batch, seq = g.size(x, 0), g.size(x, 1)
        if c.qkv == "separate":
            parts = [self.linear(x, f"{prefix}{n}_proj", c.hidden, count * c.head_dim, c.qkv_bias)
                     for n, count in zip("qkv", counts)]
        else:
            both = self.linear(x, prefix + "qkv_proj", c.hidden, sum(counts) * c.head_dim, c.qkv_bias)
            if c.qkv == "per-head":
                both = g.reshape(both, batch, seq, c.heads, 3 * c.head_dim)
                return [g.transpose(p, 0, 2, 1, 3) for p in self.qk_norm(g.split(both, [c.head_dim] * 3), layer)]
            parts = g.split(both, [count * c.head_dim for count in counts])
        if c.qk_norm == "full":
            parts = self.qk_norm(parts, layer)
        parts = [g.reshape(p, batch, seq, -1, c.head_dim) for p in parts]
        if c.qk_norm == "head":
            parts = self.qk_norm(parts, layer)
        return [g.transpose(p, 0, 2, 1, 3) for p in parts]

    def qk_norm(self, parts, layer):
        c = self.config
        if c.qk_norm == "none":
            return parts
        widths = [c.head_dim] * 2 if c.qk_norm == "head" else [c.heads * c.head_dim, c.kv_heads * c.head_dim]
        names = [f"layers.{layer}.self_attn.{n}_norm" for n in "qk"]
        return [self.norm(p, n, w) for p, n, w in zip(parts, names, widths)] + [parts[2]]

    def mix(self, q, k, v, window):
        """softmax(q k^T) v -> [B, heads, S, D]."""
        g, c = self.g, self.config
        scale = lambda x, by: g("Mul", x, g.fconst(by))
        grouped = c.gqa == "grouped" and c.heads != c.kv_heads
        if grouped:
            shape = g("Shape", q)
            q = g.reshape(q, g.size(q, 0), c.kv_heads, c.heads // c.kv_heads, g.size(q, 2), c.head_dim)
            k, v = g.unsqueeze(k, 2), g.unsqueeze(v, 2)
        k = g.transpose(k, *((0, 1, 2, 4, 3) if grouped else (0, 1, 3, 2)))
        if c.scale_style == "query":
            q = scale(q, c.attention_scale)
        if c.scale_style == "both":
            q, k = scale(q, c.attention_scale**0.5), scale(k, c.attention_scale**0.5)
        scores = g("MatMul", q, k)
        if c.scale_style == "mul":
            scores = scale(scores, c.attention_scale)
        if c.scale_style == "div":
            scores = g("Div", scores, g.fconst(1 / c.attention_scale))
        if c.attention_cap:
            scores = self.cap(scores, c.attention_cap)
        if grouped:  # the mask has four dimensions
            scores = g.reshape(scores, g.size(q, 0), c.heads, g.size(q, 3), g.size(k, 4))
        if self.alibi:
            scores = g("Add", scores, self.alibi)
        probabilities = self.mask.apply(scores, window)
        if grouped:
            probabilities = g.reshape(probabilities, g.size(q, 0), c.kv_heads, c.heads // c.kv_heads,
                                      g.size(q, 3), g.size(k, 4))
            return g("Reshape", g("MatMul", probabilities, v), shape)
        return g("MatMul", probabilities, v)

    def mlp(self, x, layer):
        g, c, prefix = self.g, self.config, f"model.layers.{layer}.mlp."
        project = lambda v, name, i, o: self.linear(v, prefix + name, i, o, c.mlp_bias)
        with g.scope("mlp"):
            if c.mlp == "plain":
                h = self.activation(project(x, "up_proj", c.hidden, c.intermediate))
            else:
                if c.mlp == "packed":
                    both = project(x, "gate_up_proj", c.hidden, 2 * c.intermediate)
                    gate, up = g.split(both, [c.intermediate] * 2)
                else:
                    gate, up = (project(x, n, c.hidden, c.intermediate) for n in ("gate_proj", "up_proj"))
                h = g("Mul", self.activation(gate), up)
            return project(h, "down_proj", c.intermediate, c.hidden)

    def activation(self, x):
        g, kind = self.g, self.config.activation
        with g.scope("act_fn"):
            if kind == "silu":
                return g("Mul", x, g("Sigmoid", x))
            if kind == "relu":
                return g("Relu", x)
            if kind == "gelu":
                inner = g("Add", g("Erf", g("Div", x, g.fconst(math.sqrt(2)))), g.fconst(1))
                return g("Mul", g("Mul", x, inner), g.fconst(0.5))
            cube = g("Mul", g("Pow", x, g.fconst(3)), g.fconst(0.044715))
            inner = g("Tanh", g("Mul", g("Add", x, cube), g.fconst(math.sqrt(2 / math.pi))))
            return g("Mul", g("Mul", x, g.fconst(0.5)), g("Add", inner, g.fconst(1)))

    def cap(self, x, limit):
        g = self.g
        return g("Mul", g("Tanh", g("Div", x, g.fconst(limit))), g.fconst(limit))

    def norm(self, x, name, width):
        """RMS norm (in float32, as transformers computes it) or LayerNorm over the last axis."""
        g, c, path = self.g, self.config, f"model.{name}"
        weight = g.weight(f"{path}.weight", (width,), lambda: self.weights(f"{path}.weight", (width,)))
        with g.scope(name.rsplit(".", 1)[-1]):
            if c.is_layer_norm:
                bias = g.weight(f"{path}.bias", (width,), lambda: self.weights(f"{path}.bias", (width,)))
                return self.layer_norm(x, weight, bias)
            wide = g.cast(x, FLOAT)
            square = g("Pow", wide, g.const(2, "float32"))
            root = g("Sqrt", g("Add", g.reduce("ReduceMean", square, -1), g.const(c.eps, "float32")))
            y = g("Mul", wide, g("Div", g.const(1, "float32"), root))
            if c.norm == "gemma":  # the product too is in float32
                return g.cast(g("Mul", y, g("Add", g.cast(weight, FLOAT), g.const(1, "float32"))), g.float_type)
            return g("Mul", weight, g.cast(y, g.float_type))

    def layer_norm(self, x, weight, bias):
        g, c = self.g, self.config
        if c.norm == "layer":
            return g("LayerNormalization", x, weight, bias, axis=-1, epsilon=c.eps)
        centred = g("Sub", x, g.reduce("ReduceMean", x, -1))
        variance = g.reduce("ReduceMean", g("Pow", centred, g.fconst(2)), -1)
        y = g("Div", centred, g("Sqrt", g("Add", variance, g.fconst(c.eps))))
        return g("Add", g("Mul", y, weight), bias)

    def table(self, name, rows):
        shape = (rows, self.config.hidden)
        return self.g.weight(f"{name}.weight", shape, lambda: self.weights(f"{name}.weight", shape), along=1)

    def look_up(self, name, rows, at):
        """Rows of a table."""
        shape = (rows, self.config.hidden)
        if self.g.quantized == "uint8-rows":
            return dequantized_rows(self.g, f"{name}.weight", shape, lambda: self.weights(f"{name}.weight", shape), at)
        if self.g.quantized != "nbits":
            return self.g("Gather", self.table(name, rows), at)
        return nbits_rows(self.g, f"{name}.weight", *shape, lambda: self.weights(f"{name}.weight", shape), at)

    def nbits_product(self, x, name, wide, out, bias=False):
        offset = self.g.weight(f"{name}.bias", (out,), lambda: self.weights(f"{name}.bias", (out,))) if bias else None
        return nbits_product(self.g, x, f"{name}.weight", out, wide,
                             lambda: self.weights(f"{name}.weight", (out, wide)), offset)

    def linear(self, x, name, wide, out, bias):
        """x W^T + b; the exporter has folded the transpose into a weight without a name."""
        g = self.g
        self.projections += 1
        if g.quantized == "nbits":
            with g.scope(name.rsplit(".", 1)[-1]):
                return self.nbits_product(x, name, wide, out, bias)
        weight = g.weight(f"onnx::MatMul_{1000 + self.projections}", (wide, out),
                          lambda: self.weights(f"{name}.weight", (out, wide)).T)
        offset = g.weight(f"{name}.bias", (out,), lambda: self.weights(f"{name}.bias", (out,))) if bias else None
        with g.scope(name.rsplit(".", 1)[-1]):
            if self.config.linear == "matmul":
                y = g("MatMul", x, weight)
                return g("Add", offset, y) if bias else y
            rows = g("Reshape", x, g.const([-1, wide]))
            y = g("Gemm", rows, weight, *([offset] if bias else []))
            return g.reshape(y, g.size(x, 0), g.size(x, 1), out)

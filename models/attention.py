"""Positions, masks and attention of a decoder, each in the forms that exporters are known to write."""

import ml_dtypes
import numpy as np
from onnx import TensorProto, numpy_helper

from graph import TO_END

BOOL, FLOAT, INT64 = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT64


class Positions:
    """Sizes and positions that all layers share: values are names in the graph."""

    def __init__(self, g, config, hidden, mask, position_ids, past=None):
        self.g, self.config, self.hidden, self.mask = g, config, hidden, mask
        self.past = g.size(*past) if past else g.const(0)
        self.seq = g.size(hidden, 1)
        self.total = g("Add", self.past, self.seq) if past else self.seq
        self.rows = g("Range", self.past, self.total, g.const(1))
        self._ids, self._position_ids = None, position_ids

    def ids(self):
        """[B or 1, S] int64."""
        if self._ids is None:
            g, source = self.g, self.config.position_source
            if source == "input":
                self._ids = g.cast(self._position_ids, INT64)
            elif source == "range":
                self._ids = g.unsqueeze(self.rows, 0)
            else:
                seen = g("Sub", self.cumulative_mask(), g.const(1))
                self._ids = g.slice(seen, 1, g.unsqueeze(self.past, 0), TO_END)
        return self._ids

    def cumulative_mask(self):
        """How many tokens are visible up to each one, 0 at padding: [B, T]."""
        g = self.g
        mask = g.cast(self.mask, INT64)
        return g("Mul", g("CumSum", mask, g.const(1)), mask)

    def grid(self):
        """Key and query indices [1, 1, 1, T] and [1, 1, S, 1]."""
        g = self.g
        queries = g.unsqueeze(self.rows, 0, 1, 3)
        keys = g.unsqueeze(g("Range", g.const(0), self.total, g.const(1)), 0, 1, 2)
        return keys, queries

    def rotary(self):
        """cos and sin [B, 1, S, rotary_dim] in the model's float type."""
        g, c = self.g, self.config
        inverse = c.rope_theta ** (-np.arange(0, c.rotary_dim, 2, dtype=np.float64) / c.rotary_dim)
        inverse = inverse.astype(np.float32)
        if c.rope_factors is not None:
            inverse = inverse / np.asarray(c.rope_factors, dtype=np.float32)
        with g.scope("rotary_emb"):
            both = self._rotary_table(inverse) if c.rotary_source == "table" else self._rotary_matmul(inverse)
            return [g.unsqueeze(g.cast(x, g.float_type), 1) for x in both]

    def _rotary_matmul(self, inverse):
        g, ids = self.g, self.ids()
        column = g("Constant", value=numpy_helper.from_array(inverse.reshape(1, -1, 1)))
        column = g.expand(column, g.size(ids, 0), -1, 1)
        row = g.cast(g.unsqueeze(ids, 1), FLOAT)
        angles = self._repeat(g.transpose(g("MatMul", column, row), 0, 2, 1))
        return g("Cos", angles), g("Sin", angles)

    def _repeat(self, angles):
        g = self.g
        if self.config.rotary == "half":
            return g("Concat", angles, angles, axis=-1)
        pair = g.unsqueeze(angles, 3)
        pairs = g("Concat", pair, pair, axis=-1)
        return g.reshape(pairs, g.size(angles, 0), g.size(angles, 1), self.config.rotary_dim)

    def _rotary_table(self, inverse):
        g, c = self.g, self.config
        angles = np.outer(np.arange(c.context, dtype=np.float32), inverse)
        angles = np.tile(angles, 2) if c.rotary == "half" else np.repeat(angles, 2, axis=1)
        ids = self.ids()
        tables = [("cos_cached", np.cos(angles)), ("sin_cached", np.sin(angles))]
        return [g("Gather", g.weight(name, table.shape, lambda t=table: t), ids, axis=0) for name, table in tables]

    def alibi(self):
        """A bias for the scores, [B or 1, heads, S or 1, T]."""
        g, c = self.g, self.config
        slopes = 2.0 ** (-8.0 * np.arange(1, c.heads + 1) / c.heads)
        kind = c.positions.removeprefix("alibi-")
        if kind == "cumsum":
            distance = g.unsqueeze(g("Sub", self.cumulative_mask(), g.const(1)), 1, 2)
        elif kind == "range":
            distance = g.unsqueeze(g("Range", g("Sub", g.const(1), self.total), g.const(1), g.const(1)), 0, 1, 2)
        else:
            distance = g("Neg", g("Abs", g("Sub", *self.grid())))
        return g("Mul", g.fconst(slopes.reshape(1, -1, 1, 1)), g.cast(distance, g.float_type))


class Mask:
    """The mask in one of five forms; apply() puts it on the scores of a layer and takes the softmax."""

    def __init__(self, g, config, positions):
        self.g, self.config, self.positions = g, config, positions
        self.lowest = -np.inf if config.mask == "sdpa" else ml_dtypes.finfo(g.float_dtype).min
        self._made = {}

    def apply(self, scores, window):
        g = self.g
        if self.config.mask == "buffer":
            scores = g("Where", self._once(window, self._buffer), scores, g.fconst(self.lowest))
            if self.positions.mask:
                scores = g("Add", scores, self._once("padding", self._inverted_padding))
            return g("Softmax", scores, axis=-1)
        if self.config.mask == "sdpa":
            bias = g("Where", self._once(window, self._allowed), g.fconst(0), g.fconst(self.lowest))
            weights = g("Softmax", g("Add", scores, bias), axis=-1)
            return g("Where", g("IsNaN", weights), g.fconst(0), weights)
        made = self._once(window, self._trilu if self.config.mask == "trilu" else self._where)
        scores = g("Add", scores, g.slice(made, 3, 0, g.unsqueeze(self.positions.total, 0)))
        weights = g("Softmax", g.cast(scores, FLOAT), axis=-1)
        return g.cast(weights, g.float_type)

    def _once(self, key, make):
        if key not in self._made:
            self._made[key] = make(key)
        return self._made[key]

    def _where(self, window):
        g = self.g
        allowed = self._allowed(window) if self.config.mask == "eager" else self._ranges(window)
        return g("Where", allowed, g.fconst(0), g.fconst(self.lowest))

    def _causal(self, keys, queries, window):
        g = self.g
        if self.config.breaks == "future":
            queries = g("Add", queries, g.const(1))
        causal = g("LessOrEqual", keys, queries)
        if window:
            causal = g("And", causal, g("Greater", keys, g("Sub", queries, g.const(window))))
        return causal

    def _allowed(self, window):
        """optimum: index arithmetic, and padding fetched from the flattened mask at row * T + column."""
        g, p = self.g, self.positions
        keys, queries = p.grid()
        allowed = self._causal(keys, queries, window)
        batch = g.size(p.hidden, 0)
        if p.mask:
            rows = g.unsqueeze(g("Range", g.const(0), batch, g.const(1)), 1, 2, 3)
            mask = g.cast(p.mask, BOOL)
            at = g("Add", keys, g("Mul", rows, g.size(mask, 1)))
            padding = g("Gather", g("Flatten", mask, axis=2), at, axis=0)
            padding = g("Reshape", g("Reshape", padding, g.const([-1])), g("Shape", at))
            allowed = g("And", allowed, padding)
        return g.expand(allowed, batch, -1, p.seq, p.total)

    def _ranges(self, window):
        g, p = self.g, self.positions
        keys = g.unsqueeze(g("Range", g.const(0), p.total, g.const(1)), 0)
        queries = g.unsqueeze(g("Add", g("Range", g.const(0), p.seq, g.const(1)), p.past), 1)
        allowed = g.unsqueeze(self._causal(keys, queries, window), 0, 1)
        if p.mask:
            allowed = g("And", allowed, g("Not", self._is_padding()))
        return allowed

    def _is_padding(self):
        g, p = self.g, self.positions
        return g.unsqueeze(g("Equal", g.cast(p.mask, INT64), g.const(0)), 1, 2)

    def _trilu(self, window):
        """A filled matrix, its lower triangle cut away, padding written over it."""
        g, p = self.g, self.positions
        full = g("Expand", g.fconst([self.lowest]), g.sizes(p.seq, p.total))
        ahead = 2 if self.config.breaks == "future" else 1
        mask = g("Trilu", full, g("Add", p.past, g.const(ahead)), upper=1)
        if window:
            behind = g("Trilu", full, g("Sub", p.past, g.const(window)), upper=0)
            mask = g("Add", mask, behind)
        mask = g.unsqueeze(mask, 0, 1)
        if p.mask:
            mask = g("Where", self._is_padding(), g.fconst(self.lowest), mask)
        return mask

    def _buffer(self, window):
        """A constant triangle [1, 1, context, context], sliced to [S, T]."""
        g, p, n = self.g, self.positions, self.config.context
        triangle = np.tril(np.ones((n, n), dtype=bool), 1 if self.config.breaks == "future" else 0)
        if window:
            triangle &= ~np.tril(np.ones((n, n), dtype=bool), -window)
        buffer = g("Constant", value=numpy_helper.from_array(triangle[None, None]))
        total = g.unsqueeze(p.total, 0)
        return g.slice(g.slice(buffer, 2, g.unsqueeze(p.past, 0), total), 3, 0, total)

    def _inverted_padding(self, _):
        g = self.g
        mask = g.cast(g.unsqueeze(self.positions.mask, 1, 2), g.float_type)
        return g("Mul", g("Sub", g.fconst(1), mask), g.fconst(self.lowest))


def rotate(g, config, x, cos, sin):
    """Rotary embedding of x [B, heads, S, head_dim]; only the first rotary_dim of each head turn."""
    d = config.rotary_dim
    rest = None
    if d < config.head_dim:
        x, rest = g.slice(x, 3, 0, d), g.slice(x, 3, d, TO_END)
    if config.rotary == "half":
        half = g("Div", g.size(x, 3), g.const(2))
        half = g.unsqueeze(g.cast(half, INT64), 0)
        turned = g("Concat", g("Neg", g.slice(x, 3, half, TO_END)), g.slice(x, 3, 0, half), axis=-1)
    else:
        even, odd = g.slice(x, 3, 0, TO_END, 2), g.slice(x, 3, 1, TO_END, 2)
        pairs = g("Concat", g.unsqueeze(g("Neg", odd), 4), g.unsqueeze(even, 4), axis=-1)
        turned = g("Reshape", pairs, g("Shape", x))
    x = g("Add", g("Mul", x, cos), g("Mul", turned, sin))
    return g("Concat", x, rest, axis=-1) if rest else x


def append_cache(g, config, caches, key, value):
    """Concatenates past and new [B, kv, S, D]; returns all K and V [B, kv, T, D].
    `caches` are this layer's Config.caches()."""
    if not caches:
        return key, value
    layout, names = config.past_layout, [(past, present) for past, present, _, _ in caches]
    transpose_last = lambda x: g.transpose(x, 0, 1, 3, 2)
    append = lambda i, new, axis: g("Concat", names[i][0], new, out=names[i][1], axis=axis)
    if layout == "bhsd":
        return append(0, key, -2), append(1, value, -2)
    if layout == "bshd":
        key = append(0, g.transpose(key, 0, 2, 1, 3), 1)
        value = append(1, g.transpose(value, 0, 2, 1, 3), 1)
        return g.transpose(key, 0, 2, 1, 3), g.transpose(value, 0, 2, 1, 3)
    if layout == "key-transposed":
        return transpose_last(append(0, transpose_last(key), -1)), append(1, value, -2)
    if layout == "joined":
        both = append(0, g("Concat", key, value, axis=-1), 2)
        return tuple(g.split(both, [config.head_dim] * 2))
    past = [g("Gather", names[0][0], g.const(i), axis=0) for i in range(2)]
    key, value = g("Concat", past[0], key, axis=-2), g("Concat", past[1], value, axis=-2)
    g("Concat", g.unsqueeze(key, 0), g.unsqueeze(value, 0), out=names[0][1], axis=0)
    return key, value


def repeat_heads(g, config, x):
    """[B, kv, T, D] -> [B, heads, T, D], as torch's repeat_kv."""
    groups = config.heads // config.kv_heads
    if groups == 1 or config.gqa != "expand":
        return x
    batch, kv, total, dim = (g.size(x, i) for i in range(4))
    wide = g.expand(g.unsqueeze(x, 2), batch, kv, groups, total, dim)
    return g.reshape(wide, batch, g("Mul", kv, g.const(groups)), total, dim)

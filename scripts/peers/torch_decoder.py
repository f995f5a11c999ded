"""A decoder of models/ in PyTorch, with the weights of its ONNX file: one token a sequence and step, keys and values in
place. Nothing leaves the device and no size changes, so that a step can be captured as a CUDA graph."""

import json
from pathlib import Path

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import external_data_helper

TYPES = {onnx.TensorProto.FLOAT: torch.float32, onnx.TensorProto.FLOAT16: torch.float16,
         onnx.TensorProto.BFLOAT16: torch.bfloat16}


class Weights:
    """Initializers by name, and those that products take by the product's place: layers.0.self_attn.q_proj."""

    def __init__(self, path, device):
        self.folder, self.device = Path(path).parent, device
        graph = onnx.load(str(path), load_external_data=False).graph
        self.tensors = {t.name: t for t in graph.initializer}
        self.linears = {}
        for node in graph.node:
            if node.op_type in ("MatMul", "Gemm") and node.input[1] in self.tensors:
                place = node.name.strip("/").removeprefix("model/").split("/")[:-1]
                self.linears[".".join(place)] = node.input[1]

    def __getitem__(self, name):
        tensor = self.tensors[name]
        if tensor.data_type not in TYPES:
            raise SystemExit(f"{name} is no floating-point weight: quantized models have no twin here")
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            external_data_helper.load_external_data_for_tensor(tensor, str(self.folder))
        data = np.frombuffer(tensor.raw_data, np.uint8).copy()
        tensor.ClearField("raw_data")
        return torch.from_numpy(data).view(TYPES[tensor.data_type]).reshape(list(tensor.dims)).to(self.device)

    def get(self, name):
        return self[name] if name in self.tensors else None

    def linear(self, place):
        """(weight as [out, in], bias or None)."""
        if place not in self.linears:
            raise SystemExit(f"the file has no product {place}: only models/'s own decoders are known here")
        return self[self.linears[place]].T.contiguous(), self.get(f"model.{place}.bias")


class Decoder:
    """GPT-2 (learned positions, layer norms) or Llama (rotary, RMS norms), as config.json beside the file says."""

    def __init__(self, path, batch, length, device):
        c = json.loads(Path(path).with_name("config.json").read_text())
        self.is_gpt2 = c["model_type"] == "gpt2"
        self.heads, self.kv_heads, self.width = (c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"])
        self.epsilon = c.get("rms_norm_eps", 1e-5)
        w = Weights(path, device)
        self.table = w["model.embed_tokens.weight"]
        self.positions = w.get("model.embed_positions.weight")
        self.layers = [self._layer(w, f"layers.{n}") for n in range(c["num_hidden_layers"])]
        self.last_norm = self._norm(w, "norm")
        self.head = self.table if c["tie_word_embeddings"] else w.linear("lm_head.lm_head")[0]
        new = lambda *shape: torch.zeros(shape, dtype=self.table.dtype, device=device)
        self.caches = [[new(batch, self.kv_heads, length, self.width) for _ in range(2)] for _ in self.layers]
        self.ids = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        steps = torch.arange(0, self.width, 2, dtype=torch.float64) / self.width
        self.turns = (c.get("rope_theta", 10000.0) ** -steps).to(device, torch.float32)

    def _layer(self, w, place):
        attention = ["qkv_proj"] if self.is_gpt2 else ["q_proj", "k_proj", "v_proj"]
        mlp = ["up_proj", "down_proj"] if self.is_gpt2 else ["gate_proj", "up_proj", "down_proj"]
        linears = {n: w.linear(f"{place}.self_attn.{n}") for n in [*attention, "o_proj"]}
        linears |= {n: w.linear(f"{place}.mlp.{n}") for n in mlp}
        norms = (self._norm(w, f"{place}.{n}_layernorm") for n in ("input", "post_attention"))
        return linears, *norms

    @staticmethod
    def _norm(w, name):
        return w[f"model.{name}.weight"], w.get(f"model.{name}.bias")

    def norm(self, x, weights):
        weight, bias = weights
        if self.is_gpt2:
            return F.layer_norm(x, weight.shape, weight, bias, 1e-5)
        return F.rms_norm(x, weight.shape, weight, self.epsilon)

    def attend(self, x, linears, cache, rotary, seen):
        batch = x.shape[0]
        if self.is_gpt2:
            q, k, v = F.linear(x, *linears["qkv_proj"]).split(self.heads * self.width, dim=-1)
        else:
            q, k, v = (F.linear(x, *linears[n]) for n in ("q_proj", "k_proj", "v_proj"))
        q, k, v = (t.view(batch, 1, -1, self.width).transpose(1, 2) for t in (q, k, v))
        if rotary is not None:
            q, k = (self.rotate(t, *rotary) for t in (q, k))
        for new, kept in zip((k, v), cache):
            kept.index_copy_(2, self.at, new)
        k, v = (part[:, :, :seen] for part in cache)
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=self.heads != self.kv_heads)
        return F.linear(y.transpose(1, 2).reshape(batch, 1, -1), *linears["o_proj"])

    def rotate(self, x, cosine, sine):
        first, second = x.chunk(2, dim=-1)
        return x * cosine + torch.cat((-second, first), dim=-1) * sine

    def mlp(self, x, linears):
        if self.is_gpt2:
            return F.linear(F.gelu(F.linear(x, *linears["up_proj"]), approximate="tanh"), *linears["down_proj"])
        gate, up = (F.linear(x, *linears[n]) for n in ("gate_proj", "up_proj"))
        return F.linear(F.silu(gate) * up, *linears["down_proj"])

    def step(self, seen):
        """Logits [batch, vocabulary] of each sequence's token in `ids`, which stands at `at` and sees `seen` tokens,
        itself the last: a number, so that attention takes no mask. Then `ids` is the best token; `at` stays."""
        x = F.embedding(self.ids, self.table)
        rotary = None
        if self.is_gpt2:
            x = x + F.embedding(self.at, self.positions)
        else:
            angles = torch.cat([self.at * self.turns] * 2)
            rotary = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for (linears, before, between), cache in zip(self.layers, self.caches):
            x = x + self.attend(self.norm(x, before), linears, cache, rotary, seen)
            x = x + self.mlp(self.norm(x, between), linears)
        logits = F.linear(self.norm(x, self.last_norm), self.head)[:, -1]
        self.ids.copy_(logits.argmax(dim=-1, keepdim=True))
        return logits

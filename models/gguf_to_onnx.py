#!/usr/bin/env python3
"""GGUF (llama architecture, any quantization that `gguf` can undo) -> ONNX as an exporter writes it, with
tokenizer.json, tokenizer_config.json, config.json and generation_config.json beside it."""

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np

from config import Config
from decoder import build
from graph import DTYPES
from tokenizer import tokenizer_config, tokenizer_json, write_json

TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
MODEL_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
REQUIRED = object()


class Source:
    """A GGUF file: its metadata, and its tensors under transformers' names."""

    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        arch = self.meta("general.architecture")
        if arch != "llama":
            raise ValueError(f"architecture {arch!r}: only llama is converted")
        if self.meta("llama.expert_count", 0):
            raise ValueError("mixtures of experts are not converted")

    def meta(self, key, default=REQUIRED):
        value = self.reader.fields.get(key)
        if value is None:
            if default is REQUIRED:
                raise ValueError(f"the metadata lack {key}")
            return default
        return value.contents()

    def config(self, dtype):
        meta = lambda key, default=REQUIRED: self.meta(f"llama.{key}", default)
        scaling, factor = meta("rope.scaling.type", "none"), meta("rope.scaling.factor", 1.0)
        if scaling not in ("none", "linear"):
            raise ValueError(f"rope scaling {scaling!r}: only linear is converted")
        heads, hidden = meta("attention.head_count"), meta("embedding_length")
        config = Config(
            layers=meta("block_count"), hidden=hidden, heads=heads,
            kv_heads=meta("attention.head_count_kv", heads),
            head_dim=meta("attention.key_length", hidden // heads), intermediate=meta("feed_forward_length"),
            vocab=int(self.tensors["token_embd.weight"].shape[1]), context=meta("context_length"), dtype=dtype,
            eps=meta("attention.layer_norm_rms_epsilon"), rope_theta=meta("rope.freq_base", 10000.0),
            rotary_dim=meta("rope.dimension_count", hidden // heads), tied="output.weight" not in self.tensors,
            qkv_bias="blk.0.attn_q.bias" in self.tensors, out_bias="blk.0.attn_output.bias" in self.tensors,
            mlp_bias="blk.0.ffn_gate.bias" in self.tensors)
        if "rope_freqs.weight" in self.tensors:  # Llama 3
            config.rope_factors = self.array("rope_freqs.weight").tolist()
        elif scaling == "linear":
            config.rope_factors = [factor] * (config.rotary_dim // 2)
        self.heads = {"attn_q": config.heads, "attn_k": config.kv_heads}
        return config

    def array(self, name):
        if name not in self.tensors:
            raise ValueError(f"the file lacks the tensor {name}")
        tensor = self.tensors[name]
        return gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)

    def weight(self, name, shape):
        """A tensor under its transformers name, [out, in]."""
        stem, suffix = name.rsplit(".", 1)
        if stem in MODEL_NAMES:
            return self.array(f"{MODEL_NAMES[stem]}.{suffix}").reshape(shape)
        layer, part = stem.removeprefix("model.layers.").split(".", 1)
        part = LAYER_NAMES[part]
        array = self.array(f"blk.{layer}.{part}.{suffix}").reshape(shape)
        return half_split_rows(array, self.heads[part]) if part in self.heads else array


def half_split_rows(array, heads):
    """Undoes llama.cpp's order of rows in a head, made for rotary of adjacent pairs: x0 y0 x1 y1 -> x0 x1 y0 y1."""
    pairs = array.reshape(heads, -1, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def model_config(source, config):
    """config.json in transformers' words."""
    ids = {name: source.meta(f"tokenizer.ggml.{key}_token_id", None)
           for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))}
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias, "hidden_act": "silu",
        "dtype": TORCH_NAMES[config.dtype],
        "head_dim": config.head_dim, "hidden_size": config.hidden, "intermediate_size": config.intermediate,
        "max_position_embeddings": config.context, "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers, "num_key_value_heads": config.kv_heads,
        "rms_norm_eps": float(f"{config.eps:.6g}"), "rope_theta": config.rope_theta, "rope_scaling": None,
        "tie_word_embeddings": config.tied, "use_cache": True, "vocab_size": config.vocab,
    } | {f"{name}_token_id": i for name, i in ids.items() if i is not None}


def convert(gguf_path, out_dir, dtype="f32", name="model.onnx"):
    source = Source(gguf_path)
    config = source.config(dtype)
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    described = model_config(source, config)
    write_json(out_dir / "config.json", described)
    generation = {key: described[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in described}
    write_json(out_dir / "generation_config.json", generation)
    write_json(out_dir / "tokenizer.json", tokenizer_json(source.meta))
    write_json(out_dir / "tokenizer_config.json", tokenizer_config(source.meta, config.context))
    build(config, source.weight).save(out_dir / name)
    return config


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", metavar="GGUF")
    parser.add_argument("out_dir", metavar="OUT_DIR")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--name", default="model.onnx", help="name of the ONNX file")
    args = parser.parse_args()
    try:
        convert(args.gguf, args.out_dir, args.dtype, args.name)
    except (ValueError, OSError, KeyError) as error:
        sys.exit(f"{args.gguf}: {error}")


if __name__ == "__main__":
    main()

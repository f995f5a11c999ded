"""GGUF conversion: SmolLM2 against published hashes, tokens and tokenizer cases; small files for the rest."""

import hashlib
import json
import os

import gguf
import numpy as np
import pytest
import tokenizers
from config import Config
from decoder import build
from gguf_to_onnx import Source, convert
from llama_random import random_weights
from oracle import Oracle

GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.down_proj": "ffn_down"}


def expected(fixtures, name):
    return json.loads((fixtures / "smollm2-135m-instruct" / name).read_text())


def test_every_dequantized_tensor_has_its_published_hash(fixtures, smollm2):
    source = Source(smollm2 / "smollm2.q4_1.gguf")
    source.config("f32")
    for name, entry in expected(fixtures, "weights.json").items():
        array = source.weight(name, tuple(entry["shape"]))
        assert hashlib.sha256(np.ascontiguousarray(array, "<f4").tobytes()).hexdigest() == entry["sha256"], name


def test_smollm2_gives_its_published_tokens(fixtures, smollm2):
    oracle = Oracle(str(smollm2 / "smollm2.onnx"), Source(smollm2 / "smollm2.q4_1.gguf").config("f32"))
    prompts = expected(fixtures, "expected.json")["prompts"]
    for prompt in prompts if os.environ.get("ARK_FULL") else prompts[:2]:  # test_published_tokens.py has all
        ids, margins = oracle.greedy(prompt["prompt_ids"], len(prompt["greedy_ids"]))
        assert ids == prompt["greedy_ids"]
        assert np.abs(np.array(margins) - prompt["margins"]).max() <= 1e-3


def test_smollm2_tokenizer_cases(fixtures, smollm2):
    tokenizer = tokenizers.Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    for case in expected(fixtures, "tokenizer_cases.json")["cases"]:
        assert tokenizer.encode(case["text"]).ids == case["ids"], case["text"]
        assert tokenizer.decode(case["ids"], skip_special_tokens=False) == case["decoded"]


def test_smollm2_configuration(fixtures, smollm2):
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        written = json.loads((smollm2 / name).read_text())
        wanted = expected(fixtures, name)
        shared = written.keys() & wanted.keys()
        assert {k: written[k] for k in shared} == {k: wanted[k] for k in shared}
    prompt = expected(fixtures, "expected.json")["prompts"][0]
    import jinja2

    template = json.loads((smollm2 / "tokenizer_config.json").read_text())["chat_template"]
    text = jinja2.Template(template).render(messages=prompt["messages"], add_generation_prompt=True)
    assert text == prompt["prompt_text"]


def write_gguf(path, config, kind, scores=None):
    """A llama-architecture GGUF of random weights, quantized as `kind`, with llama.cpp's order of q and k rows."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.intermediate)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.eps)
    writer.add_rope_freq_base(config.rope_theta)
    if scores:
        pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *scores]
        writer.add_tokenizer_model("llama")
        writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(scores))
        writer.add_token_scores([0.0] * 259 + list(scores.values()))
    else:
        pieces = [f"t{i}" for i in range(config.vocab)]
        writer.add_tokenizer_model("gpt2")
        writer.add_token_merges(["t 1"])
    writer.add_token_list(pieces)
    writer.add_bos_token_id(1)
    weights = random_weights(3)

    def add(name, source, shape, heads=0):
        array = weights(source, shape)
        if heads:
            array = array.reshape(heads, 2, -1, *shape[1:]).swapaxes(1, 2).reshape(shape)
        quantized = kind if len(shape) == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(array), quantized), raw_dtype=quantized)

    attention, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes = {"q": (attention, config.hidden), "k": (kv, config.hidden), "v": (kv, config.hidden),
              "o": (config.hidden, attention), "gate": (config.intermediate, config.hidden),
              "up": (config.intermediate, config.hidden), "down": (config.hidden, config.intermediate)}
    add("token_embd.weight", "model.embed_tokens.weight", (config.vocab, config.hidden))
    add("output.weight", "lm_head.weight", (config.vocab, config.hidden))
    add("output_norm.weight", "model.norm.weight", (config.hidden,))
    for layer in range(config.layers):
        prefix, ours = f"blk.{layer}.", f"model.layers.{layer}."
        add(prefix + "attn_norm.weight", ours + "input_layernorm.weight", (config.hidden,))
        add(prefix + "ffn_norm.weight", ours + "post_attention_layernorm.weight", (config.hidden,))
        for name, short in GGUF_NAMES.items():
            part = name.split(".")[1].removesuffix("_proj")
            heads = {"q": config.heads, "k": config.kv_heads}.get(part, 0)
            add(f"{prefix}{short}.weight", f"{ours}{name}.weight", shapes[part], heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


SMALL = Config(hidden=64, heads=4, kv_heads=2, intermediate=96, vocab=300, context=32, tied=False)


@pytest.mark.parametrize("kind, bound", [("F32", 1e-5), ("F16", 1e-2), ("BF16", 0.1), ("Q8_0", 0.2), ("Q5_1", 0.8),
                                         ("Q4_0", 2.0)])
def test_conversion_equals_the_graph_of_the_same_weights(tmp_path, kind, bound):
    write_gguf(tmp_path / "m.gguf", SMALL, gguf.GGMLQuantizationType[kind])
    config = convert(tmp_path / "m.gguf", tmp_path)
    build(SMALL, random_weights(3)).save(tmp_path / "exact.onnx")
    ids = np.arange(3, 15).reshape(1, 12)
    converted, exact = (Oracle(str(tmp_path / n), config, 1) for n in ("model.onnx", "exact.onnx"))
    difference = np.abs(converted.step(ids, converted.empty_past(1))[0] - exact.step(ids, exact.empty_past(1))[0]).max()
    assert difference <= bound
    assert kind == "F32" or difference > 0  # the quantization is really undone, not skipped


def test_sentencepiece_vocabulary_merges_by_score(tmp_path):
    """Oracle: the definition. The best-scored adjacent pair is merged first; the rest falls back to bytes."""
    pieces = {"▁": -1.0, "a": -2.0, "b": -3.0, "c": -4.0, "ab": -5.0, "bc": -4.5, "▁a": -6.0, "▁ab": -7.0}
    config = Config(**{**vars(SMALL), "vocab": 259 + len(pieces)})
    write_gguf(tmp_path / "m.gguf", config, gguf.GGMLQuantizationType.F32, pieces)
    convert(tmp_path / "m.gguf", tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = {p: 259 + i for i, p in enumerate(pieces)}
    assert tokenizer.encode("abc").ids == [1, ids["▁a"], ids["bc"]]  # bc scores above ab
    assert tokenizer.encode("ab").ids == [1, ids["▁ab"]]
    assert tokenizer.encode("é").ids == [1, ids["▁"], 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode(tokenizer.encode("ab é").ids) == "ab é"


def test_other_architectures_are_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="architecture 'mamba'"):
        convert(tmp_path / "m.gguf", tmp_path)

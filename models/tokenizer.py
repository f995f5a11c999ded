"""tokenizer.json out of the vocabulary that a GGUF file carries."""

import json

# Pre-tokenizers by `tokenizer.ggml.pre`: a regular expression to split by, None for ByteLevel's own (GPT-2's).
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
SPLITS = {
    "default": None,
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "qwen2": LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),
}
DIGITS_FIRST = {"smollm"}  # each digit is a word of its own
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # tokenizer.ggml.token_type


def tokenizer_json(meta):
    """meta(key, default) reads the GGUF's metadata. Returns tokenizer.json as an object."""
    kind = meta("tokenizer.ggml.model")
    tokens, types = meta("tokenizer.ggml.tokens"), meta("tokenizer.ggml.token_type", None)
    types = types or [NORMAL] * len(tokens)
    makers = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in makers:
        raise ValueError(f"tokenizer model {kind!r}: only {' and '.join(makers)} are known")
    result = {"version": "1.0", "truncation": None, "padding": None,
              "added_tokens": _added(tokens, types), "normalizer": None, "pre_tokenizer": None,
              "post_processor": None, "decoder": None}
    result.update(makers[kind](meta, tokens, types))
    if meta("tokenizer.ggml.add_bos_token", kind == "llama"):
        result["post_processor"] = _prepend_bos(meta, tokens, result["post_processor"])
    return result


def _added(tokens, types):
    return [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": kind != USER_DEFINED}
            for i, (token, kind) in enumerate(zip(tokens, types)) if kind in (UNKNOWN, CONTROL, USER_DEFINED)]


def _byte_level(meta, tokens, types):
    pre = meta("tokenizer.ggml.pre", "default")
    if pre not in SPLITS:
        raise ValueError(f"pre-tokenizer {pre!r}: only {', '.join(SPLITS)} are known")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": SPLITS[pre] is None}
    stages = [level]
    if SPLITS[pre]:
        stages.insert(0, {"type": "Split", "pattern": {"Regex": SPLITS[pre]}, "behavior": "Isolated", "invert": False})
    if pre in DIGITS_FIRST:
        stages.insert(0, {"type": "Digits", "individual_digits": True})
    merges = [merge.split(" ", 1) for merge in meta("tokenizer.ggml.merges")]
    return {
        "pre_tokenizer": stages[0] if len(stages) == 1 else {"type": "Sequence", "pretokenizers": stages},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _bpe(tokens, merges, ignore_merges=SPLITS[pre] is LLAMA3),
    }


def _sentencepiece(meta, tokens, types):
    """SentencePiece's BPE: pieces are merged by score, unknown characters fall back to bytes."""
    scores = meta("tokenizer.ggml.scores")
    unknown = next((t for t, kind in zip(tokens, types) if kind == UNKNOWN), None)
    prefix = [{"type": "Prepend", "prepend": "▁"}] if meta("tokenizer.ggml.add_space_prefix", True) else []
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    decoders = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    normal = {t: i for i, (t, kind) in enumerate(zip(tokens, types)) if kind in (NORMAL, USER_DEFINED)}
    merges = []
    for piece in sorted(normal, key=lambda t: (-scores[normal[t]], normal[t])):
        splits = [[piece[:i], piece[i:]] for i in range(1, len(piece))]
        known = [s for s in splits if s[0] in normal and s[1] in normal]
        merges += sorted(known, key=lambda s: (normal[s[0]], normal[s[1]]))
    return {
        "normalizer": {"type": "Sequence", "normalizers": prefix + [replace]},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in types),
    }


def _bpe(tokens, merges, **changes):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return model | changes | {"vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}


def _prepend_bos(meta, tokens, after):
    bos = meta("tokenizer.ggml.bos_token_id")
    token = tokens[bos]
    piece = lambda name, kind: {"SpecialToken" if kind else "Sequence": {"id": name, "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [piece(token, True), piece("A", False)],
        "pair": [piece(token, True), piece("A", False), {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [bos], "tokens": [token]}},
    }
    return {"type": "Sequence", "processors": [after, template]} if after else template


def tokenizer_config(meta, context):
    """tokenizer_config.json: special tokens and the chat template."""
    tokens, types = meta("tokenizer.ggml.tokens"), meta("tokenizer.ggml.token_type", None) or []
    added = {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in _added(tokens, types)}
    result = {"added_tokens_decoder": added, "clean_up_tokenization_spaces": False, "model_max_length": context,
              "add_prefix_space": bool(meta("tokenizer.ggml.add_space_prefix", True))}
    for flag in ("add_bos_token", "add_eos_token"):
        result[flag] = bool(meta(f"tokenizer.ggml.{flag}", False))
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = meta(f"tokenizer.ggml.{key}_token_id", None)
        if token is not None:
            result[f"{name}_token"] = tokens[token]
    template = meta("tokenizer.chat_template", None)
    if template:
        result["chat_template"] = template
    byte_level = meta("tokenizer.ggml.model") == "gpt2"
    result["tokenizer_class"] = "GPT2TokenizerFast" if byte_level else "LlamaTokenizerFast"
    return result


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

"""Random Unicode strings and tokenizers of many pipelines, for the comparison with PyPI `tokenizers`."""

import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = """the of and license Work You shall in to a any or for that this by don't I'm we've they're it's you'll he'd
CAN'T 'S 'Ll naïve café Ünïcödé Straße ΟΔΥΣΣΕΥΣ İstanbul ıldız дом привет мир 你好 世界 日本語 カタカナ ひらがな 한국어 สวัสดี नमस्ते
שלום مرحبا foo_bar fooBar x1y2 3.14 1,000,000 ½ ² Ⅷ ٣٤ 𝟘𝟙 http://a.b/c?d=e&f#g {"k": [1, null]} --flag // == != <= ->
ﬁ ſ K Å Å e\u0301 a\u0328\u0301 👍🏽 👨‍👩‍👧 🇩🇪 e\u200dm ▁ ▁▁x Ġ Ċ <0x41> <0xE4> \u180e \ufeff \x00 \x1b""".split(" ")
WORDS = [word for part in WORDS for word in part.split("\n")]
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\u0085", "\x0b", ""]
ASSIGNED = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
# The oracle's normal forms and punctuation come from Unicode tables of various ages: those pipelines are compared on
# characters that are the same in all of them.
OLD = [c for c in ASSIGNED if unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c)]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "<strip>", "<word>", "NoRm"]


def random_text(rng, assigned, low):
    """Words, blanks, control tokens and characters of all planes."""
    parts = []
    for _ in range(rng.choice([0, 1, 2, 3, 5, 8, 13, 30])):
        kind = rng.random()
        if kind < 0.55:
            parts.append(rng.choice(WORDS))
        elif kind < 0.65:
            parts.append("".join(rng.choices(low, k=rng.randint(1, 4))))
        elif kind < 0.75:
            parts.append("".join(rng.choices(assigned, k=rng.randint(1, 4))))
        elif kind < 0.82:
            parts.append(str(rng.randint(0, 10 ** rng.randint(1, 12))))
        elif kind < 0.9:
            parts.append(rng.choice(SPECIALS))
        else:
            parts.append("".join(rng.choices("abcdefghijklmnopqrstuvwxyzABC.,;:!?'\"()-_", k=rng.randint(1, 9))))
        parts.append(rng.choice(SPACES))
    return "".join(parts)


def random_texts(count, seed, assigned=ASSIGNED):
    rng = random.Random(seed)
    low = [c for c in assigned if ord(c) < 0x2000]
    return [random_text(rng, assigned, low) for _ in range(count)]


CORPUS = [" ".join(random.Random(7 + i).choices(WORDS, k=40)) for i in range(400)]
GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = GPT4.replace("{1,3}", "")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_trainer(size=700):
    return trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
    )


def trained(model, trainer, normalizer=None, pre=None, decoder=None, post=None, added=()):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre:
        tokenizer.pre_tokenizer = pre
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(CORPUS, trainer)
    if post:
        tokenizer.post_processor = post(tokenizer)
    if added:
        tokenizer.add_tokens(list(added))
    return tokenizer


def byte_level_bpe(pre, normalizer=None, **options):
    return trained(models.BPE(), byte_trainer(), normalizer, pre, decoders.ByteLevel(), **options)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior, invert),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def llama2(prepend=True, legacy=True):
    """Byte-fallback BPE over metaspaces, by normalizer (legacy) or by pre-tokenizer."""
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    special = ["<unk>", "<s>", "</s>", *bytes_]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False, limit_alphabet=60)
    model = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prepend:
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    post = lambda t: processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    if legacy:
        norm = [normalizers.Prepend("▁")] if prepend else []
        norm = normalizers.Sequence([*norm, normalizers.Replace(" ", "▁")])
        return without_byte_specials(trained(model, trainer, norm, None, decoders.Sequence(steps), post))
    pre = pre_tokenizers.Metaspace(prepend_scheme="first" if prepend else "never", split=False)
    return without_byte_specials(trained(model, trainer, None, pre, decoders.Sequence(steps), post))


def without_byte_specials(tokenizer):
    """The trainer needs the byte tokens as special ones to keep them; real files have them in the vocabulary only."""
    import json

    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [t for t in document["added_tokens"] if not t["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(document))


def bert(lowercase=True):
    trainer = trainers.WordPieceTrainer(
        vocab_size=600, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    post = lambda t: processors.BertProcessing(("[SEP]", t.token_to_id("[SEP]")), ("[CLS]", t.token_to_id("[CLS]")))
    return trained(
        models.WordPiece(unk_token="[UNK]"), trainer, normalizers.BertNormalizer(lowercase=lowercase),
        pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(), post)


def unigram(byte_fallback=False, scheme="always"):
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
    trainer = trainers.UnigramTrainer(vocab_size=900, show_progress=False, unk_token="<unk>", special_tokens=special)
    tokenizer = trained(
        models.Unigram(), trainer,
        normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        pre_tokenizers.Metaspace(prepend_scheme=scheme), decoders.Metaspace(prepend_scheme=scheme))
    if byte_fallback:
        import json

        document = json.loads(tokenizer.to_str())
        document["model"]["byte_fallback"] = True
        tokenizer = without_byte_specials(Tokenizer.from_str(json.dumps(document)))
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)])
    return tokenizer


def clip():
    trainer = trainers.BpeTrainer(
        vocab_size=600, show_progress=False, end_of_word_suffix="</w>", special_tokens=["<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    pre = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False)])
    norm = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    return trained(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), trainer, norm, pre,
                   decoders.BPEDecoder(suffix="</w>"))


def word_level():
    return trained(
        models.WordLevel(unk_token="<unk>"),
        trainers.WordLevelTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False),
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Strip()]),
        pre_tokenizers.Whitespace())


ADDED = [
    AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False), AddedToken("<word>", single_word=True),
    AddedToken("NoRm", normalized=True), AddedToken("[MASK]", lstrip=True, special=True),
    AddedToken("<|im", normalized=False), AddedToken("don't", single_word=True, normalized=False),
]
_PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
ADDED_IN_BLANKS = [
    {**_PLAIN, "content": "<|u|>", "rstrip": True}, {**_PLAIN, "content": "\n\n"},
    {**_PLAIN, "content": "<|v|>", "lstrip": True},
]
BL = pre_tokenizers.ByteLevel
PIPELINES = {
    "gpt2": lambda: byte_level_bpe(BL(add_prefix_space=False)),
    "gpt2-prefix-space": lambda: byte_level_bpe(BL(add_prefix_space=True)),
    "llama3": lambda: byte_level_bpe(
        split(GPT4), post=lambda t: processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 0)])])),
    "qwen2": lambda: byte_level_bpe(split(QWEN), normalizers.NFC()),
    "o200k": lambda: byte_level_bpe(split(O200K, "removed", True)),
    "deepseek": lambda: byte_level_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), pre_tokenizers.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
        pre_tokenizers.Split(Regex(DEEPSEEK), "isolated"), BL(add_prefix_space=False, use_regex=False)])),
    "digits": lambda: byte_level_bpe(pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), BL(add_prefix_space=False)])),
    "digit-runs": lambda: byte_level_bpe(pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Punctuation("contiguous"),
         BL(add_prefix_space=False)])),
    "added": lambda: byte_level_bpe(BL(add_prefix_space=False), normalizers.Lowercase(), added=ADDED),
    "ignore-merges": lambda: ignoring_merges(),
    "punctuation-next": lambda: byte_level_bpe(pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation("merged_with_next"), BL(add_prefix_space=False, use_regex=False)])),
    "punctuation-previous": lambda: byte_level_bpe(pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation("merged_with_previous"), BL(add_prefix_space=False, use_regex=False)])),
    "onig-shorthands": lambda: byte_level_bpe(split(r"\w+|\d+|\h{2,3}+|\p{Han}+|(?m:\s.)|[\w\d]+|[^\s]$|\S+")),
    "fixed-length": lambda: byte_level_bpe(pre_tokenizers.Sequence(
        [pre_tokenizers.FixedLength(5), BL(add_prefix_space=False, use_regex=False)])),
    "llama2": llama2,
    "llama2-metaspace-first": lambda: llama2(legacy=False),
    "gemma": lambda: llama2(prepend=False),
    "bert": bert,
    "bert-cased": lambda: bert(False),
    "unigram": unigram,
    "unigram-bytes": lambda: unigram(True),
    "unigram-never": lambda: unigram(scheme="never"),
    "clip": clip,
    "word-level": word_level,
}
# What Oniguruma and PCRE2 write or read differently, each as the pattern of a Split.
PATTERNS = [
    r" ?[^(\s|[.,!?…。，、।۔،])]+", r"[a-z&&[^aeiou]]+|[A-Z&&[A-M]&&\w]", r"[^a-z&&[^aeiou]]+", r"[x[-z]]+|[a[bc]-z]+",
    r"[[^\s]]+", r"[^[^\s]a]+", r"[]a]+|[^]\w\s]", r"\w+", r"\W+", r"[\w]+|[^\w\s]", r"\b.", r"\d{1,3}(?=(?:\d{3})*\b)",
    r"\B\w", r"\bthe\b|\B[.,]", r"[^\S\r\n]+", r"[\s\S]{3}", r"[^\W]+", r"[^\W_]+", r"[\W_]+", r"[\H\s]+", r"[^\Hf]+",
    r"\p{Punct}+|\p{Alnum}+", r"\p{letter}+", r"\p{Uppercase_Letter}|\p{decimal number}+", r"\P{Punctuation}+",
    r"\p{^Alpha}+", r"[^\p{Alnum}]+", r"[\P{Alnum}x]+", r"[^\p{^Alnum}x]+", r"\p{Word}+", r"[\p{Word}]+", r"\p{han}+",
    r"[[:punct:]]+", r"[[:alpha:]]+", r"[^[:space:][:punct:]]+", r"[[:^alpha:]]+", r"[[:alnum:][:blank:]]+",
    r"[[:graph:]]+", r"[[:upper:]]|[[:word:]]+|[[:xdigit:]]|[[:cntrl:]]", r"(?i:[[a-c]X[^\w]])+",
]
OLD_TABLES = {"qwen2", "digit-runs", "punctuation-next", "punctuation-previous", "bert", "bert-cased", "unigram",
              "unigram-bytes", "unigram-never", "clip", "word-level"}


def ignoring_merges():
    import json

    document = json.loads(byte_level_bpe(split(GPT4)).to_str())
    document["model"]["ignore_merges"] = True
    document["model"]["merges"] = document["model"]["merges"][::2]
    made = {a + b for a, b in document["model"]["merges"]}
    alive = lambda t: len(t) == 1 or t in made
    document["model"]["merges"] = [m for m in document["model"]["merges"] if alive(m[0]) and alive(m[1])]
    return Tokenizer.from_str(json.dumps(document))

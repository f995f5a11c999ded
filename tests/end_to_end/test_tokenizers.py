"""ark-tokenize against PyPI `tokenizers`: equal ids and equal decoded text, whole and token by token."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ark_server import BIN, FIXTURES
from text_samples import ADDED_IN_BLANKS, ASSIGNED, OLD, OLD_TABLES, PATTERNS, PIPELINES, random_texts

BINARY = BIN / "ark-tokenize"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
SMOLLM2 = CACHE / "ark" / "smollm2-135m-instruct" / "tokenizer.json"

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")


def ark(tokenizer_file, lines, *options):
    """The answers of ark-tokenize to JSON lines."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    run = subprocess.run([BINARY, tokenizer_file, *options], input=text, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.split("\n") if line]


def compare(tokenizer_file, texts, seed):
    oracle = Tokenizer.from_file(str(tokenizer_file))
    for special in (True, False):
        options = [] if special else ["--no-special", "--skip-special"]
        expected = [e.ids for e in oracle.encode_batch(texts, add_special_tokens=special)]
        decoded = oracle.decode_batch(expected, skip_special_tokens=not special)
        answers = ark(tokenizer_file, [{"text": t} for t in texts], *options)
        assert len(answers) == len(texts)
        for text, ids, out, answer in zip(texts, expected, decoded, answers):
            assert answer.get("ids") == ids, (text, answer, [oracle.id_to_token(i) for i in ids])
            assert answer["text"] == out, (text, ids)
    compare_streams(oracle, tokenizer_file, seed)


def compare_streams(oracle, tokenizer_file, seed):
    """Random ids: cut characters and wild byte runs included."""
    rng = random.Random(seed)
    size = oracle.get_vocab_size()
    lists = [[rng.randrange(size) for _ in range(rng.randint(0, 24))] for _ in range(1000)]
    lists += [[rng.randrange(min(size, 270)) for _ in range(rng.randint(0, 24))] for _ in range(1000)]
    decoded = oracle.decode_batch(lists, skip_special_tokens=False)
    for ids, text, answer in zip(lists, decoded, ark(tokenizer_file, [{"ids": ids} for ids in lists])):
        assert answer["text"] == text, ids
        assert "".join(answer["parts"]) == text, ids


@pytest.mark.parametrize("name", PIPELINES)
def test_pipeline(name, tmp_path):
    file = tmp_path / "tokenizer.json"
    PIPELINES[name]().save(str(file))
    alphabet = OLD if name in OLD_TABLES else ASSIGNED
    compare(file, random_texts(2000, sum(map(ord, name)), alphabet), seed=1)


@pytest.fixture
def byte_level():
    return json.loads(PIPELINES["gpt2"]().to_str())


def encode(document, texts, tmp_path):
    """The oracle's and ark's ids and decoded texts."""
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(document))
    oracle = Tokenizer.from_file(str(file))
    ids = [e.ids for e in oracle.encode_batch(texts)]
    expected = list(zip(ids, oracle.decode_batch(ids, skip_special_tokens=False)))
    return expected, [(a.get("ids"), a.get("text")) for a in ark(file, [{"text": t} for t in texts])]


def test_pattern_dialect(byte_level, tmp_path):
    """No merges: what is compared are the places of the cuts, marked by the prefix space of each piece."""
    since = {chr(c) for c in range(0x363, 0x370)}  # alphabetic only in newer tables than the oracle's
    texts = random_texts(400, seed=5, assigned=[c for c in OLD if c not in since])
    texts += ["日本½", "Ⅷ²", "e\u0301 x", "a-b-c", "1234567 12345x", "[a]-z]"]
    for pattern in PATTERNS:
        byte_level["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}]}
        expected, answers = encode(byte_level, texts, tmp_path)
        for text, want, got in zip(texts, expected, answers):
            assert got == want, (pattern, text)


@pytest.mark.parametrize("left, right", [(True, False), (False, True), (True, True), (False, False)])
def test_strip(byte_level, tmp_path, left, right):
    byte_level["normalizer"] = {"type": "Strip", "strip_left": left, "strip_right": right}
    expected, answers = encode(byte_level, ["", " ", " \n\t", " a ", "a", "\u3000a b\u3000"], tmp_path)
    assert answers == expected


def test_added_token_in_swallowed_blanks(byte_level, tmp_path):
    size = len(byte_level["model"]["vocab"])
    byte_level["added_tokens"] = [{**token, "id": size + i} for i, token in enumerate(ADDED_IN_BLANKS)]
    texts = ["a<|u|>\n\nb", "<|u|>\n\n", "<|u|> \n\n b", "<|u|>\n\n\n\nb", "<|u|> <|v|>x", "<|v|> <|u|>\n\n<|v|>"]
    expected, answers = encode(byte_level, texts, tmp_path)
    assert answers == expected


@pytest.mark.parametrize("kind", ["BPE", "WordPiece", "WordLevel"])
def test_unknown_token_that_is_missing(tmp_path, kind):
    """Only a text that needs it fails, as with the oracle."""
    model = {"type": kind, "unk_token": "<none>", "vocab": {"a": 0, "b": 1, "##b": 2}}
    if kind == "BPE":
        model["merges"] = []
    if kind == "WordPiece":
        model.update(continuing_subword_prefix="##", max_input_chars_per_word=100)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}))
    oracle = Tokenizer.from_file(str(file))
    good, bad = ark(file, [{"text": "a b"}, {"text": "a c"}])
    assert good["ids"] == oracle.encode("a b").ids
    assert "nor is the tokenizer's unknown token" in json.dumps(bad)
    with pytest.raises(Exception):
        oracle.encode("a c")


@pytest.mark.parametrize("prefix", ["", "##", "t"])
def test_word_pieces_of_any_prefix(byte_level, tmp_path, prefix):
    """An empty one begins every token: none has a blank before it."""
    byte_level["decoder"] = {"type": "WordPiece", "prefix": prefix, "cleanup": False}
    expected, answers = encode(byte_level, ["the work of it", "a##b"], tmp_path)
    assert answers == expected


def test_empty_decoder_sequence(byte_level, tmp_path):
    byte_level["decoder"] = {"type": "Sequence", "decoders": []}
    expected, answers = encode(byte_level, ["the work", "x"], tmp_path)
    assert answers == expected


@pytest.mark.parametrize("file", [FIXTURES / "tiny-tokenizer" / "tokenizer.json", SMOLLM2], ids=["tiny", "smollm2"])
def test_real_file(file):
    if not file.exists():
        pytest.skip(f"no {file}")
    compare(file, random_texts(10000, seed=11), seed=2)


def test_long_word_is_not_quadratic(tmp_path):
    file = tmp_path / "tokenizer.json"
    PIPELINES["gpt2"]().save(str(file))
    oracle = Tokenizer.from_file(str(file))
    for text in ("the" * 350_000, " " * 1_000_000, "\n" * 1_000_000, "a" * 1_000_000, "你" * 300_000):
        (answer,) = ark(file, [{"text": text}])
        assert answer["ids"] == oracle.encode(text).ids

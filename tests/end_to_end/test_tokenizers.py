"""ark-tokenize against PyPI `tokenizers`: equal ids and equal decoded text, whole and token by token."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from text_samples import ASSIGNED, OLD, OLD_TABLES, PIPELINES, random_texts

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("ARK_BIN", ROOT / "build" / "bin")) / "ark-tokenize"
FIXTURES = Path(os.environ.get("ARK_FIXTURES", ROOT.parent / "shared" / "fixtures"))
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
SMOLLM2 = CACHE / "ark" / "smollm2-135m-instruct" / "tokenizer.json"

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")


def ark(tokenizer_file, lines, *options):
    """The answers of ark-tokenize to JSON lines."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    run = subprocess.run([BINARY, tokenizer_file, *options], input=text, capture_output=True, text=True, timeout=300)
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

"""Writes tokenizer_cases.json and template_cases.json, which text_test compares with and the fuzzers begin from: what
PyPI `tokenizers` and `jinja2` make of a few small tokenizers and of published templates. Run it by hand, with the
Python environment of the tests, where the lists below change; the end-to-end tests compare many more cases anew."""

import json
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "end_to_end"))

import jinja2  # noqa: E402
import tokenizers  # noqa: E402

import text_samples  # noqa: E402
from chat_templates import CONVERSATIONS, TEMPLATES, TOOLS  # noqa: E402
from template_fuzz import VARIABLES, random_template  # noqa: E402
from test_chat_templates import DIFFERS, oracle  # noqa: E402

LOSSLESS = ["gpt2", "digits", "llama3"]
NAMES = LOSSLESS + ["qwen2", "added", "llama2", "bert", "unigram-bytes", "clip", "word-level"]
AWKWARD = ["", " ", "\n\n", "  two  spaces ", "a\r\n\tb", "1234567 3.14", "don't WE'LL", "naïve Ünï ß", "世界 日本語", "👍🏽👨‍👩‍👧",
           "e\u0301 \u00e9", "<|im_start|>user<|im_end|>", "[MASK] <strip> x", "\u2581\u2581x", "<0x41>", "\x00\x1b", "ﬁ Å ½ ²"]


def write(name, source, **lists):
    """One item a line."""
    parts = [f'{json.dumps("source")}: {json.dumps(source)}']
    for key, items in lists.items():
        lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in items)
        parts.append(f'"{key}": [\n{lines}\n]')
    (HERE / name).write_text("{" + ",\n".join(parts) + "}\n")


def tokenizer_cases():
    text_samples.CORPUS = text_samples.CORPUS[:6]
    large = text_samples.byte_trainer
    text_samples.byte_trainer = lambda size=300: large(size)
    out = []
    for name in NAMES:
        tokenizer = text_samples.PIPELINES[name]()
        alphabet = text_samples.OLD if name in text_samples.OLD_TABLES else text_samples.ASSIGNED
        texts = AWKWARD + [t for t in text_samples.random_texts(60, 3, alphabet) if 0 < len(t) < 60][:12]
        cases = []
        for text in texts:
            ids = tokenizer.encode(text).ids
            cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
        out.append({"name": name, "lossless": name in LOSSLESS, "tokenizer": json.loads(tokenizer.to_str()), "cases": cases})
    return out


def template_cases():
    variables = [VARIABLES]
    for messages, tools in [(m, None) for m in CONVERSATIONS[:5]] + [(CONVERSATIONS[3], TOOLS)]:
        variables.append({"messages": messages, "tools": tools, "add_generation_prompt": tools is None, "bos_token": "<s>",
                          "eos_token": "</s>", "date_string": "26 Jul 2024"})
    templates, cases = list(TEMPLATES.values()), []
    for template in range(len(templates)):
        cases += [[template, v, oracle(templates[template], variables[v])] for v in range(1, len(variables))]
    rng = random.Random(12)
    while len(templates) < 260:
        template = random_template(rng)
        text = oracle(template, VARIABLES)
        if len(template) < 200 and len(text or "") < 200 and not DIFFERS.search(template + (text or "")):
            cases.append([len(templates), 0, text])
            templates.append(template)
    return {"variables": variables, "templates": templates, "cases": cases}


if __name__ == "__main__":
    write("tokenizer_cases.json", f"make_cases.py, tokenizers {tokenizers.__version__}", tokenizers=tokenizer_cases())
    write("template_cases.json", f"make_cases.py, jinja2 {jinja2.__version__}", **template_cases())

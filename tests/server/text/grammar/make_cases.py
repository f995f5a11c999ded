"""Writes grammar_cases.json, which text_test compares with: what PyPI `jsonschema` says of random instances of random schemas,
and Python's `re` of random texts. Run it by hand, with the Python environment of the tests, where the lists change."""

import json
import random
import re
from importlib import metadata
from pathlib import Path

import jsonschema

from random_schemas import mutated, ordered, random_document, sample, written

ATOMS = ["a", "b", "c", "\\d", "\\w", "\\s", ".", "[ab]", "[^a]", "[a-c1]", "[^\\d]", "[\\w-]", "\\.", "\\n", "\\x41", "\\u00e9", "[é-ü]",
         "\\D", "\\W", "\\S", "-", "{", "a{", "}", "]", "😀", "[^\\W]", "\\-"]
QUANTIFIERS = ["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "*?", "+?", "{2,}"]


def random_pattern(rng, depth):
    def atom():
        if depth > 0 and rng.random() < 0.25:
            return rng.choice(["(%s)", "(?:%s)", f"(?P<n{rng.randrange(10**6)}>%s)"]) % random_pattern(rng, depth - 1)
        return rng.choice(ATOMS)

    def sequence():
        return "".join(atom() + rng.choice(QUANTIFIERS) for _ in range(rng.randint(0, 3)))

    return "|".join(sequence() for _ in range(rng.choice([1, 1, 2, 3])))


def pattern_cases(rng):
    out = []
    while len(out) < 300:
        pattern = random_pattern(rng, 2)
        texts = {"".join(rng.choice("aabbcc1 .-\nA_{}]") for _ in range(rng.randint(0, 5))) for _ in range(12)}
        matches = [text for text in sorted(texts) if re.fullmatch(pattern, text)]
        out.append({"pattern": pattern, "right": matches, "wrong": sorted(texts - set(matches))[:6]})
    return out


def schema_cases(rng):
    out = []
    while len(out) < 220:
        schema = random_document(rng)
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        right, wrong = set(), set()
        for _ in range(8):
            value = sample(rng, schema, schema)
            for instance in (value, mutated(rng, value)):
                text = written(ordered(instance, schema, schema))
                (right if validator.is_valid(instance) else wrong).add(text)
        if "anyOf" in written(schema):  # members in the order of which of them?
            right = {text for text in right if "{" not in text}
        if len(written(schema)) < 700 and right:
            out.append({"schema": schema, "right": sorted(right)[:5], "wrong": sorted(wrong)[:6]})
    return out


if __name__ == "__main__":
    cases = {"patterns": pattern_cases(random.Random(5)), "schemas": schema_cases(random.Random(6))}
    parts = [f'"source": "make_cases.py, jsonschema {metadata.version("jsonschema")}"']
    for key, items in cases.items():
        parts.append(f'"{key}": [\n' + ",\n".join(json.dumps(item, ensure_ascii=False) for item in items) + "\n]")
    (Path(__file__).parent / "grammar_cases.json").write_text("{" + ",\n".join(parts) + "}\n")

"""ark-render against Jinja2 set up as transformers does it: equal text, and errors where it has errors."""

import copy
import json
import os
import random
import re
import shutil
import subprocess
import time
from datetime import datetime

import jinja2
import jinja2.ext
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

import ark_server
from ark_server import BIN, FIXTURES
from chat_templates import CALL, CONVERSATIONS, TEMPLATES, TOOLS
from template_fuzz import VARIABLES, random_template

BINARY = BIN / "ark-render"
NOW = int(time.time())
# Beyond 64-bit integers, and where Python prints addresses, the two differ by design.
DIFFERS = re.compile(r"\d{17}| object at 0x|<built-in|<bound method|<function|<Macro|Markup\(")

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")


class Generation(jinja2.ext.Extension):
    """{% generation %}: prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: datetime.fromtimestamp(NOW).strftime(format)
    return env


ENVIRONMENT = environment()


def oracle(template, variables):
    """The text, or None where Jinja2 raises."""
    try:
        return ENVIRONMENT.from_string(template).render(**copy.deepcopy(variables))  # |indent changes lists in place
    except Exception:  # whatever a template's Python raises
        return None


def ark(lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    run = subprocess.run([BINARY, "--lines", "--now", str(NOW)], input=text, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.split("\n") if line]


def compare(cases):
    answers = ark([{"template": template, "variables": variables} for template, variables in cases])
    assert len(answers) == len(cases)
    texts = 0
    for (template, variables), answer in zip(cases, answers):
        expected = oracle(template, variables)
        texts += expected is not None
        assert answer.get("text") == expected, (template, variables, answer, expected)
    return texts


@pytest.mark.parametrize("name", TEMPLATES)
def test_model_family(name):
    cases = []
    for messages in CONVERSATIONS:
        for tools in (None, TOOLS):
            for generate in (False, True):
                for extra in ({}, {"enable_thinking": False, "tools_in_user_message": False}):
                    cases.append((TEMPLATES[name], {
                        "messages": messages, "tools": tools, "documents": None, "add_generation_prompt": generate,
                        "bos_token": "<s>", "eos_token": "</s>", **extra}))
    assert compare(cases) >= 16


@pytest.mark.parametrize("folder", ["smollm2-135m-instruct", "tiny-tokenizer"])
def test_fixture_template(folder):
    file = FIXTURES / folder / "tokenizer_config.json"
    if not file.exists():
        pytest.skip(f"no {file}")
    template = json.loads(file.read_text())["chat_template"]
    cases = [(template, {"messages": m, "tools": None, "add_generation_prompt": g}) for m in CONVERSATIONS for g in (0, 1)]
    assert compare(cases) >= 6


@pytest.mark.parametrize("seed", range(8 if ark_server.FULL else 1))
def test_random_templates(seed):
    rng, count = random.Random(seed), 2000 if ark_server.FULL else 800
    cases = [(random_template(rng), VARIABLES) for _ in range(count)]
    kept = [case for case in cases if not DIFFERS.search(case[0] + (oracle(*case) or ""))]
    assert compare(kept) > 0.35 * count


WHITE_SPACE = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc\n",
    "  {%+ if true %}\n x {% endif +%}\n y", "{# c #}\n a\n  {#- c -#}  \nb", "x {{- 1 -}} \n y\n\n", "\n\n{{ 1 }}\n\n",
    "{% raw %}\n {{ x }} {% endraw %}\n y", "  {% raw -%} a {%- endraw %}  b", "{{ '}}' }}{{ {'a': {'b': 1}}['a'] }}",
    "a\r\nb\rc\n  {% set x = 1 %}\n{{ x }}\r\n", "\t {% for i in [1,2] %}\n\t {{ i }}\n\t {% endfor %}\n", "{%if 1%}a{%endif%}b",
    "x  {% set a = 1 %}  y\n {#- -#} z", "{{ \"a\\nb\\x41\\u00e9\\'\\q\" }}", "{{ 1 if true }}{{ 0 if false }}|",
    "{{ 1000 + 31 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 10.25 }}", "a{% raw %}{%{% x %}{% endraw -%} b", "{% for i in range(3) %}{{ i }}{% else %}e{% endfor %}",
]


def test_white_space_and_literals():
    assert compare([(template, {}) for template in WHITE_SPACE]) == len(WHITE_SPACE)


def test_what_does_not_exist_is_named_when_the_template_is_loaded():
    cases = ["{{ 1 }}\n{{ x|groupby('a') }}", "\n{{ x is escaped }}", "\n{% for a in b|batch(2) %}{% endfor %}"]
    for template, what in zip(cases, ("filter named 'groupby'", "test named 'escaped'", "filter named 'batch'")):
        (answer,) = ark([{"template": template, "variables": {}}])
        assert answer["error"] == f"chat template, line 2: no {what}"


def test_what_does_not_exist_in_a_branch_that_is_not_taken():
    """As in Jinja: templates guard filters of other engines (fromjson) by a condition."""
    templates = ["{% if x %}{{ x|fromjson }}{% else %}none{% endif %}", "{{ x|fromjson if x else 'none' }}"]
    assert compare([(template, {}) for template in templates]) == 2
    assert compare([(template, {"x": "{}"}) for template in templates]) == 0


def test_lists_are_sorted_by_several_attributes():
    rows = [{"a": a, "b": {"c": c}} for a, c in ((2, "x"), (1, "Y"), (2, "W"), (1, "x"), (1, "X"))]
    cases = [("{{ rows|sort(" + arguments + ")|tojson }}", {"rows": rows})
             for arguments in ("attribute='a,b.c'", "attribute='b.c,a', reverse=true", "attribute='a,b.c', case_sensitive=true", "attribute='a'")]
    assert compare(cases) == len(cases)


def test_format_of_numbers():
    specs = ["02d", ".2f", "5d", "08.3f", "f", "d", "3.0f", ""]
    cases = [("{{ '<{:" + spec + "}>'.format(x) }}{{ '{n:" + spec + "}'.format(n=x) }}", {"x": x})
             for spec in specs for x in (0, 7, -7, 12345, 2.5, -0.125, 1e20, "s")]
    assert compare(cases) > 40


def test_hostile_templates_end_with_an_error():
    nested = "{% for i in range(99999) %}" * 4 + "x" + "{% endfor %}" * 4
    hostile = [
        nested, "{{ 'x' * 1000000000000 }}", "{{ [1] * 1000000000000 }}", "{% set x = 'ab' * 100000 %}{{ x * 100000 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ " + "(" * 100000 + "1" + ")" * 100000 + " }}",
        "{{ " + "[" * 100000 + " }}", "{{ 1" + "+1" * 100000 + " }}", "{{ " + "not " * 100000 + "1 }}",
        "{% if 1 %}" * 100000, "{{ 'a'" + "|upper" * 100000 + " }}", "{{ x" + ".a" * 100000 + " }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "{{ 9999999 * 9999999999999 }}", "{{ '{:999999999d}'.format(1) }}",
        "{{ 'x' * 10000000000 }}", "{{ ('a' * 100000).replace('a', 'b' * 100000) }}", "{{ [].append(1) }}",
        "{{ ''.__class__.__mro__ }}", "{% include 'x' %}", "{{ range(1000000000) }}", "{{ 'a'|indent(1000000000) }}",
        "{{ " + "a if b else " * 100000 + "c }}", "{{ 5 // 0 }}", "{{ 1 % 0 }}", "{{ messages[0].x.y }}", "{{",
        "{% for x in [[1,2],[3]] %}{% for a, b in [x] %}{{ a }}{% endfor %}{% endfor %}",
    ]
    # Small values that are large when walked over: lists that hold one list twice, and so on.
    shared = "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(90) %}" \
             "{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}"
    uses = ["ns.s == ns.t", "ns.s < ns.t", "ns.s in [ns.t]", "ns.s", "ns.s|tojson", "ns.s|string|length", "[ns.s, ns.t]|sort",
            "[ns.s]|unique", "{}[ns.s, 1]", "ns.s ~ 'x'", "[ns.s].index(ns.t)", "[ns.s]|join", "[ns.s]|map('string')|list"]
    hostile += [shared + "{{ " + use + " }}{{ 5 // 0 }}" for use in uses]
    hostile += ["{% raw %}" + "{%" * 500000]
    start = sum(os.times()[2:4])  # of processes that have ended: what others do on the machine does not count
    for template, answer in zip(hostile, ark([{"template": t, "variables": {"messages": [{}]}} for t in hostile])):
        assert "chat template" in answer.get("error", ""), (template[:80], str(answer)[:200])
        assert re.search(r"line \d+", answer["error"]), answer
    assert sum(os.times()[2:4]) - start < 60


def test_error_names_its_line():
    (answer,) = ark([{"template": "a\nb\n{{ raise_exception('no such role') }}", "variables": {}}])
    assert answer["error"] == "chat template, line 3: no such role"


@pytest.mark.skipif(not ark_server.BINARY.exists(), reason=f"no {ark_server.BINARY}")
def test_named_templates_and_special_tokens(tmp_path):
    """Of a list of templates, the one named tool_use serves chats with tools, as in transformers."""
    for name in ("model.onnx", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ark_server.TINY / name, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config |= {"cls_token": "[C]", "sep_token": {"content": "[S]"}, "mask_token": "[M]", "chat_template": [
        {"name": "tool_use", "template": "tools {{ tools|length }}"},
        {"name": "default", "template": "none {{ cls_token }}{{ sep_token }}{{ mask_token }}"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with ark_server.Server("--model", tmp_path / "model.onnx") as server:
        for tools, wanted in ((None, "none [C][S][M]"), ([], "none [C][S][M]"), ([{"type": "function"}], "tools 1")):
            chat = {"messages": [{"role": "user", "content": "x"}], "tools": tools}
            tokens = server.post("/tokenize", chat).json()["tokens"]
            assert server.post("/detokenize", {"tokens": tokens}).json()["prompt"] == wanted


TOLD = {"tools": TOOLS, "bos_token": "<s>", "eos_token": "</s>"}
ENDS = r"<\|im_end\|>|<\|eot_id\|>|</s>|<\|end_of_sentence\|>"


@pytest.mark.parametrize("name", ["llama3", "mistral", "qwen2.5", "qwen3", "deepseek"])
def test_calls_are_read_from_what_published_templates_print_of_them(name):
    """Jinja2 writes a call by the template; from that text alone ark has the call again."""
    user, text = {"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "PLAIN"}
    before = oracle(TEMPLATES[name], TOLD | {"messages": [user, text]}).partition("PLAIN")[0]
    said = oracle(TEMPLATES[name], TOLD | {"messages": [user, CALL]})
    before = before.rstrip(" ")
    assert said.startswith(before)
    answer = re.split(ENDS, said[len(before):])[0]
    assert "get_weather" in answer
    beside = "" if name == "llama3" else "Let me see.\n"  # where nothing marks a call, the answer is one
    [read, other] = ark([TOLD | {"template": TEMPLATES[name], "answer": said} for said in (beside + answer, "Hello {")])
    [call] = read["calls"]
    assert (read["text"], call) == (beside.strip(), CALL["tool_calls"][0]["function"])
    assert other == {"text": "Hello {", "calls": []}


def test_templates_that_print_no_calls_are_named():
    for name in ("chatml", "llama2", "gemma", "phi3"):
        [answer] = ark([TOLD | {"template": TEMPLATES[name], "answer": "x"}])
        assert "prints no calls" in answer["error"], name

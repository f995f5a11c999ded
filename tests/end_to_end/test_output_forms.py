"""Texts of a given form: response_format, its other names and forced calls of tools. What comes is judged by jsonschema, Python's
re and OpenAI's client; a random model has no wish to write any of it."""

import concurrent.futures
import json
import math
import re
import shutil
import subprocess
import sys

import jsonschema
import pydantic
import pytest

import plain_model
from ark_server import ROOT, TINY, Server

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "Go."}]

SCHEMAS = {
    "enum": {"enum": ["red", "green", 3, None, {"a": [1]}]},
    "integer": {"type": "integer", "minimum": -20, "maximum": 117},
    "number": {"type": "number", "minimum": 0, "exclusiveMaximum": 2},
    "object": {"type": "object", "required": ["name", "age"], "additionalProperties": False,
               "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                              "pet": {"anyOf": [{"const": "cat"}, {"type": "null"}]}}},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [{"const": "x"}, {"type": "boolean"}], "items": False, "minItems": 2},
    "date": {"type": "string", "format": "date"},
    "pattern": {"type": "string", "pattern": "^[A-F]{2}-[0-9]{3}$"},
    "definitions": {"$defs": {"point": {"type": "object", "properties": {"x": {"enum": [0, 1]}, "y": {"enum": [0, 1]}},
                                        "required": ["x", "y"], "additionalProperties": False}},
                    "type": "array", "items": {"$ref": "#/$defs/point"}, "minItems": 1, "maxItems": 2},
}
FUNCTIONS = {
    "get_weather": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                    "required": ["city"], "additionalProperties": False},
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in FUNCTIONS.items()]


def complete(server, **more):
    answer = server.post(COMPLETE, {"prompt": "Once", "max_tokens": 110, "seed": 1} | more)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def form_of(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}}


def check(text, schema):
    jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())


def roomy(folder, template):
    """A random model with TINY's tokenizer and a longer context."""
    subprocess.run([sys.executable, ROOT / "models" / "llama_random.py", folder / "model.onnx", "--context", "1024", "--hidden", "64",
                    "--layers", "1", "--intermediate", "64", "--vocab", "512"], check=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_text_is_what_its_schema_says(tiny, name):
    for options in ({"n": 6, "seed": 7}, {"temperature": 0}, {"n": 4, "top_p": 0.5, "top_k": 20, "repetition_penalty": 1.3}):
        for choice in complete(tiny, **form_of(SCHEMAS[name]), **options):
            assert choice["finish_reason"] == "stop", choice
            check(choice["text"], SCHEMAS[name])


def test_an_object_is_one_or_cut_short(tiny):
    for choice in complete(tiny, response_format={"type": "json_object"}, n=8, max_tokens=60):
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["text"]), dict)
        else:
            assert choice["text"].lstrip().startswith("{")
    prompt = {"prompt": "Once", "max_tokens": 40, "response_format": {"type": "json_object", "schema": {"maxProperties": 0, "type": "object"}}}
    assert json.loads(complete(tiny, **prompt)[0]["text"]) == {}


def test_all_names_ask_for_the_same(tiny):
    schema, pattern, choices = SCHEMAS["object"], "[a-c]{3,5}|[0-9]{1,4}x", ["one", "two", "three hundred"]
    gbnf = 'root ::= item ("," item){0,3}\nitem ::= [a-c] | "(" root ")"'
    names = [
        [form_of(schema), {"guided_json": schema}, {"guided_json": json.dumps(schema)}, {"json_schema": schema},
         {"structured_outputs": {"json": schema}}, {"response_format": {"type": "json_object", "schema": schema}}],
        [{"guided_regex": pattern}, {"regex": pattern}, {"structured_outputs": {"regex": pattern}},
         {"response_format": {"type": "regex", "pattern": pattern}}],
        [{"guided_choice": choices}, {"structured_outputs": {"choice": choices}}],
        [{"guided_grammar": gbnf}, {"grammar": gbnf}, {"ebnf": gbnf}, {"structured_outputs": {"grammar": gbnf}},
         {"response_format": {"type": "grammar", "grammar": gbnf}}],
    ]
    texts = [{tuple(c["text"] for c in complete(tiny, n=3, **options)) for options in group} for group in names]
    assert [len(t) for t in texts] == [1, 1, 1, 1]
    objects, matches, words, sums = [next(iter(t)) for t in texts]
    for text in objects:
        check(text, schema)
    assert all(re.fullmatch(pattern, text) for text in matches)
    assert all(text in choices for text in words)
    assert all(set(text) <= set("abc(),") and text.count("(") == text.count(")") for text in sums)


def test_a_stream_and_company_change_nothing(tiny):
    bodies = [{"prompt": [5 + i], "max_tokens": 100, "seed": i, **form_of(SCHEMAS[name])} for i, name in enumerate(SCHEMAS)]
    bodies += [{"prompt": [50 + i], "max_tokens": 30, "seed": i} for i in range(4)]
    alone = [complete(tiny, **body)[0]["text"] for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        assert list(pool.map(lambda body: complete(tiny, **body)[0]["text"], bodies)) == alone
    with tiny.client() as client:
        for body, text in zip(bodies, alone):
            chunks = client.completions.create(model=tiny.model, stream=True, extra_body=body, prompt=body["prompt"])
            assert "".join(c.choices[0].text for c in chunks) == text


def test_log_probabilities_are_of_what_may_come(tiny):
    choice = complete(tiny, guided_regex="[ab]c", logprobs=5)[0]
    scores = choice["logprobs"]
    for token, own, best in zip(scores["tokens"], scores["token_logprobs"], scores["top_logprobs"]):
        assert math.isfinite(own) and all(math.isfinite(p) for p in best.values()) and token in best
        assert sum(math.exp(p) for p in best.values()) <= 1 + 1e-4
    assert {t[:1] for t in scores["top_logprobs"][0]} <= {"a", "b"}


def test_stops_and_least_lengths_keep_their_meaning(tiny):
    assert complete(tiny, guided_regex="a{30}", stop="aaaa")[0]["text"] == ""
    for seed in range(4):
        choice = complete(tiny, guided_regex="(ab ){1,20}", min_tokens=12, return_token_ids=True, seed=seed)[0]
        assert choice["finish_reason"] == "stop" and re.fullmatch("(ab ){1,20}", choice["text"])
        assert len(choice["token_ids"]) >= 12
    assert complete(tiny, guided_choice=["yes"], ignore_eos=True)[0]["finish_reason"] == "stop"


def test_the_client_parses_what_it_asked_for(client, tiny):
    class Step(pydantic.BaseModel):
        explanation: str = pydantic.Field(max_length=5)
        done: bool

    class Answer(pydantic.BaseModel):
        steps: list[Step] = pydantic.Field(min_length=1, max_length=2)
        grade: int = pydantic.Field(ge=1, le=6)

    answer = client.chat.completions.parse(model=tiny.model, messages=USER, response_format=Answer, max_tokens=100, seed=3)
    assert answer.choices[0].finish_reason == "stop" and isinstance(answer.choices[0].message.parsed, Answer)


NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("choice", ["required", NAMED, {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}],
                         ids=["required", "named", "allowed"])
@pytest.mark.parametrize("shows", ["{% for t in tools or [] %}{{ t.function.name }} {% endfor %}", ""])
def test_calls_can_be_forced(tmp_path, choice, shows):
    """By templates that ask for no <tool_call>, and by one that shows no tools: then the first message does."""
    with Server("--model", roomy(tmp_path, shows + "{{ messages[0].content }}")) as server:
        body = {"messages": USER, "tools": TOOLS, "tool_choice": choice, "max_tokens": 400, "parallel_tool_calls": False}
        prompt = server.post("/apply-template", {key: body[key] for key in ("messages", "tools", "tool_choice")}).json()["prompt"]
        assert prompt.count("get_weather") == 1 and prompt.endswith("Go.")
        for seed in range(3):
            whole = server.post(CHAT, body | {"seed": seed}).json()["choices"][0]
            assert whole["finish_reason"] == "tool_calls" and whole["message"]["content"] is None, whole
            calls = whole["message"]["tool_calls"]
            for call in calls:
                jsonschema.validate(json.loads(call["function"]["arguments"]), FUNCTIONS[call["function"]["name"]])
            assert len(calls) == 1 and (choice == "required" or calls[0]["function"]["name"] == "get_weather")
            with server.client() as client:
                chunks = list(client.chat.completions.create(model=server.model, stream=True, seed=seed, extra_body=body, messages=USER))
            told = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
            assert [(c.function.name, c.function.arguments) for c in told] == [
                (c["function"]["name"], c["function"]["arguments"]) for c in calls]
        refused = server.post(CHAT, body | {"tool_choice": {"type": "function", "function": {"name": "nobody"}}})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "tool_choice"
        # Some clients name the form of the final answer, too (instructor): there is none beside a call.
        both = server.post(CHAT, body | {"seed": 2, "response_format": {"type": "json_object"}}).json()["choices"][0]
        assert [call["function"] for call in both["message"]["tool_calls"]] == [call["function"] for call in calls], both


def test_calls_and_a_form_go_together(tmp_path):
    """As agents ask for: a call, or the final answer."""
    asks = """{% if tools %}{{ tools | length }} <tool_call>{"name": "x", "arguments": {}}</tool_call>{% endif %}{{ messages[0].content }}"""
    with Server("--model", roomy(tmp_path, asks)) as server:
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"enum": [1, 2]}}}}}]
        seen = set()
        for seed in range(6):
            body = {"messages": USER, "tools": tools, "max_tokens": 300, "seed": seed, "logit_bias": {"30": 5 if seed % 2 else -5}, **form_of(SCHEMAS["array"])}
            choice = server.post(CHAT, body).json()["choices"][0]
            if choice["finish_reason"] == "length":
                continue
            seen.add(choice["finish_reason"])
            if choice["finish_reason"] == "stop":
                check(choice["message"]["content"], SCHEMAS["array"])
            for call in choice["message"].get("tool_calls", []):
                assert set(json.loads(call["function"]["arguments"]).items()) <= {("x", 1), ("x", 2)}
        assert seen == {"stop", "tool_calls"}
        refused = server.post(CHAT, {"messages": USER, "tools": tools, "guided_regex": "a"})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "tools"


def test_a_real_model_writes_sense(smollm2_model):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
              "required": ["city", "country"], "additionalProperties": False}
    with Server("--model", smollm2_model) as server:
        question = [{"role": "user", "content": "Which city is the capital of France? Answer as JSON with city and country."}]
        body = {"messages": question, "max_tokens": 60, "temperature": 0, **form_of(schema)}
        choice = server.post(CHAT, body).json()["choices"][0]
        check(choice["message"]["content"], schema)
        assert choice["finish_reason"] == "stop" and "Paris" in choice["message"]["content"]


def test_processes_and_a_model_served_plain_keep_to_it_too(tiny):
    body = {"prompt": [5], "max_tokens": 100, **form_of(SCHEMAS["object"]), "n": 3, "temperature": 0.8}
    texts = [c["text"] for c in complete(tiny, **body)]
    with Server("--model", TINY, "--tp", 2, "--processes") as server:  # the model's process is another one
        assert [c["text"] for c in complete(server, **body)] == texts
    with Server("--model", plain_model.folder()) as server:
        for choice in complete(server, **body):
            assert choice["finish_reason"] == "stop"
            check(choice["text"], SCHEMAS["object"])


@pytest.mark.parametrize("field, value, words", [
    ("guided_json", {"type": "object", "not": {}}, "not"),
    ("guided_json", {"$ref": "https://example.com/x"}, "$ref"),
    ("guided_json", {"properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["a"]}, "#/properties/a: no number is between its bounds"),
    ("guided_json", "{", "guided_json"),
    ("guided_json", 5, "guided_json"),
    ("guided_regex", "a(b", "guided_regex"),
    ("guided_regex", r"(a)\1", "guided_regex"),
    ("guided_regex", "(" * 100_000, "guided_regex"),
    ("guided_choice", [], None),
    ("guided_choice", ["a", ""], "empty"),
    ("guided_choice", "a", "array"),
    ("guided_grammar", "root ::= root \"a\" | \"b\"", "guided_grammar"),
    ("guided_grammar", "start ::= \"a\"", "root"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}, "schema"),
    ("response_format", {"type": "regex"}, "pattern"),
    ("structured_outputs", {"whitespace_pattern": " *", "json_object": True}, "whitespace_pattern"),
])
def test_what_cannot_be_kept_to_is_refused(tiny, field, value, words):
    answer = tiny.post(COMPLETE, {"prompt": "x", "max_tokens": 5, field: value})
    if words is None:
        assert answer.status_code == 200  # asks for nothing
        return
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"].startswith(field) and words in error["message"], answer.text
    assert len(error["message"]) < 500


def test_two_forms_are_refused(tiny):
    answer = tiny.post(COMPLETE, {"prompt": "x", "guided_regex": "a", "response_format": {"type": "json_object"}})
    assert answer.status_code == 400 and "beside response_format.type" in answer.json()["error"]["message"]

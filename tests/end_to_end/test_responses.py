"""/v1/responses through OpenAI's own client, whose types each answer and event must have, beside the same chat."""

import json
import shutil

import jsonschema
import numpy as np
import openai.types.responses as types
import pydantic
import pytest

from ark_server import TINY, Server
from test_failing_models import untied
from test_output_forms import FUNCTIONS, TOOLS, roomy

DIFFERENT = ("id", "call_id", "item_id", "created_at", "completed_at", "input_tokens_details")
RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
GREEDY = {"temperature": 0, "max_output_tokens": 12}
ANSWER, EVENT = pydantic.TypeAdapter(types.Response), pydantic.TypeAdapter(types.ResponseStreamEvent)


def ask(server, input="Hi", **options):
    answer = server.post(RESPONSES, {"input": input, **GREEDY, **options})
    assert answer.status_code == 200, answer.text
    ANSWER.validate_python(answer.json())
    return answer.json()


def stream(server, input="Hi", **options):
    """The events, each of which says its type twice; nothing else is sent."""
    with server.http() as http, http.stream("POST", RESPONSES, json={"input": input, **GREEDY, **options, "stream": True}) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"] == "text/event-stream"
        blocks = "".join(answer.iter_text()).split("\n\n")
    assert blocks.pop() == ""
    events = []
    for i, block in enumerate(blocks):
        kind, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {events[-1]['type']}" and events[-1]["sequence_number"] == i
        EVENT.validate_python(events[-1])
    return events


def chat(server, messages, **options):
    answer = server.post(CHAT, {"messages": messages, "temperature": 0, "max_completion_tokens": 12, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_of(response):
    (message,) = response["output"]
    (part,) = message["content"]
    return part["text"]


def same(one, other):
    """But for names, times and what was cached."""
    def plain(value):
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in DIFFERENT}
        return [plain(v) for v in value] if isinstance(value, list) else value
    return plain(one) == plain(other)


def test_a_response_is_what_the_chat_answers(tiny):
    answer = ask(tiny, instructions="Be brief.", metadata={"a": "b"})
    whole = chat(tiny, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert text_of(answer) == whole["choices"][0]["message"]["content"]
    status = {"length": "incomplete", "stop": "completed"}[whole["choices"][0]["finish_reason"]]
    assert (answer["object"], answer["model"], answer["status"]) == ("response", tiny.model, status)
    assert (answer["instructions"], answer["metadata"], answer["max_output_tokens"]) == ("Be brief.", {"a": "b"}, 12)
    usage = whole["usage"]
    assert [answer["usage"][name] for name in ("input_tokens", "output_tokens", "total_tokens")] == [
        usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    assert answer["id"].startswith("resp_") and answer["output"][0]["id"].startswith("msg_")


def test_a_stream_comes_to_the_same(tiny):
    statuses = set()
    for options in (GREEDY, {"max_output_tokens": 3}, {"max_output_tokens": 0}, {"instructions": "Be brief."},
                    {"include": ["message.output_text.logprobs"], "top_logprobs": 2}):
        whole, events = ask(tiny, **options), stream(tiny, **options)
        kinds = [event["type"].removeprefix("response.") for event in events]
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        assert kinds == ["created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * len(deltas),
                         "output_text.done", "content_part.done", "output_item.done", whole["status"]]
        statuses.add((whole["status"], (whole["incomplete_details"] or {}).get("reason")))
        assert "".join(event["delta"] for event in deltas) == text_of(whole) == events[-4]["text"]
        assert same(events[-1]["response"], whole) and same(events[-2]["item"], whole["output"][0])
        (part,) = whole["output"][0]["content"]
        assert sum((event["logprobs"] for event in deltas), []) == part["logprobs"] == events[-4]["logprobs"]
        assert len(part["logprobs"]) == (whole["usage"]["output_tokens"] if "include" in options else 0)
        assert all(len(score["top_logprobs"]) == 2 for score in part["logprobs"])
    assert statuses == {("incomplete", "max_output_tokens"), ("completed", None)}


def test_items_are_the_chats_messages(tiny):
    items = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
             {"type": "reasoning", "id": "rs_1", "summary": []},
             {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
              "content": [{"type": "output_text", "text": "So", "annotations": []}, {"type": "refusal", "refusal": "no"}]},
             {"type": "message", "role": "user", "content": "Go on"}]
    messages = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "So\nno"}, {"role": "user", "content": "Go on"}]
    answer, whole = ask(tiny, items), chat(tiny, messages)
    assert text_of(answer) == whole["choices"][0]["message"]["content"]
    assert answer["usage"]["input_tokens"] == whole["usage"]["prompt_tokens"]
    turn = ask(tiny, [*items, *answer["output"], {"role": "user", "content": "And?"}])  # what was answered is an item
    assert turn["usage"]["input_tokens"] > answer["usage"]["total_tokens"]


def tools_of(tools):
    return [{"type": "function", **tool["function"]} for tool in tools]


PRINTS = """{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or []
%}<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}"""


def test_functions_are_called_and_their_results_read(tmp_path):
    with Server("--model", roomy(tmp_path, PRINTS)) as server:
        named = {"type": "function", "name": "get_weather"}
        for choice, many in (("required", False), ({"type": "allowed_tools", "mode": "required", "tools": [named]}, False), (named, True)):
            options = {"tools": tools_of(TOOLS), "tool_choice": choice, "parallel_tool_calls": many, "max_output_tokens": 400, "temperature": 1, "seed": 3}
            whole, events = ask(server, **options), stream(server, **options)
            assert whole["status"] == "completed" and same(events[-1]["response"], whole)
            assert (whole["tools"], whole["tool_choice"]) == (options["tools"], choice)
            (call,) = whole["output"]
            jsonschema.validate(json.loads(call["arguments"]), FUNCTIONS[call["name"]])
            assert [event["type"].removeprefix("response.") for event in events] == [
                "created", "in_progress", "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
                "output_item.done", "completed"]
            assert events[3]["delta"] == events[4]["arguments"] == call["arguments"] and same(events[5]["item"], call)
        scored = options | {"include": ["message.output_text.logprobs"]}  # tokens of calls have no text to stand beside
        whole, events = ask(server, **scored), stream(server, **scored)
        assert same(events[-1]["response"], whole) and [item["type"] for item in whole["output"]] == ["function_call"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": [{"type": "input_text", "text": "sunny"}]}
        items = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Let me see"}, call, call, result, result]
        calls = [{"id": call["call_id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}] * 2
        output = {"role": "tool", "tool_call_id": call["call_id"], "content": "sunny"}
        messages = [items[0], items[1] | {"tool_calls": calls}, output, output]
        answer = ask(server, items)
        both = chat(server, messages)
        assert (text_of(answer), answer["usage"]["input_tokens"]) == (both["choices"][0]["message"]["content"], both["usage"]["prompt_tokens"])
        assert ask(server, [items[0], call, result])["usage"]["input_tokens"] == chat(
            server, [items[0], {"role": "assistant", "tool_calls": calls[:1]}, output])["usage"]["prompt_tokens"]
        refused = server.post(RESPONSES, {"input": items, "tools": [{"type": "web_search"}]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools[0].type")


def test_the_client_streams_and_parses(client, tiny):
    class Answer(pydantic.BaseModel):
        grade: int = pydantic.Field(ge=1, le=6)
        why: str = pydantic.Field(max_length=5)

    parsed = client.responses.parse(model=tiny.model, input="Hi", text_format=Answer, max_output_tokens=100, extra_body={"seed": 3})
    assert isinstance(parsed.output_parsed, Answer) and parsed.status == "completed"
    assert parsed.text.format.type == "json_schema"
    answer = client.responses.create(model=tiny.model, input="Hi", **GREEDY)
    with client.responses.stream(model=tiny.model, input="Hi", **GREEDY) as events:
        texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == answer.output_text
    form = {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 100, "seed": 3}
    with client.responses.stream(model=tiny.model, input="Hi", extra_body=form) as events:
        final = events.get_final_response() if any(event.type == "response.completed" for event in events) else None
    assert final is None or isinstance(json.loads(final.output_text), dict)


def test_a_failure_on_the_way_is_an_event(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, tmp_path)
    with Server("--model", untied(TINY / "model.onnx", tmp_path / "model.onnx", lambda head: head * np.nan)) as server:
        events = stream(server, "Hi", max_output_tokens=50)
    assert events[-1]["type"] == "response.failed" and events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["message"]


@pytest.mark.parametrize("body, param, words", [
    ({}, "input", "must be a string or an array of items"),
    ({"input": []}, "input", "must not be empty"),
    ({"input": 5}, "input", "must be a string or an array of items"),
    ({"input": [5]}, "input[0]", "must be an object, not an integer"),
    ({"input": "Hi", "messages": None}, "messages", "use input"),
    ({"input": "Hi", "metadata": 5}, "metadata", "must be an object"),
    ({"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": 5}]}, "tools[0].parameters", "must be an object"),
    ({"input": "Hi", "text": {"format": {"type": "text"}}, "response_format": {"type": "text"}}, "response_format", "one is enough"),
    ({"input": [{"role": "assistant", "content": "So"}, {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{"}]},
     "input[1].arguments", "arguments"),
    ({"input": [{"role": "user", "content": "Hi"}, {"role": "king", "content": "Hi"}]}, "input[1].role", "is king"),
    ({"input": [{"role": "user"}]}, "input[0].content", "must be a string"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type", "only text"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "item_reference"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{"}]}, "input[0].arguments", "arguments"),
    ({"input": [{"type": "function_call", "call_id": "a", "arguments": "{}"}]}, "input[0].name", "must be a string"),
    ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input[0].output", "must be a string"),
    ({"input": "Hi", "messages": []}, "messages", "use input"),
    ({"input": "Hi", "previous_response_id": "resp_1"}, "previous_response_id", "nothing is kept"),
    ({"input": "Hi", "conversation": "conv_1"}, "conversation", "is not supported"),
    ({"input": "Hi", "background": True}, "background", "is not supported"),
    ({"input": "Hi", "prompt": {"id": "x"}}, "prompt", "is not supported"),
    ({"input": "Hi", "truncation": "auto"}, "truncation", "must be disabled"),
    ({"input": "Hi", "n": 2}, "n", "one answer"),
    ({"input": "Hi", "max_output_tokens": -1}, "max_output_tokens", ""),
    ({"input": "Hi", "max_output_tokens": 100_000}, "max_output_tokens", "maximum context length"),
    ({"input": "Hi " * 500}, "input", "maximum context length"),
    ({"input": "Hi", "temperature": 3}, "temperature", ""),
    ({"input": "Hi", "text": 3}, "text", "must be an object"),
    ({"input": "Hi", "text": {"verbosity": "low"}}, "text.verbosity", "is not supported"),
    ({"input": "Hi", "text": {"format": {"type": "xml"}}}, "text.format.type", ""),
    ({"input": "Hi", "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "strange"}}}}, "text.format", ""),
    ({"input": "Hi", "reasoning": {"effort": "high"}}, "reasoning.effort", "does not look at"),
    ({"input": "Hi", "tool_choice": "required"}, "tool_choice", "no tools"),
    ({"input": "Hi", "tool_choice": {"type": "mcp"}}, "tool_choice.type", "is mcp"),
    ({"input": "Hi", "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools", "must be an array"),
    ({"input": "Hi", "tool_choice": {"type": "allowed_tools", "mode": "none", "tools": []}}, "tool_choice.mode", "must be"),
    ({"input": "Hi", "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}}, "tool_choice",
     "names f"),
    ({"input": "Hi", "tools": [{"type": "function"}]}, "tools[0].name", "must be a string"),
    ({"input": "Hi", "instructions": 3}, "instructions", "must be a string"),
    ({"input": "Hi", "top_logprobs": 21}, "top_logprobs", ""),
    ({"input": "Hi", "adapter": "x"}, "adapter", "is not supported"),
], ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "")
def test_what_is_refused_is_named_as_the_request_names_it(tiny, body, param, words):
    refused = tiny.post(RESPONSES, body)
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["param"].startswith(param) and words in error["message"], error
    others = {"messages", "response_format", "max_completion"} - {param}  # words of /v1/chat/completions
    assert not any(word in error["message"] for word in others), error


@pytest.mark.parametrize("extra", [
    {"store": True}, {"store": None, "include": None, "truncation": "disabled", "background": False, "previous_response_id": None},
    {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "none", "summary": "auto"}, "prompt_cache_key": "a"},
    {"reasoning": None, "text": None, "tools": [], "tool_choice": "auto", "metadata": {}, "service_tier": "auto", "user": "me"},
    {"stream_options": {"include_obfuscation": False}, "max_tool_calls": 3, "safety_identifier": "x", "text": {"format": {"type": "text"}}},
], ids=str)
def test_what_changes_nothing_is_taken(tiny, extra):
    assert text_of(ask(tiny, **extra)) == text_of(ask(tiny))

"""Requests that are wrong: the right 4xx, in OpenAI's envelope, naming the field; and the server serves on."""

import json

import pytest

from ark_server import MEBIBYTE, raw_get, rss_bytes, until

FOUR_KEYS = {"message", "type", "param", "code"}
COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
HUGE = "1" + "0" * 400


def refused(answer, status, param=None):
    """The error's message, after checking status, envelope and the field at fault."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"} and set(body["error"]) == FOUR_KEYS
    error = body["error"]
    assert error["param"] == param, error
    assert isinstance(error["message"], str) and error["message"] and "\n" not in error["message"]
    if param:
        assert param in error["message"], error
    return error


@pytest.fixture(autouse=True)
def serves_on(tiny):
    """After each bad request a good one is answered, and nothing of the bad one remains."""
    yield
    answer = tiny.post(COMPLETE, {"prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": True})
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 2
    assert tiny.process.poll() is None


def raw(tiny, path, body, **options):
    with tiny.http() as http:
        headers = {"Content-Type": "application/json"} | options.pop("headers", {})
        return http.post(path, content=body, headers=headers, **options)


BODIES = {
    "empty": b"", "space": b" \n", "null": b"null", "number": b"3", "string": b'"x"', "array": b"[]",
    "open object": b"{", "trailing comma": b'{"prompt": "x",}', "trailing text": b'{"prompt": "x"} x',
    "two objects": b"{}{}", "single quotes": b"{'prompt': 'x'}", "comment": b'{"prompt": "x" /* c */}',
    "NaN": b'{"prompt": "x", "temperature": NaN}', "Infinity": b'{"prompt": "x", "top_p": -Infinity}',
    "bare word": b'{"prompt": x}', "control character": b'{"prompt": "a\nb"}', "bad escape": b'{"prompt": "\\q"}',
    "lone surrogate": b'{"prompt": "\\ud800"}', "invalid UTF-8": b'{"prompt": "\xff\xfe"}',
    "overlong UTF-8": b'{"prompt": "\xc0\x80"}', "UTF-8 surrogate": b'{"prompt": "\xed\xa0\x80"}',
    "cut UTF-8": b'{"prompt": "\xf0\x9f"}', "UTF-16": '{"prompt": "x"}'.encode("utf-16"),
    "250k brackets": b"[" * 250_000, "250k braces": b'{"a":' * 250_000, "250k closed": b"[" * 250_000 + b"]" * 250_000,
    "brackets in a field": b'{"prompt": ' + b"[" * 250_000 + b"]" * 250_000 + b"}",
    "a million members": b"{" + b",".join(b'"%d":1' % i for i in range(600_000)) + b"}",
    "nul bytes": b"\0" * 1000, "nul behind it": b'{"prompt": [1], "messages": [], "text": "", "tokens": []}\0{', "binary": bytes(range(256)) * 10,
}


@pytest.mark.parametrize("path", [COMPLETE, CHAT, "/tokenize", "/detokenize"])
def test_bodies_that_are_no_json_objects(tiny, path):
    for name, body in BODIES.items():
        error = refused(raw(tiny, path, body), 400)
        assert error["code"] == "invalid_json", name


NUMBERS = {  # field: values out of range
    "max_tokens": [-1, 2**31, 2**63, 2**64, -2**63, 1e300], "min_tokens": [-1, 2**31], "n": [0, -1, 129, 2**40],
    "temperature": [-0.1, 2.1, 1e308, -1e308], "top_p": [-0.1, 1.1], "min_p": [-1, 2], "top_k": [-2, 2**31],
    "presence_penalty": [-2.1, 2.1], "frequency_penalty": [-3, 3], "repetition_penalty": [-1, 101, 0],
    "seed": [2**63, 2**64, 1e30],
}
OTHER_TYPES = {
    "max_tokens": ["1", 1.5, True, [], {}], "n": ["1", 1.5, False], "temperature": ["0", [], True], "top_p": [{}],
    "seed": ["x", 0.5], "stream": ["true", 1, []], "stop": [1, {}, [1], [["x"]]], "logit_bias": [[], "x", 3],
    "user": [1, []], "ignore_eos": ["yes", 0], "return_token_ids": [1], "stream_options": [1, "x"], "model": [1, []],
    "stop_token_ids": ["x", [1.5], [-1], ["a"], [2**40]], "skip_special_tokens": [1], "top_k": [1.5, "x"],
}


@pytest.mark.parametrize("path, base", [(COMPLETE, {"prompt": "Hi"}), (CHAT, {"messages": USER})],
                         ids=["completions", "chat"])
def test_common_fields_out_of_range_or_of_the_wrong_type(tiny, path, base):
    with tiny.http() as http:
        for table in (NUMBERS, OTHER_TYPES):
            for field, values in table.items():
                for value in values:
                    refused(http.post(path, json=base | {field: value}), 400, field)


@pytest.mark.parametrize("prompt", [[1] * 129, [1] * 100_000, [[1], [1] * 100_000], "word " * 1000])
def test_prompts_beyond_the_context_are_told_by_the_code_that_clients_look_for(tiny, prompt):
    error = refused(tiny.post(COMPLETE, {"prompt": prompt}), 400, "prompt")
    assert error["code"] == "context_length_exceeded" and "maximum context length is 128 tokens" in error["message"]


def test_no_alternatives_need_no_logprobs(tiny):
    assert tiny.post(CHAT, {"messages": USER, "max_tokens": 1, "top_logprobs": 0}).status_code == 200


def test_numbers_beyond_doubles(tiny):
    """No value of JSON may become infinity on its way in."""
    for field in ("temperature", "max_tokens", "seed"):
        answer = raw(tiny, COMPLETE, f'{{"prompt": "x", "{field}": {HUGE}}}'.encode())
        assert answer.status_code == 400 and set(answer.json()["error"]) == FOUR_KEYS
    for text in ("-0", "1e-400", "0.0e0"):
        assert raw(tiny, COMPLETE, f'{{"prompt": "x", "max_tokens": 1, "temperature": {text}}}').status_code == 200


CASES = [  # route, body, status, field
    (COMPLETE, {}, 400, "prompt"), (COMPLETE, {"prompt": None}, 400, "prompt"), (COMPLETE, {"prompt": 5}, 400, "prompt"),
    (COMPLETE, {"prompt": {}}, 400, "prompt"), (COMPLETE, {"prompt": []}, 400, "prompt"),
    (COMPLETE, {"prompt": [[]]}, 400, "prompt"), (COMPLETE, {"prompt": [1, "x"]}, 400, "prompt"),
    (COMPLETE, {"prompt": ["x", 1]}, 400, "prompt"), (COMPLETE, {"prompt": [[1], "x", None]}, 400, "prompt"),
    (COMPLETE, {"prompt": [-1]}, 400, "prompt"), (COMPLETE, {"prompt": [512]}, 400, "prompt"),
    (COMPLETE, {"prompt": [2**31]}, 400, "prompt"), (COMPLETE, {"prompt": [1.5]}, 400, "prompt"),
    (COMPLETE, {"prompt": [True]}, 400, "prompt"), (COMPLETE, {"prompt": ""}, 400, "prompt"),
    (COMPLETE, {"prompt": "word " * 1000}, 400, "prompt"), (COMPLETE, {"prompt": [1] * 129}, 400, "prompt"),
    (COMPLETE, {"prompt": ["x"] * 1000}, 400, "prompt"), (COMPLETE, {"prompt": [1], "max_tokens": 128}, 400, "max_tokens"),
    (COMPLETE, {"prompt": "x", "model": "other"}, 404, "model"), (COMPLETE, {"prompt": "x", "model": ""}, 404, "model"),
    (COMPLETE, {"prompt": "x", "suffix": "y"}, 400, "suffix"), (COMPLETE, {"prompt": [1], "max_tokens": 2, "min_tokens": 3}, 400, "min_tokens"),
    (CHAT, {"messages": USER, "max_completion_tokens": 0, "min_tokens": 1}, 400, "min_tokens"), (COMPLETE, {"prompt": "x", "echo": "y"}, 400, "echo"),
    (COMPLETE, {"prompt": "x", "best_of": 0}, 400, "best_of"), (COMPLETE, {"prompt": "x", "logprobs": -1}, 400, "logprobs"),
    (COMPLETE, {"prompt": "x", "logprobs": 10**6}, 400, "logprobs"), (COMPLETE, {"prompt": "x", "logprobs": True}, 400, "logprobs"),
    (COMPLETE, {"prompt": "x", "stop": ["s"] * 5}, 400, "stop"), (COMPLETE, {"prompt": "x", "model": None}, 400, "model"),
    (CHAT, {"messages": USER, "model": None}, 400, "model"), (COMPLETE, {"prompt": "x", "logprobs": 6}, 400, "logprobs"),
    (COMPLETE, {"prompt": "x", "best_of": 21}, 400, "best_of"),
    (CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    (CHAT, {"messages": USER + [{"role": "wizard", "content": "x"}]}, 400, "messages[1].role"),
    (CHAT, {"messages": USER, "tools": [TOOL]}, 400, "tools"),
    (CHAT, {"messages": USER, "tools": [TOOL], "tool_choice": "auto"}, 400, "tools"),
    *((path, {**good, name: value}, 400, name) for path, good in ((COMPLETE, {"prompt": "x"}), (CHAT, {"messages": USER}))
      for name, value in {"regex": "(", "ebnf": "root ::= x", "grammar": "x", "documents": [{"text": "x"}],
                          "length_penalty": 0.5, "typical_p": 0.9, "mirostat": 2, "mirostat_tau": 5.0, "lora": [{"id": 0}],
                          "no_repeat_ngram_size": 3, "num_beams": 4, "repeat_penalty": 1.1}.items()),
    (COMPLETE, {"prompt": "x", "logit_bias": {"512": 1}}, 400, "logit_bias"),
    (COMPLETE, {"prompt": "x", "logit_bias": {"-1": 1}}, 400, "logit_bias"),
    (COMPLETE, {"prompt": "x", "logit_bias": {"x": 1}}, 400, "logit_bias"),
    (COMPLETE, {"prompt": "x", "logit_bias": {"1": "x"}}, 400, "logit_bias.1"),
    (COMPLETE, {"prompt": "x", "logit_bias": {"1": 101}}, 400, "logit_bias.1"),
    (COMPLETE, {"prompt": "x", "logit_bias": {"0" * i + "1": 1 for i in range(1025)}}, 400, "logit_bias"),
    (COMPLETE, {"prompt": "x", "stop": "s" * 5000}, 400, "stop"),
    (COMPLETE, {"prompt": "x", "guided_regex": "(?=a)b"}, 400, "guided_regex"),
    (COMPLETE, {"prompt": "x", "prompt_logprobs": 0}, 400, "prompt_logprobs"),
    (COMPLETE, {"prompt": "x", "response_format": {"type": "xml"}}, 400, "response_format.type"),
    (COMPLETE, {"prompt": "x", "stream_options": {}}, 400, "stream_options"),
    (COMPLETE, {"prompt": "x", "stream": True, "stream_options": {"include_usage": 1}}, 400, "stream_options.include_usage"),
    (CHAT, {}, 400, "messages"), (CHAT, {"messages": "x"}, 400, "messages"), (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": ["x"]}, 400, "messages[0]"), (CHAT, {"messages": USER + [{}]}, 400, "messages[1].role"),
    (CHAT, {"messages": [{"role": 1}]}, 400, "messages[0].role"), (CHAT, {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": ["x"]}]}, 400, "messages[0].content[0]"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content[0].type"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "messages[0].content[0].text"),
    (CHAT, {"messages": [{"role": "user", "content": "word " * 1000}]}, 400, "messages"),
    (CHAT, {"messages": USER * 5000}, 400, "messages"), (CHAT, {"messages": USER, "top_logprobs": 2}, 400, "top_logprobs"),
    (CHAT, {"messages": USER, "logprobs": 3}, 400, "logprobs"),
    (CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 99}, 400, "top_logprobs"),
    (CHAT, {"messages": USER, "max_completion_tokens": 10**6}, 400, "max_completion_tokens"),
    (CHAT, {"messages": USER, "max_completion_tokens": -1}, 400, "max_completion_tokens"),
    (CHAT, {"messages": USER, "response_format": {"type": "json_schema"}}, 400, "response_format.schema"),
    (CHAT, {"messages": USER, "response_format": "text"}, 400, "response_format"),
    (CHAT, {"messages": USER, "echo": True}, 400, "echo"), (CHAT, {"messages": USER, "functions": [{}]}, 400, "functions"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "tool_call_id": 0}]}, 400, "messages[0].tool_call_id"),
    (CHAT, {"messages": [{"role": "user", "content": None}]}, 400, "messages[0].content"),
    (CHAT, {"messages": USER, "continue_final_message": True, "add_generation_prompt": True}, 400, "continue_final_message"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "prefix": True}]}, 400, "messages[0].prefix"),
    (CHAT, {"messages": [{"role": "assistant", "content": "x", "prefix": True}] + USER}, 400, "messages[0].prefix"),
    (CHAT, {"messages": USER, "tools": {}}, 400, "tools"), (CHAT, {"messages": USER, "tools": [1]}, 400, "tools"),
    (CHAT, {"messages": USER, "tool_choice": "required"}, 400, "tool_choice"),
    (CHAT, {"messages": USER, "modalities": ["audio"]}, 400, "modalities"),
    (CHAT, {"messages": USER, "chat_template_kwargs": []}, 400, "chat_template_kwargs"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [1]}]}, 400, "messages[0].tool_calls"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": 1}]}, 400, "messages[0].tool_calls"),
    ("/tokenize", {}, 400, "prompt"), ("/tokenize", {"prompt": 1}, 400, "prompt"),
    ("/tokenize", {"prompt": "x", "add_special_tokens": 1}, 400, "add_special_tokens"),
    ("/tokenize", {"messages": 1}, 400, "messages"), ("/tokenize", {"prompt": "x", "model": "y"}, 404, "model"),
    ("/detokenize", {}, 400, "tokens"), ("/detokenize", {"tokens": "x"}, 400, "tokens"),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens"), ("/detokenize", {"tokens": [10**6]}, 400, "tokens"),
    ("/detokenize", {"tokens": [2**31]}, 400, "tokens"),
]


def test_fields_that_are_missing_or_wrong(tiny):
    with tiny.http() as http:
        for path, body, status, field in CASES:
            error = refused(http.post(path, json=body), status, field)
            assert error["type"] == "invalid_request_error"


IGNORED = """max_new_tokens n_predict chat_template stop_regex suppress_tokens begin_suppress_tokens force_words_ids sequence_bias
    forced_eos_token_id exponential_decay_length_penalty min_length max_length guidance_scale negative_prompt cfg_scale
    diversity_penalty early_stopping adapter samplers xtc_probability nsigma top_n_sigma
    quadratic_sampling watermark prompt_embeds reasoning_effort thinking vllm_xargs kv_transfer_params options format system
    template context guided_whitespace_pattern repeat_penalty min_new_tokens no_stop_trim stop_sequence stop_sequences stop_words stop_strings
    stopping_strings custom_stopping_strings num_predict max_output_tokens n_probs top_n_tokens top_logprobs_num return_full_text
    return_tokens t_max_predict_ms max_time typ_p tfs rep_pen ban_eos_token bypass_eos custom_token_bans banned_tokens banned_strings
    beam_search num_return_sequences n_cmpl do_sample enable_thinking think thinking_budget thinking_token_budget reasoning
    reasoning_budget_tokens verbosity lora_adapter adapters json_mode random_seed sampler_seed safe_prompt prompt_mode min_keep
    n_indent post_sampling_probs response_fields return_tokens_as_token_ids return_hidden_states sampling_params parameters
    custom_params session_params truncate input inputs input_ids instructions system_prompt previous_response_id raw sampler_order
    token_healing grammar_string""".split()


def test_fields_that_would_change_the_answer_are_not_ignored(tiny):
    bases = [(COMPLETE, {"prompt": [1], "max_tokens": 1}, ["tools", "tool_choice", "modalities", "messages", "top_logprobs", "max_completion_tokens"]),
             (CHAT, {"messages": USER, "max_tokens": 1}, ["suffix", "best_of", "prompt", "add_special_tokens"])]
    with tiny.http() as http:
        for path, base, more in bases:
            for name in IGNORED + more:
                for value in ([7], {"a": 1}, 7, "7"):
                    refused(http.post(path, json={**base, name: value}), 400, name)
                nothing = http.post(path, json={**base, name: None})
                assert nothing.status_code == 200, (name, nothing.text)
        for path, field in (("/apply-template", "chat_template"), ("/tokenize", "chat_template")):
            refused(http.post(path, json={"messages": USER, field: "x"}), 400, field)
        for theirs, ours in {"n_predict": "max_tokens", "num_predict": "max_tokens", "max_output_tokens": "max_tokens",
                             "random_seed": "seed", "stop_sequences": "stop", "min_new_tokens": "min_tokens", "n_probs": "logprobs",
                             "num_return_sequences": "n", "rep_pen": "repetition_penalty", "do_sample": "temperature",
                             "enable_thinking": "chat_template_kwargs", "top_logprobs": "logprobs"}.items():
            value = False if theirs in ("do_sample", "enable_thinking") else 2
            message = refused(http.post(COMPLETE, json={"prompt": [1], theirs: value}), 400, theirs)["message"]
            assert f"use {ours}" in message or f"in {ours}" in message


def test_other_names_beside_ours_that_say_the_same_are_taken(tiny):
    """As clients send them who know several servers (guidellm, SillyTavern)."""
    with tiny.http() as http:
        body = {"prompt": [1], "max_tokens": 2, "stop": ["x"], "temperature": 0.5}
        same = {"max_new_tokens": 2, "n_predict": 2, "max_completion_tokens": 2, "stopping_strings": ["x"], "do_sample": True}
        assert http.post(COMPLETE, json=body | same).status_code == 200
        for name, other in {"max_new_tokens": 3, "max_completion_tokens": 3, "stopping_strings": ["y"], "do_sample": False}.items():
            refused(http.post(COMPLETE, json=body | same | {name: other}), 400, name)
        assert http.post(COMPLETE, json=body | {"temperature": 0, "do_sample": False}).status_code == 200


def test_what_clients_send_of_their_own_accord_is_taken(tiny):
    """Fields of the OpenAI client, LangChain, LiteLLM, lm-eval and the web page of llama.cpp that do not change what is answered."""
    common = {"user": "me", "store": False, "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": True,
              "safety_identifier": "x", "prompt_cache_key": "x", "stream": True, "stream_options": {"include_usage": True},
              "safe_prompt": False, "include_reasoning": True, "separate_reasoning": True, "priority": 0, "request_id": "x",
              "cache_prompt": True, "timings_per_token": True, "return_progress": True, "reasoning_format": "auto", "keep_alive": "5m",
              "spaces_between_special_tokens": True, "dynatemp_exponent": 1, "repeat_last_n": 64, "id_slot": -1, "seed": 1, "n": 1}
    for path, base in ((COMPLETE, {"prompt": [1], "best_of": 1, "logprobs": None}), (CHAT, {"messages": USER, "logprobs": False})):
        answer = tiny.post(path, {**base, "max_tokens": 1, **common})
        assert answer.status_code == 200, answer.text


def test_a_bad_field_in_a_stream_is_refused_before_the_stream(tiny):
    refused(tiny.post(COMPLETE, {"prompt": [1] * 200, "stream": True}), 400, "prompt")


def test_what_the_message_repeats_is_escaped_and_short(tiny):
    for name in ("\x1b[31m\x07", "x" * 100_000, "\u0085\u0000", '"}],\n'):
        error = refused(tiny.post(COMPLETE, {"prompt": "x", "model": name}), 404, "model")
        assert len(error["message"]) < 400 and error["message"].isprintable()


def test_as_much_as_is_allowed_at_once_ends_no_server(tiny):
    """Every row of a full step with as many biases as one may have; every sequence with long stop strings."""
    bias = {"0" * i + "1": 0 for i in range(1024)}
    with tiny.http() as http:
        answer = http.post(COMPLETE, json={"prompt": [1], "n": 128, "max_tokens": 3, "ignore_eos": True, "logit_bias": bias})
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3 * 128
        answer = http.post(COMPLETE, json={"prompt": [1], "n": 128, "max_tokens": 1, "stop": ["x" * 4096] * 4})
        assert answer.status_code == 200
        assert http.get("/health").status_code == 200


def test_what_a_large_body_took_is_given_back(tiny):
    body = b'{"prompt": [1], "max_tokens": 1, "x": [' + b",".join([b'{"a":1}'] * 500_000) + b"]}"
    before = rss_bytes(tiny.pid)
    assert raw(tiny, COMPLETE, body).status_code == 200
    assert until(lambda: rss_bytes(tiny.pid) < before + 20 * MEBIBYTE, "the memory back")


def test_what_changes_nothing_is_taken(tiny):
    options = {"guided_json": None, "use_beam_search": False, "bad_words": [], "response_format": {"type": "text"},
               "store": True, "metadata": {"a": "b"}, "length_penalty": 1.0, "typical_p": 1, "mirostat": 0, "regex": None,
               "grammar": "", "num_beams": 1, "guidance_scale": 1, "min_length": 0, "suffix": "", "modalities": ["text"],
               "watermark": False, "options": {}, "tools": [TOOL], "tool_choice": "none", "min_new_tokens": 0, "n_probs": 0,
               "rep_pen": 1, "typ_p": 1.0, "tfs": 1, "num_return_sequences": 1, "do_sample": True, "json_mode": False,
               "return_full_text": False, "stop_sequences": [], "adapters": [], "beam_search": False, "top_logprobs": 0}
    assert tiny.post(COMPLETE, {"prompt": [1], "max_tokens": 1, **options}).status_code == 200
    assert tiny.post(CHAT, {"messages": USER, "max_tokens": 1, **options}).status_code == 200


def test_duplicate_and_unknown_members(tiny):
    assert tiny.post(COMPLETE, {"prompt": [1], "max_tokens": 1, "nobody_knows": {"x": [1]}}).status_code == 200
    answer = raw(tiny, COMPLETE, b'{"prompt": [1], "max_tokens": 1, "max_tokens": 2, "ignore_eos": true}')
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] in (1, 2)


def test_bodies_over_the_limit(tiny):
    over = json.dumps({"prompt": "x" * (9 << 20)}).encode()
    refused(raw(tiny, COMPLETE, over), 413)
    chunked = raw(tiny, COMPLETE, (over[i:i + 65536] for i in range(0, len(over), 65536)))
    refused(chunked, 413)
    inside = json.dumps({"prompt": "x " * (3 << 20)}).encode()
    refused(raw(tiny, COMPLETE, inside), 400, "prompt")


def test_chunked_bodies_are_bodies(tiny):
    body = json.dumps({"prompt": [1, 2], "max_tokens": 2, "ignore_eos": True}).encode()
    answer = raw(tiny, COMPLETE, (body[i:i + 1] for i in range(len(body))))
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 2


def test_other_content_types_and_encodings(tiny):
    body = b'{"prompt": [1], "max_tokens": 1}'
    for kind in ("application/json", "Application/JSON; charset=utf-8", "application/problem+json"):
        assert raw(tiny, COMPLETE, body, headers={"Content-Type": kind}).status_code == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data; boundary=x", "text/json"):
        refused(raw(tiny, COMPLETE, body, headers={"Content-Type": kind}), 415)
    refused(raw(tiny, COMPLETE, body, headers={"Content-Encoding": "gzip"}), 415)


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/v1/embeddings", "/v1/models/", "/v1/completions/", "/Health",
                                  "/v1/../health", "//health", "/%00", "/%ff", "/health%2F", "/favicon.ico"])
def test_unknown_routes(tiny, path):
    answer = tiny.exchange(raw_get(b"Connection: close", target=path.encode())).decode()
    assert answer.startswith("HTTP/1.1 404 "), answer[:200]
    assert set(json.loads(answer.split("\r\n\r\n", 1)[1])["error"]) == FOUR_KEYS


def test_unknown_methods(tiny):
    with tiny.http() as http:
        for method in ("GET", "PUT", "DELETE", "PATCH", "TRACE", "BREW"):
            answer = http.request(method, COMPLETE)
            refused(answer, 405)
            assert answer.headers["allow"] == "POST"
        for path in ("/health", "/v1/models", "/metrics"):
            answer = http.post(path, json={})
            refused(answer, 405)
            assert answer.headers["allow"] == "GET, HEAD"
            assert http.request("OPTIONS", path).status_code == 204
            head, get = http.head(path), http.get(path)
            assert head.status_code == 200 and head.content == b""
            assert path == "/metrics" or head.headers["content-length"] == get.headers["content-length"]


def test_queries_and_percent_encoding(tiny):
    for query in ("?x=1&y", "?", "?a=/b?c=d", "?u=http://x?y=1&z=%25"):
        assert tiny.get("/health" + query).status_code == 200, query
    assert tiny.get("/%68ealth").status_code == 200
    assert tiny.get("/v1/models/llama%2Doptimum?verbose").status_code == 200

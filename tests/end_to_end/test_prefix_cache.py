"""Prompts that begin alike: what the client and the metrics are told, who shares, and that answers stay what they were."""

import json

import pytest

from ark_server import Server, until
from test_cache_forms import ZOO, needs_zoo

PAGE = 16
PROMPT = [(7 * i * i + 3) % 500 for i in range(70)]
OPTIONS = {"max_tokens": 8, "seed": 1, "ignore_eos": True, "return_token_ids": True}


def complete(server, prompt, key=None, **options):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = server.post("/v1/completions", {"prompt": prompt, **OPTIONS, **options}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def whole_pages(tokens):
    """Of a prompt that is cached: at least the last token is computed."""
    return (tokens - 1) // PAGE * PAGE


@pytest.mark.parametrize("options", [(), ("--tp", 2, "--processes")], ids=["threads", "processes"])
def test_what_is_cached_is_told_and_changes_nothing(tiny_model, options):
    prompts = [PROMPT[:n] for n in (70, 70, 64, 65, 40)] + [PROMPT[:30] + [1] * 30]
    with Server("--model", tiny_model, *options, "--no-prefix-cache") as server:
        plain = [complete(server, prompt, temperature=t) for t in (0, 1) for prompt in prompts]
        assert {cached(answer) for answer in plain} == {0}
        assert server.metric("ark_prefix_hits_total") == 0 == server.metric("ark_kv_pages_cached")
    with Server("--model", tiny_model, *options) as server:
        answers = [complete(server, prompt, temperature=t) for t in (0, 1) for prompt in prompts]
        told = [cached(answer) for answer in answers]
        assert told == [0, 64, 48, 64, 32, 16] + [whole_pages(len(prompt)) for prompt in prompts]
        assert [a["choices"][0]["token_ids"] for a in answers] == [a["choices"][0]["token_ids"] for a in plain]
        assert server.metric("ark_prefix_hits_total") == sum(told)
        assert server.metric("ark_prefix_queries_total") == sum(a["usage"]["prompt_tokens"] for a in answers)
        assert server.metric("ark_prompt_tokens_total") == server.metric("ark_prefix_queries_total") - sum(told)
        assert server.metric("ark_kv_pages_held") == 0 < server.metric("ark_kv_pages_cached")
        # Several samples of a prompt compute it once; its tokens count once.
        many = complete(server, [9] * 40, n=3, temperature=1)
        assert (cached(many), many["usage"]["prompt_tokens"]) == (0, 40)
        assert server.metric("ark_prefix_hits_total") == sum(told) + 2 * 32
        # Log-probabilities of a prompt need all of it.
        echoed = complete(server, PROMPT, echo=True, logprobs=1)
        assert cached(echoed) == 0 and len(echoed["choices"][0]["logprobs"]["token_logprobs"]) == 78


def test_a_conversation_reuses_its_turns(tiny_model):
    with Server("--model", tiny_model) as server, server.client() as client:
        messages = [{"role": "user", "content": "A long story about a small dog, please."}]
        options = {"model": server.model, "max_tokens": 20, "temperature": 0}
        first = client.chat.completions.create(messages=messages, **options)
        messages += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "On."}]
        *_, last = client.chat.completions.create(messages=messages, stream=True, stream_options={"include_usage": True}, **options)
        assert last.usage.prompt_tokens_details.cached_tokens >= whole_pages(first.usage.prompt_tokens) > 0
        logged = f" cached_tokens={last.usage.prompt_tokens_details.cached_tokens} "
        until(lambda: any(logged in line for line in list(server.log)), "the request's line")  # written after the answer


def test_keys_and_salts_do_not_share(tiny_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice:one\nbob:two\n")
    keys.chmod(0o600)
    with Server("--model", tiny_model, "--api-key-file", keys) as server:
        for key, salt in [("one", None), ("two", None), ("one", "x"), ("one", "y"), ("two", "x")]:
            told = [cached(complete(server, PROMPT, key, cache_salt=salt)) for _ in range(2)]
            assert told == [0, 64], (key, salt)
        assert cached(complete(server, PROMPT, "two", cache_salt="")) == 64
        refused = server.post("/v1/completions", {"prompt": PROMPT, "cache_salt": 1}, headers={"Authorization": "Bearer one"})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "cache_salt"


@needs_zoo
def test_plain_models_share_nothing():
    model = ZOO / "broken-batch" / "model.onnx"
    with Server("--model", model) as server:
        answers = [complete(server, [5] * 40, temperature=0, max_tokens=4) for _ in range(2)]
        assert [cached(answer) for answer in answers] == [0, 0]
        assert json.dumps(answers[0]["choices"]) == json.dumps(answers[1]["choices"])

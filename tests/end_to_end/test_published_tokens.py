"""The six prompts of SmolLM2 that were published with their tokens, over HTTP, for every way to share the model."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from ark_server import FIXTURES, FULL, Server

PUBLISHED = FIXTURES / "smollm2-135m-instruct" / "expected.json"
NEAR_TIE = 1e-3  # of logits: below it another arithmetic may choose the other token

if not PUBLISHED.exists():
    pytest.skip(f"no {PUBLISHED}", allow_module_level=True)

PROMPTS = json.loads(PUBLISHED.read_text())["prompts"]


@pytest.fixture(scope="module", params=[(1, False), (2, False), (3, False), (2, True), (3, True)],
                ids=["tp1", "tp2", "tp3", "tp2-processes", "tp3-processes"])
def client(request, smollm2_model):
    ranks, processes = request.param
    options = ["--model", smollm2_model, "--tp", ranks, "--kv-memory", "128M", "--max-model-len", 1024]
    with Server(*options, *(["--processes"] if processes else [])) as server:
        assert len(server.children()) == processes  # the model's own process, whose children are the other ranks
        with server.client() as client:
            yield client


def up_to_a_near_tie(prompt):
    """The tokens on which every correct server agrees."""
    for index, margin in enumerate(prompt["margins"]):
        if not margin >= NEAR_TIE:
            return prompt["greedy_ids"][:index]
    return prompt["greedy_ids"]


def ask(client, prompt, **options):
    options = {"model": "smollm2", "max_tokens": len(prompt["greedy_ids"]), "temperature": 0} | options
    if "messages" in prompt:
        return client.chat.completions.create(messages=prompt["messages"], **options)
    return client.completions.create(prompt=prompt["text"], **options)


def test_published_tokens(client):
    """All six at once: what they are batched with must not matter."""
    extended = {"ignore_eos": True, "return_token_ids": True}
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda p: ask(client, p, extra_body=extended), PROMPTS))
    for prompt, answer in zip(PROMPTS, answers):
        choice, sure = answer.choices[0], up_to_a_near_tie(prompt)
        given = answer.prompt_token_ids if "messages" in prompt else choice.prompt_token_ids
        assert given == prompt["prompt_ids"]
        assert choice.token_ids[:len(sure)] == sure
        assert choice.finish_reason == "length"


def test_published_texts_in_streams(client):
    """One after the other, without ignore_eos: they end where the published completions do."""
    sure = [p for p in PROMPTS if len(up_to_a_near_tie(p)) == len(p["greedy_ids"])]
    assert sure
    for prompt in sure if FULL else sorted(sure, key=lambda p: p["eos_at"] or 48)[:2]:
        choices = [chunk.choices[0] for chunk in ask(client, prompt, stream=True)]
        text = "".join((c.delta.content if "messages" in prompt else c.text) or "" for c in choices)
        assert text == prompt["completion"]
        assert choices[-1].finish_reason == ("length" if prompt["eos_at"] is None else "stop")

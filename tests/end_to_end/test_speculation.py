"""Drafts: whatever a client expects and however much is guessed, the answers are the same; what it is told of them."""

import json

import pytest

from ark_server import Server, run_to_end

MESSAGES = [{"role": "user", "content": "A long story about a small dog, please."}]
WAYS = [{"temperature": 0}, {"temperature": 1, "top_p": 0.9, "frequency_penalty": 0.5},
        {"temperature": 0.7, "presence_penalty": 1, "logit_bias": {"7": 3}, "extra_body": {"repetition_penalty": 1.2}}]


def content(text):
    return {"type": "content", "content": text}


def ask(client, server, extra=None, **options):
    options["extra_body"] = {"ignore_eos": True, "return_token_ids": True, **options.get("extra_body", {}), **(extra or {})}
    return client.chat.completions.create(model=server.model, messages=MESSAGES, max_tokens=60, seed=5, logprobs=True, top_logprobs=3,
                                          **options)


def said(answer):
    choice = answer.choices[0]
    return choice.message.content, choice.finish_reason, choice.token_ids, json.dumps(choice.logprobs.model_dump())


@pytest.mark.parametrize("options", [(), ("--tp", 2, "--processes")], ids=["threads", "processes"])
def test_predictions_and_guesses_change_nothing(tiny_model, options):
    with Server("--model", tiny_model, *options) as server, server.client() as client:
        for way in WAYS:
            plain = ask(client, server, {"speculative.n_max": 0}, **way)
            text = plain.choices[0].message.content
            halves = [{"type": "text", "text": text[:50]}, {"type": "text", "text": text[50:]}]
            for expected in (text, text[:30] + "dog" + text[40:], text[20:], "something else", "", halves):
                assert said(ask(client, server, prediction=content(expected), **way)) == said(plain)
            assert said(ask(client, server, **way)) == said(plain)
            # A stop string ends it in the midst of a draft.
            stop = text[25:31]
            ends = [ask(client, server, e, stop=stop, prediction=content(text), **way) for e in ({"speculative.n_max": 0}, {})]
            assert said(ends[0]) == said(ends[1]) and ends[0].usage.completion_tokens == ends[1].usage.completion_tokens
            pieces = list(ask(client, server, prediction=content(text), stream=True, stream_options={"include_usage": True}, **way))
            assert "".join(p.choices[0].delta.content or "" for p in pieces[:-1]) == text
            details = pieces[-1].usage.completion_tokens_details
            assert details.accepted_prediction_tokens >= 0 <= details.rejected_prediction_tokens


def test_what_came_of_drafts_is_told(tiny_model):
    body = {"prompt": [5, 6, 7, 8] * 8, "max_tokens": 80, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with Server("--model", tiny_model) as server, server.client() as client:
        first = server.post("/v1/completions", body).json()
        prediction = content(first["choices"][0]["text"])
        right = wrong = 0
        for _ in range(50):  # on a busy machine drafts may seem dear for a while
            answer = server.post("/v1/completions", {**body, "prediction": prediction}).json()
            assert answer["choices"] == first["choices"]
            right += answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"]
            wrong += answer["usage"]["completion_tokens_details"]["rejected_prediction_tokens"]
            if right + wrong:
                break
        drafted, accepted = (server.metric(f"ark_draft_{kind}tokens_total") for kind in ("", "accepted_"))
        assert 0 < right + wrong <= drafted and right <= accepted <= drafted
        assert 0 < server.metric("ark_drafts_total") <= drafted
        theirs = server.get("/metrics").text
        assert f'vllm:spec_decode_num_accepted_tokens_total{{model_name="{server.model}"}} {int(accepted)}\n' in theirs
    with Server("--model", tiny_model, "--speculate", "off") as server:
        answer = server.post("/v1/completions", {**body, "prediction": prediction}).json()
        assert answer["choices"] == first["choices"]
        assert server.metric("ark_draft_tokens_total") == 0


@pytest.mark.parametrize("param, wrong", [
    ("prediction", "text"), ("prediction.type", {"type": "other", "content": ""}), ("prediction.type", {"content": ""}),
    ("prediction.content", {"type": "content"}), ("prediction.content", {"type": "content", "content": 5}),
    ("prediction.content[0].type", {"type": "content", "content": [{"type": "image_url", "text": ""}]}),
    ("speculative.n_max", 16), ("speculative.n_max", -1), ("speculative.n_max", "many")])
def test_what_is_no_prediction_is_refused_by_name(tiny, param, wrong):
    name = param if param.startswith("speculative") else "prediction"
    answer = tiny.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1, name: wrong})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


SELF = ("--weights", "f32", "--draft-weights", "int4")  # its own numbers, rounded: a draft model of another cost


@pytest.mark.parametrize("options", [(), ("--supervise",)], ids=["alone", "supervised"])
def test_what_a_draft_model_guesses_changes_nothing(smollm2_model, options):
    with Server("--model", smollm2_model, "--draft-model", smollm2_model, *SELF, *options) as server, server.client() as client:
        assert any(line.startswith("draft ") and "smollm2 guesses: " in line for line in server.lines)
        for way in WAYS[:2]:
            plain = ask(client, server, {"speculative.n_max": 0}, **way)
            for _ in range(20):  # on a busy machine guesses may seem dear for a while
                assert said(ask(client, server, **way)) == said(plain)
                if server.metric("ark_draft_accepted_tokens_total") > 0:
                    break
        assert server.metric("ark_draft_accepted_tokens_total") > 0


def refused(*options):
    run = run_to_end(*options, "--check")
    assert run.stderr.count("\n") == 1, run.stderr
    return run.returncode, run.stderr.removeprefix("ark-serve: error: ")


def test_draft_models_that_cannot_be_are_refused(tiny_model, smollm2_model, tmp_path):
    assert refused("--model", tiny_model, "--draft-model", smollm2_model) == (
        64, "--draft-model: its vocabulary of 49152 tokens is not that of the model, of 512\n")
    assert refused("--model", tiny_model, "--draft-model", tiny_model, "--speculate", "off") == (
        64, "--draft-model: nothing is drafted with --speculate off\n")
    code, why = refused("--model", tiny_model, "--draft-model", tmp_path / "none.onnx")
    assert code == 66 and why.startswith("--draft-model: ")

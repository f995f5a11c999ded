"""Chat and completions through OpenAI's own client: every parameter, streams, and what they have to agree on."""

import collections
import math

import openai
import pytest

GREEDY = {"temperature": 0}
PROMPT = "The three laws"
EXTENDED = {"ignore_eos": True, "return_token_ids": True}


def complete(client, model, prompt=PROMPT, extra=None, **options):
    options = {"max_tokens": 12, "extra_body": EXTENDED | (extra or {})} | options
    return client.completions.create(model=model, prompt=prompt, **options)


def tokens(answer, index=0):
    return answer.choices[index].token_ids


@pytest.fixture(scope="module")
def model(tiny):
    return tiny.model


@pytest.fixture(scope="module")
def greedy(client, model):
    return tokens(complete(client, model, **GREEDY, max_tokens=40))


def test_a_completion_has_openai_s_shape(client, model):
    answer = complete(client, model, **GREEDY)
    assert (answer.object, answer.model) == ("text_completion", model)
    assert answer.id.startswith("cmpl-") and answer.created > 1.7e9
    choice, usage = answer.choices[0], answer.usage
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert usage.completion_tokens == len(choice.token_ids) == 12
    assert usage.prompt_tokens == len(choice.prompt_token_ids)
    assert usage.total_tokens == usage.prompt_tokens + 12


def test_a_prompt_is_text_or_token_ids_alone_or_in_lists(client, tiny, model, greedy):
    ids = tiny.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    other = [5, 6, 7]
    alone = tokens(complete(client, model, other, **GREEDY))
    for prompt in (PROMPT, ids):
        assert tokens(complete(client, model, prompt, **GREEDY)) == greedy[:12]
    for prompts in ([PROMPT, tiny.post("/detokenize", {"tokens": ids}).json()["prompt"]], [ids, other]):
        answer = complete(client, model, prompts, **GREEDY)
        assert [c.index for c in answer.choices] == [0, 1]
        assert tokens(answer) == greedy[:12]
        assert answer.usage.completion_tokens == 24
    assert tokens(answer, 1) == alone


@pytest.mark.parametrize("count", [0, 1, 7, 40])
def test_max_tokens(client, model, greedy, count):
    answer = complete(client, model, **GREEDY, max_tokens=count)
    assert tokens(answer) == greedy[:count]
    assert answer.usage.completion_tokens == count
    assert answer.choices[0].finish_reason == "length"


def test_streams_say_the_same_as_whole_answers(client, model, greedy):
    whole = complete(client, model, **GREEDY, max_tokens=40)
    chunks = list(complete(client, model, **GREEDY, max_tokens=40, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    assert sum((c.choices[0].token_ids for c in chunks), []) == greedy
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len({c.id for c in chunks}) == 1 and all(c.usage is None for c in chunks)
    # How many tokens come at once, the machine and its other work decide; not always all.
    assert any(len(list(complete(client, model, **GREEDY, max_tokens=40, stream=True))) > 1 for _ in range(50))


@pytest.mark.parametrize("kind", ["completion", "chat"])
def test_usage_comes_in_a_last_chunk_of_its_own(client, model, kind):
    options = {"model": model, "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True},
               "extra_body": {"ignore_eos": True}}
    if kind == "chat":
        chunks = list(client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}], **options))
    else:
        chunks = list(client.completions.create(prompt=PROMPT, **options))
    assert all(c.usage is None and len(c.choices) == 1 for c in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5
    assert chunks[-1].usage.total_tokens == 5 + chunks[-1].usage.prompt_tokens


@pytest.mark.parametrize("wanted", [True, False])
def test_each_chunk_can_have_the_usage_so_far(client, model, wanted):
    options = {"include_usage": wanted, "continuous_usage_stats": True}
    chunks = list(complete(client, model, n=2, stream=True, stream_options=options))
    if not wanted:
        assert all(c.usage is None for c in chunks)
        return
    told, sent = [c.usage.completion_tokens for c in chunks], [0]
    for chunk in chunks[:-1]:
        sent.append(sent[-1] + len(chunk.choices[0].token_ids))
    assert told == sorted(told) and all(a >= b for a, b in zip(told, sent[1:]))
    assert told[0] < told[-1] == sent[-1] == 24
    assert len({c.usage.prompt_tokens for c in chunks}) == 1


def test_n_choices_are_different_samples_of_one_prompt(client, model):
    answer = complete(client, model, n=4, seed=7, temperature=1.0)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert len({tuple(c.token_ids) for c in answer.choices}) == 4
    assert answer.usage.completion_tokens == 48
    again = complete(client, model, n=4, seed=7, temperature=1.0)
    assert [c.token_ids for c in again.choices] == [c.token_ids for c in answer.choices]
    first = complete(client, model, seed=7, temperature=1.0)
    assert tokens(first) == tokens(answer)  # the seed itself, whatever n is


def test_n_streams_are_told_apart_by_index(client, model):
    whole = complete(client, model, n=3, seed=11, temperature=1.0)
    streams, reasons = collections.defaultdict(list), {}
    for chunk in complete(client, model, n=3, seed=11, temperature=1.0, stream=True):
        choice = chunk.choices[0]
        streams[choice.index] += choice.token_ids
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    assert [streams[i] for i in range(3)] == [c.token_ids for c in whole.choices]
    assert reasons == dict.fromkeys(range(3), "length")


def test_best_of_returns_the_most_probable(client, model):
    every = complete(client, model, n=6, seed=3, temperature=1.0, logprobs=0)
    mean = lambda choice: sum(choice.logprobs.token_logprobs) / len(choice.token_ids)
    best = complete(client, model, n=2, best_of=6, seed=3, temperature=1.0, logprobs=0)
    wanted = sorted(every.choices, key=mean, reverse=True)[:2]
    assert [c.token_ids for c in best.choices] == [c.token_ids for c in wanted]
    assert [c.index for c in best.choices] == [0, 1]
    assert best.usage.completion_tokens == 6 * 12


def test_best_of_less_than_n_and_in_streams_is_refused(client, model):
    for options in ({"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}):
        with pytest.raises(openai.BadRequestError) as refused:
            complete(client, model, **options)
        assert refused.value.param == "best_of"


def test_echo_puts_the_prompt_in_front(client, model):
    plain = complete(client, model, **GREEDY).choices[0].text
    assert complete(client, model, **GREEDY, echo=True).choices[0].text == PROMPT + plain
    streamed = complete(client, model, **GREEDY, echo=True, stream=True)
    assert "".join(c.choices[0].text for c in streamed) == PROMPT + plain
    assert complete(client, model, **GREEDY, echo=True, max_tokens=0).choices[0].text == PROMPT


def test_logprobs_of_greedy_tokens_are_the_highest(client, model):
    choice = complete(client, model, **GREEDY, logprobs=5).choices[0]
    scores = choice.logprobs
    assert len(scores.tokens) == len(scores.token_logprobs) == len(scores.top_logprobs) == 12
    assert len(scores.text_offset) == 12 and scores.text_offset == sorted(scores.text_offset)
    for logprob, top in zip(scores.token_logprobs, scores.top_logprobs):
        assert 1 <= len(top) <= 6 and logprob == max(top.values()) <= 0


def test_echoed_logprobs_are_those_of_the_tokens_as_they_were_generated(client, model):
    first = complete(client, model, **GREEDY, logprobs=2).choices[0]
    whole = first.prompt_token_ids + first.token_ids
    scores = complete(client, model, whole, **GREEDY, echo=True, max_tokens=0, logprobs=2).choices[0].logprobs
    assert len(scores.tokens) == len(whole)
    assert scores.token_logprobs[0] is None and scores.top_logprobs[0] is None
    generated = scores.token_logprobs[len(first.prompt_token_ids):]
    assert all(abs(a - b) <= 1e-4 for a, b in zip(generated, first.logprobs.token_logprobs, strict=True))


def test_tokens_stand_where_their_own_text_begins(client, model):
    """Also behind bytes that are no character, which become text only with the token after them."""
    scores = complete(client, model, [200, 201, 130, 5], echo=True, max_tokens=0, logprobs=0).choices[0]
    assert scores.text == "\t\n\ufffd#" and scores.logprobs.text_offset == [0, 1, 2, 3]


def test_logprobs_are_a_distribution(client, model):
    """With as many alternatives as may be asked for, probabilities sum to less than one, and what a sampled
    token reports does not depend on the temperature it was drawn with."""
    one = complete(client, model, max_tokens=1, seed=1, temperature=1.0, logprobs=5).choices[0].logprobs
    other = complete(client, model, max_tokens=1, seed=1, temperature=0.3, logprobs=5).choices[0].logprobs
    assert 0 < sum(map(math.exp, one.top_logprobs[0].values())) <= 1 + 1e-6
    shared = set(one.top_logprobs[0]) & set(other.top_logprobs[0])
    assert len(shared) >= 4
    assert all(abs(one.top_logprobs[0][t] - other.top_logprobs[0][t]) <= 1e-5 for t in shared)


def test_stop_strings_end_the_text_and_are_left_out(client, model):
    whole = complete(client, model, **GREEDY, max_tokens=40).choices[0].text
    stop = whole[6:9]
    cut = whole[:whole.index(stop)]
    for options in ({}, {"stream": True}):
        answer = complete(client, model, **GREEDY, max_tokens=40, stop=[stop, "\x00never"], **options)
        chunks = list(answer) if options else [answer]
        assert "".join(c.choices[0].text for c in chunks) == cut
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert chunks[-1].choices[0].stop_reason == stop
    kept = complete(client, model, **GREEDY, max_tokens=40, stop=stop, extra={"include_stop_str_in_output": True})
    assert kept.choices[0].text == cut + stop


def test_stop_token_ids_and_min_tokens(client, model, greedy):
    ends = greedy[3]
    first = greedy.index(ends)
    answer = complete(client, model, **GREEDY, max_tokens=40, extra={"stop_token_ids": [ends]})
    assert tokens(answer) == greedy[:first + 1]
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("stop", ends)
    later = complete(client, model, **GREEDY, max_tokens=40, extra={"stop_token_ids": [ends], "min_tokens": 20})
    assert len(tokens(later)) >= 20


def test_the_end_of_text_ends_unless_ignored(client, tiny, model):
    end = tiny.post("/tokenize", {"prompt": "<|im_end|>"}).json()["tokens"]
    assert len(end) == 1
    bias = {str(end[0]): 100}
    ended = complete(client, model, **GREEDY, logit_bias=bias, extra={"ignore_eos": False})
    assert (ended.choices[0].finish_reason, tokens(ended), ended.choices[0].text) == ("stop", end, "")
    ignored = complete(client, model, **GREEDY, logit_bias=bias)
    assert (ignored.choices[0].finish_reason, tokens(ignored)) == ("length", end * 12)


def test_logit_bias_forces_and_forbids(client, model, greedy):
    forced = complete(client, model, **GREEDY, logit_bias={"17": 100})
    assert tokens(forced) == [17] * 12
    forbidden = complete(client, model, **GREEDY, logit_bias={str(greedy[0]): -100})
    assert greedy[0] not in tokens(forbidden)


def test_a_seed_repeats_and_without_one_it_differs(client, model):
    seeded = [tokens(complete(client, model, seed=seed, temperature=1.0)) for seed in (1, 1, 2, -5, 2**63 - 1)]
    assert seeded[0] == seeded[1] != seeded[2]
    assert len({tuple(t) for t in seeded}) == 4
    assert len({tuple(tokens(complete(client, model, temperature=1.0))) for _ in range(4)}) > 1


@pytest.mark.parametrize("options", [
    {"temperature": 0}, {"top_p": 0}, {"top_p": 1e-9}, {"extra": {"top_k": 1}}, {"extra": {"min_p": 1}},
], ids=str)
def test_the_narrowest_sampling_is_greedy(client, model, greedy, options):
    assert tokens(complete(client, model, **({"temperature": 1.0} | options))) == greedy[:12]


@pytest.mark.parametrize("options", [
    {"top_p": 1}, {"extra": {"top_k": 0}}, {"extra": {"top_k": -1}}, {"extra": {"top_k": 10**6}}, {"extra": {"min_p": 0}},
    {"presence_penalty": 0}, {"frequency_penalty": 0}, {"extra": {"repetition_penalty": 1}}, {"logit_bias": {}},
    {"user": "somebody"}, {"stop": []}, {"suffix": ""},
], ids=str)
def test_neutral_parameters_change_nothing(client, model, options):
    plain = complete(client, model, seed=5, temperature=1.0)
    assert tokens(complete(client, model, seed=5, temperature=1.0, **options)) == tokens(plain)


def test_top_k_keeps_to_the_best(client, model):
    best = complete(client, model, max_tokens=1, logprobs=3, **GREEDY).choices[0].logprobs.top_logprobs[0]
    for seed in range(12):
        one = complete(client, model, max_tokens=1, seed=seed, temperature=2.0, extra={"top_k": 3}, logprobs=0)
        assert one.choices[0].logprobs.tokens[0] in best


@pytest.mark.parametrize("presence, frequency", [(1.5, 0), (0, 0.7), (-1, 0), (0.5, 0.5)])
def test_penalties_are_taken_off_as_openai_defines(client, model, greedy, presence, frequency):
    """Each greedy token must be the best of the plain distribution less the penalties of what came before."""
    penalised = complete(client, model, **GREEDY, max_tokens=40, presence_penalty=presence,
                         frequency_penalty=frequency).choices[0]
    assert penalised.token_ids != greedy
    whole = penalised.prompt_token_ids + penalised.token_ids
    scores = complete(client, model, whole, **GREEDY, echo=True, max_tokens=0, logprobs=5).choices[0].logprobs
    seen, begin = collections.Counter(), len(penalised.prompt_token_ids)
    for token, top in zip(scores.tokens[begin:], scores.top_logprobs[begin:], strict=True):
        value = {t: score - presence * (seen[t] > 0) - frequency * seen[t] for t, score in top.items()}
        assert value[token] >= max(value.values()) - 1e-4
        seen[token] += 1


def test_a_repetition_penalty_keeps_from_repeating(client, model, greedy):
    answer = complete(client, model, **GREEDY, max_tokens=40, extra={"repetition_penalty": 1.8})
    assert len(set(tokens(answer))) > len(set(greedy))


def test_chat_has_openai_s_shape_and_the_template_s_prompt(client, tiny, model):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=9, temperature=0,
                                            logprobs=True, top_logprobs=2, extra_body=EXTENDED)
    choice = answer.choices[0]
    assert (answer.object, choice.message.role, choice.finish_reason) == ("chat.completion", "assistant", "length")
    assert answer.id.startswith("chatcmpl-")
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    ids = tiny.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert answer.prompt_token_ids == ids == tiny.post("/tokenize", {"messages": messages}).json()["tokens"]
    same = complete(client, model, ids, **GREEDY, max_tokens=9)
    assert tokens(same) == choice.token_ids and same.choices[0].text == choice.message.content
    assert len(choice.logprobs.content) == 9
    for score in choice.logprobs.content:
        assert len(score.top_logprobs) == 2 and score.top_logprobs[0].logprob == score.logprob
        assert score.bytes is not None


def test_a_chat_stream_begins_with_the_role(client, model):
    options = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 20,
               "temperature": 0, "extra_body": EXTENDED}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in chunks[1:])
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert sum((getattr(c.choices[0], "token_ids", None) or [] for c in chunks), []) == whole.choices[0].token_ids
    assert chunks[-1].choices[0].finish_reason == "length"


def test_chat_takes_text_parts_and_n(client, model):
    parts = [{"type": "text", "text": "Hello"}]
    answers = [client.chat.completions.create(model=model, messages=[{"role": "user", "content": content}], n=2,
                                              seed=4, max_tokens=6, extra_body=EXTENDED)
               for content in ("Hello", parts)]
    assert [c.token_ids for c in answers[0].choices] == [c.token_ids for c in answers[1].choices]
    assert answers[0].choices[0].token_ids != answers[0].choices[1].token_ids


def test_a_chat_of_tool_calls_that_the_template_leaves_out_is_refused(client, model):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    for content in ({}, {"content": None}):
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call], **content},
                    {"role": "tool", "tool_call_id": "1", "content": "42"}]
        with pytest.raises(openai.BadRequestError) as refusal:
            client.chat.completions.create(model=model, messages=messages, max_tokens=2)
        assert refusal.value.param == "messages[1].tool_calls"


@pytest.mark.parametrize("prefix", ["The capital is", " of two lines\nand a space ", "m"])
def test_the_last_message_can_be_continued(tiny, prefix):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": prefix}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" + prefix
    expected = tiny.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert tiny.post("/tokenize", body).json()["tokens"] == expected
    by_its_word = {"messages": [messages[0], messages[1] | {"prefix": True}]}
    for body in (body, by_its_word):
        answer = tiny.post("/v1/chat/completions", body | {"max_tokens": 1, "return_token_ids": True}).json()
        assert answer["prompt_token_ids"] == expected


def test_chat_without_a_length_goes_to_the_end_of_the_context(client, tiny, model):
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hello"}],
                                            extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == tiny.get("/v1/models").json()["data"][0]["max_model_len"]


def test_streams_never_split_a_character(client, model, tiny):
    """Bytes of characters as tokens, forced one after the other through the prompt's echo."""
    text = "héllo 🦆 漢字 — ﷽"
    ids = tiny.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert len(ids) > len(text)
    chunks = list(complete(client, model, ids, **GREEDY, max_tokens=60, echo=True, stream=True))
    texts = [c.choices[0].text for c in chunks]
    assert "".join(texts).startswith(text)
    whole = complete(client, model, ids, **GREEDY, max_tokens=60, echo=True).choices[0].text
    assert "".join(texts) == whole


def test_errors_are_the_client_s_own_exceptions(client, model):
    with pytest.raises(openai.NotFoundError) as missing:
        complete(client, "no-such-model")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as too_long:
        complete(client, model, [1] * 129)
    assert too_long.value.code == "context_length_exceeded" and too_long.value.param == "prompt"
    with pytest.raises(openai.BadRequestError) as no_room:
        complete(client, model, [1] * 100, max_tokens=29)
    assert (no_room.value.param, no_room.value.code) == ("max_tokens", "context_length_exceeded")
    for error, asked, parts in ((too_long, 141, "129 in the prompt, 12"), (no_room, 129, "100 in the prompt, 29")):
        assert (f"This model's maximum context length is 128 tokens. However, you requested {asked} tokens ({parts} in the "
                "completion). Please reduce the length of the prompt or completion.") in str(error.value)
    with pytest.raises(openai.BadRequestError) as role:
        client.chat.completions.create(model=model, messages=[{"content": "no role"}])
    assert role.value.param == "messages[0].role"


def test_a_long_prompt_and_a_full_context(client, model):
    answer = complete(client, model, [1] * 100, **GREEDY, max_tokens=28)
    assert answer.usage.total_tokens == 128
    assert complete(client, model, [1] * 128, max_tokens=0).usage.completion_tokens == 0


def test_the_fingerprint_tells_models_apart(client, model):
    chat = lambda **more: client.chat.completions.create(model=model, max_tokens=2, **more,
                                                         messages=[{"role": "user", "content": "Hi"}])
    found = {complete(client, model).system_fingerprint, chat().system_fingerprint,
             *(chunk.system_fingerprint for chunk in chat(stream=True)),
             *(chunk.system_fingerprint for chunk in complete(client, model, stream=True))}
    assert len(found) == 1 and found.pop().startswith("fp_")

"""Servers that share pages of the prefix cache, and prefill servers: texts stay the same, whoever computes and dies."""

import re
import signal
import threading

import pytest

from ark_server import BINARY, Server, free_port, run_to_end, until
from test_prefix_cache import cached, complete

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")

PROMPTS = [[(first + 7 * i * i) % 500 for i in range(100)] for first in range(6)]


@pytest.fixture(scope="module")
def expected(tiny_model):
    with Server("--model", tiny_model) as server:
        return [complete(server, prompt, temperature=t) for prompt in PROMPTS for t in (0, 1)]


def same(answer, expected):
    return answer["choices"] == expected["choices"]


def address():
    return f"127.0.0.1:{free_port()}"


def wait_for_neighbour(server):
    until(lambda: any("is there" in line for line in list(server.log)), "a neighbour")


def test_replicas_share_and_one_dies(tiny_model, expected, tmp_path):
    key = tmp_path / "key"
    key.write_text("0123456789abcdef0123456789abcdef")
    key.chmod(0o600)
    at = address(), address()
    options = [("--model", tiny_model, "--cluster-key-file", key, "--kv-listen", at[i], "--kv-peers", at[1 - i]) for i in (0, 1)]
    with Server(*options[0]) as one, Server(*options[1]) as two:
        wait_for_neighbour(one), wait_for_neighbour(two)
        for i, (ask, other) in enumerate([(one, two), (two, one)]):
            assert same(complete(ask, PROMPTS[i], temperature=0), expected[2 * i]) and ask.metric("ark_kv_pages_fetched_total") == 6 * i
            for t in (0, 1):
                answer = complete(other, PROMPTS[i], temperature=t)
                assert same(answer, expected[2 * i + t]) and cached(answer) == 96
        assert two.metric("ark_kv_pages_fetched_total") == 6 == one.metric("ark_kv_pages_served_total")
        # A question that nobody has an answer to, then one that six pages answer: a round trip each.
        assert (one.metric("ark_kv_peer_questions_total"), two.metric("ark_kv_peer_questions_total")) == (2, 2)
        assert two.metric("ark_kv_fetched_bytes_total") == one.metric("ark_kv_served_bytes_total") > 0
        assert two.metric("ark_prompt_tokens_total") == 4 + 4 + 100
        until(lambda: any(" cached_tokens=96 " in line for line in list(two.log)), "the request's line")
        one.signal(signal.SIGSTOP)  # neither gone nor there; asked once, if at all
        for t in (0, 1):
            assert same(complete(two, PROMPTS[2], temperature=t), expected[4 + t])
        assert two.metric("ark_kv_peer_failures_total") <= 1
        one.kill()
        for t in (0, 1):
            assert same(complete(two, PROMPTS[3], temperature=t), expected[6 + t])


def test_a_prefill_server_computes_until_it_is_killed(tiny_model, expected):
    at = address()
    with Server("--model", tiny_model, "--role", "prefill", "--kv-listen", at) as prefill, \
            Server("--model", tiny_model, "--role", "decode", "--kv-peers", at) as decode:
        wait_for_neighbour(decode)
        answers = {}

        def ask(i):
            answers[i] = complete(decode, PROMPTS[i // 2], temperature=i % 2)

        threads = [threading.Thread(target=ask, args=[i]) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(same(answers[i], expected[i]) and cached(answers[i]) == 96 for i in range(6))
        assert decode.metric("ark_prompt_tokens_total") == 6 * 4
        assert prefill.metric("ark_kv_prefills_total") == 3 and prefill.metric("ark_prompt_tokens_total") == 3 * 96
        # It dies as it computes: some are still answered, the others are computed here.
        threads = [threading.Thread(target=ask, args=[i]) for i in range(6, 12)]
        for thread in threads:
            thread.start()
        prefill.kill()
        for thread in threads:
            thread.join()
        assert all(same(answers[i], expected[i]) for i in range(6, 12))
        assert same(complete(decode, PROMPTS[0][:50], temperature=0), complete(decode, PROMPTS[0][:50], temperature=0))


def test_keys_share_with_themselves_wherever_they_stand(tiny_model, tmp_path):
    def keys(name, text):
        file = tmp_path / name
        file.write_text(text)
        file.chmod(0o600)
        return "--api-key-file", file

    at = address()
    with Server("--model", tiny_model, "--kv-listen", at, *keys("one", "alice:one\nbob:two\n")) as one, \
            Server("--model", tiny_model, "--kv-peers", at, *keys("two", "carol:three\nbob:two\nann:one\n")) as two:
        wait_for_neighbour(two)
        complete(one, PROMPTS[0], "one")
        assert [cached(complete(two, PROMPTS[0], key)) for key in ("two", "three", "one")] == [0, 0, 96]


def test_another_model_is_named_and_left_alone(tiny_model, expected):
    at = address()
    with Server("--model", tiny_model, "--max-model-len", "120", "--kv-listen", at), \
            Server("--model", tiny_model, "--kv-peers", at) as two:
        until(lambda: any("gives no pages: refused: it serves another model" in line for line in list(two.log)), "its refusal")
        assert same(complete(two, PROMPTS[0], temperature=0), expected[0])


@pytest.mark.parametrize("options, why", [
    (("--kv-listen", "0.0.0.0:29600"), "--kv-listen 0.0.0.0:29600 is beyond this machine"),
    (("--kv-peers", "127.0.0.1:29600,192.0.2.1:29600"), "--kv-peers 192.0.2.1:29600 is beyond this machine"),
    (("--role", "prefill"), "--role prefill: nobody can ask it; give --kv-listen"),
    (("--role", "decode"), "--role decode: it has nobody to ask; give the prefill servers as --kv-peers"),
    (("--kv-peers", "127.0.0.1:29600", "--no-prefix-cache"), "leave --no-prefix-cache out"),
    (("--kv-listen", "127.0.0.1:29600", "--processes", "--tp", "2"), "leave --processes and --supervise out"),
])
def test_options_that_do_not_fit_are_refused(tiny_model, options, why):
    run = run_to_end("--model", tiny_model, *options)
    assert run.returncode == 64 and re.escape(why) in re.escape(run.stderr), run.stderr

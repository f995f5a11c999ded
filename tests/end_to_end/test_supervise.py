"""--supervise: kill -9 or stop the model's process or a rank of it, in any state: streams pause, and go on with exactly
the tokens that they would have had. Repeated death ends the server with 69 and the reason."""

import operator
import os
import random
import shutil
import signal
import threading
import time

import onnx
import pytest

from ark_server import (FULL, MEBIBYTE, PATIENCE, START_SECONDS, TINY, Server, Stream, family, is_alive, is_model_process,
                        rss_bytes, takes_at_most, until)
from test_rank_processes import other_weights

UNAVAILABLE = 69
SILENCE = 2.0  # seconds after which a stopped process is a dead one, and named


def start(model, *options, **how):
    return Server("--model", model, "--tp", 2, "--processes", "--kv-memory", "256M", *options, **how)


def serves_again(server):
    return until(lambda: server.get("/health").status_code == 200, "the next process")


def whole_family(server):
    return until(lambda: len(found := family(server)) == 2 and found, "the model's process and rank 1")


def requests(count, tokens):
    """Greedy and sampled, one and two sequences, with log-probabilities and penalties."""
    for i in range(count):
        yield {"prompt": [1 + (7 * i + j) % 200 for j in range(3 + 9 * i)], "max_tokens": tokens, "ignore_eos": True,
               "stream": True, "return_token_ids": True, "seed": i, "temperature": 0.8 * (i % 2), "n": 1 + (i % 4 == 3),
               "top_p": 0.9, "logprobs": 2 if i % 3 == 0 else None,
               "frequency_penalty": 0.5 if i % 5 == 4 else 0.0, "logit_bias": {"7": -5.0} if i % 5 == 2 else None}


def run_all(server, bodies):
    streams = [Stream(server, body) for body in bodies]
    return [stream.result() for stream in streams]


@pytest.fixture(scope="module")
def undisturbed(long_model):
    """What 17 clients get from a server of one process. The first has it read for a second, while the others' come."""
    long = {"prompt": [1 + i % 200 for i in range(5_000)], "max_tokens": 8, "ignore_eos": True, "stream": True, "n": 1,
            "return_token_ids": True, "temperature": 0}
    bodies = [long, *requests(16, 160)]
    with Server("--model", long_model, "--kv-memory", "256M") as server:
        return bodies, run_all(server, bodies)


@pytest.mark.parametrize("victim", [0, 1], ids=["model's process", "rank 1"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV])
def test_streams_go_on_with_the_same_tokens(long_model, undisturbed, victim, how):
    bodies, expected = undisturbed
    with start(long_model) as server:
        killed, reads = whole_family(server), threading.Event()
        streams = [Stream(server, body, reads) for body in bodies]
        until(lambda: server.metric("ark_requests_running") > 4, "steps of several")
        since = time.monotonic()
        os.kill(killed[victim], how)
        until(lambda: server.get("/health").status_code == 503 or "serves again" in server.errors(), "503")
        assert time.monotonic() - since < SILENCE + 2
        reads.set()
        assert [stream.result() for stream in streams] == expected
        assert server.metric("ark_restarts_total") == 1
        serves_again(server)
        why = next(line for line in server.log if "begins anew" in line)
        assert ("rank 1" in why) if victim else "the model's process" in why
        assert not any(map(is_alive, killed)) and len(whole_family(server)) == 2
        print(f"gap {max(stream.gap() for stream in streams):.2f} s")


def test_a_kill_in_a_long_prompt_changes_nothing(long_model, undisturbed):
    body, expected = undisturbed[0][0], undisturbed[1][0]
    with start(long_model) as server:
        for victim in (0, 1):
            before = server.metric("ark_steps_total")
            stream = Stream(server, body | {"cache_salt": str(victim)})  # computed anew
            until(lambda: server.metric("ark_steps_total") > before + 3, "chunks of the prompt")
            assert stream.count == 0
            os.kill(whole_family(server)[victim], signal.SIGKILL)
            assert stream.result() == expected
        assert server.metric("ark_restarts_total") == 2


def test_a_request_that_dies_each_time_is_failed_by_name_and_others_go_on(long_model):
    """As if it killed the process: it is killed whenever only this request is computed."""
    body = {"prompt": [1 + i % 200 for i in range(20_000)], "max_tokens": 8, "stream": True, "n": 1}
    with start(long_model) as server:
        stream = Stream(server, body)
        for deaths in (1, 2, 3):
            before = server.metric("ark_steps_total")
            until(lambda: server.metric("ark_steps_total") > before, "a step", START_SECONDS)
            os.kill(whole_family(server)[0], signal.SIGKILL)
            until(lambda: server.metric("ark_restarts_total") == deaths, "the loss")
        stream.join(PATIENCE)
        assert "died 3 times as it computed this request, which is not tried again" in stream.error, stream.error
        assert server.post("/v1/completions", {"prompt": [1], "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_idle_model_is_replaced_before_anybody_asks(tiny_model, victim, how):
    with start(tiny_model) as server:
        killed = whole_family(server)
        os.kill(killed[victim], how)
        since = time.monotonic()
        until(lambda: "begins anew" in server.errors(), "the loss")
        assert time.monotonic() - since < SILENCE + 2
        serves_again(server)
        assert not any(map(is_alive, killed))
        assert server.post("/v1/completions", {"prompt": [1], "max_tokens": 2}).status_code == 200


def test_a_kill_while_the_next_process_loads_is_another_restart(long_model):
    body = next(requests(1, 100))
    with start(long_model) as server:
        expected = Stream(server, body).result()
        stream = Stream(server, body)
        until(lambda: stream.count > 5, "tokens")
        for deaths in (1, 2, 3):
            [model, *_] = until(lambda: family(server), "a process")
            os.kill(model, signal.SIGKILL)
            until(lambda: server.metric("ark_restarts_total") == deaths, "its loss")
        health = server.get("/health")
        assert health.status_code == 503 and "is restarting: " in health.json()["error"]["message"]
        assert server.get("/v2/health/live").status_code == 200
        assert server.post("/v1/completions", {"prompt": [1], "max_tokens": 2}).status_code == 200  # it waits
        assert stream.result() == expected


def test_repeated_death_ends_the_server_with_the_reason(tiny_model):
    with start(tiny_model, "--max-restarts", 2) as server:
        seen = set()
        while server.process.poll() is None and len(seen) < 10:
            for pid in set(filter(is_model_process, server.children())) - seen:
                seen.add(pid)
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        since = time.monotonic()
        assert server.join() == UNAVAILABLE and len(seen) == 3
        assert time.monotonic() - since < 10
        last = server.log[-1]
        assert last.startswith("ark-serve: error: ") and "3 times within a minute" in last and "signal 9" in last, last
        assert not any(map(is_alive, seen))
        server.process.returncode = 0  # expected


def test_a_death_at_the_first_load_ends_the_server(long_model):
    server = start(long_model, wait=False)
    try:
        [model] = until(lambda: family(server)[:1], "the model's process")
        os.kill(model, signal.SIGKILL)
        assert server.join() == UNAVAILABLE
        assert "the model's process was ended by signal 9 as it loaded" in server.log[-1]
    finally:
        server.kill()


@pytest.mark.parametrize("delay", [0.0, 0.2, None])
def test_nothing_is_left_when_the_server_is_killed(long_model, delay):
    server = start(long_model, wait=delay is None)
    try:
        found = whole_family(server) if delay is None else until(server.children, "the model's process")
        time.sleep(delay or 0)
        found = family(server) or found
        os.kill(server.pid, signal.SIGKILL)
        server.process.wait()
        until(lambda: not any(map(is_alive, found)), "the end of all processes")
    finally:
        server.kill()


@pytest.mark.parametrize("busy", [False, True])
def test_sigterm_while_restarting_ends_in_time(long_model, busy):
    with start(long_model, "--shutdown-timeout", 1) as server:
        stream = Stream(server, next(requests(1, 40_000))) if busy else None
        until(lambda: not busy or stream.count > 5, "tokens")
        os.kill(whole_family(server)[0], signal.SIGKILL)
        until(lambda: "begins anew" in server.errors(), "the loss")
        left = family(server)
        since = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - since < 10
        until(lambda: not any(map(is_alive, left)), "the end of all processes")
        if busy:
            stream.join(PATIENCE)
            assert stream.error


def test_no_process_is_left_after_sigterm(long_model):
    with start(long_model) as server:
        found = whole_family(server)
        assert server.stop() == 0
        assert not any(map(is_alive, found))


def test_another_model_is_not_continued_with(tmp_path):
    shutil.copy(TINY / "model.onnx", tmp_path / "model.onnx")
    with start(tmp_path / "model.onnx") as server:
        onnx.save(other_weights(TINY / "model.onnx"), tmp_path / "new.onnx")
        os.replace(tmp_path / "new.onnx", tmp_path / "model.onnx")
        os.kill(whole_family(server)[0], signal.SIGKILL)
        assert server.join() == UNAVAILABLE
        assert "no longer those that were loaded at first" in server.log[-1]
        server.process.returncode = 0  # expected


def test_errors_of_the_load_keep_their_code_and_line(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"this is no model")
    lines = []
    for option in ("--supervise", "--no-supervise"):
        server = Server("--model", tmp_path / "bad.onnx", option, wait=False)
        try:
            lines.append((server.join(), server.log))
        finally:
            server.kill()
    assert lines[0] == lines[1] and lines[0][0] == 65


def test_a_plain_model_is_supervised_too(tiny_model):
    """Without ranks, and served as the untouched graph."""
    model = TINY.parent / "gpt2-no-past" / "model.onnx"
    bodies = 5 * list(requests(4, 24))
    with Server("--model", model) as server:
        expected = run_all(server, bodies)
    with Server("--model", model, "--supervise") as server:
        [process] = server.children()
        os.kill(process, signal.SIGSTOP)
        streams = [Stream(server, body) for body in bodies]
        until(lambda: server.metric("ark_requests_running") > 0, "a step")
        os.kill(process, signal.SIGCONT)
        time.sleep(0.02)
        os.kill(process, signal.SIGKILL)
        assert [stream.result() for stream in streams] == expected
        # Where all was answered before the kill, nobody waited for the restart.
        until(lambda: server.metric("ark_restarts_total") == 1, "a restart")


def test_the_server_holds_no_weights(smollm2_model):
    with Server("--model", smollm2_model, "--tp", 2, "--processes") as server:
        weights = sum(map(rss_bytes, whole_family(server)))
        assert rss_bytes(server.pid) < 150 * MEBIBYTE < weights


def counts(pid):
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def test_kills_for_a_while_change_no_token_and_leak_nothing(long_model, undisturbed):
    bodies, expected = (some[1:] for some in undisturbed)  # the first, which is long, may be hit too often to be finished
    random.seed(20)
    with start(long_model, "--max-restarts", 1000) as server:
        descriptors, threads = counts(server.pid)
        # A worker stays for each request at a time, theirs and ours; or two, where one has answered and is not back yet.
        # The scheduler's thread opens its own statistics at its first step.
        most = descriptors + 1, threads + 2 * (len(bodies) + 1)
        run_all(server, bodies)
        memory = rss_bytes(server.pid)
        results, clients, done = [], [], threading.Event()

        def client(i):
            while not done.is_set():
                try:
                    results.append((i, Stream(server, bodies[i]).result()))
                except AssertionError as error:
                    results.append((i, error))

        for i in range(len(bodies)):
            clients.append(threading.Thread(target=client, args=(i,)))
            clients[-1].start()
        for _ in range(40 if FULL else 6):
            while server.get("/health").status_code != 200 and random.random() > 0.01:  # now and then as it loads
                time.sleep(0.02)
            time.sleep(random.uniform(0, 1))
            os.kill(random.choice(until(lambda: family(server), "a process")), signal.SIGKILL)
            time.sleep(0.3)
        done.set()
        for thread in clients:
            thread.join(3 * PATIENCE)
            assert not thread.is_alive()
        assert len(results) >= len(bodies)
        assert not [(i, result) for i, result in results if result != expected[i]]
        serves_again(server)
        until(lambda: all(map(operator.le, counts(server.pid), most)), "descriptors and threads as before")
        assert len(family(server)) == 2
        assert rss_bytes(server.pid) < memory + 32 * MEBIBYTE
        assert server.metric("ark_kv_pages_held") == 0
        print(f"{server.metric('ark_restarts_total'):.0f} restarts, {len(results)} answers")


def test_the_gap_is_about_the_time_of_a_load(long_model):
    """A stream's pause: the notice of the death, the load, and the prompt again."""

    def gap():
        with start(long_model) as server:
            load = server.metric("ark_load_seconds")
            stream = Stream(server, next(requests(1, 400)))
            until(lambda: stream.count > 20, "tokens")
            os.kill(whole_family(server)[0], signal.SIGKILL)
            stream.result()
            return stream.gap() - load

    takes_at_most(1.0, gap)

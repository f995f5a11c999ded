"""Many clients at once, some of whom leave: the others get what they get alone, and nothing stays behind."""

import json
import random
import re
import shutil
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import ark_server
from ark_server import FULL, MEBIBYTE, PATIENCE, TINY, Server, raw_post, rss_bytes, takes_at_most, until

CLIENTS = 64
REQUESTS = 5000 if FULL else 600


@pytest.fixture(scope="module")
def server(tiny_model):
    with Server("--model", tiny_model, "--tp", 2, "--max-num-seqs", 24, "--max-num-batched-tokens", 64) as server:
        yield server


def request_of(index):
    """Prompts of different lengths and ways to sample; equal indices give equal requests."""
    dice = random.Random(index)
    ids = [dice.randrange(3, 500) for _ in range(dice.randrange(1, 60))]
    sampling = {"temperature": 0} if index % 2 else {"temperature": 1.0, "top_p": 0.9, "frequency_penalty": 0.5}
    return {"prompt": ids, "max_tokens": dice.randrange(20, 68), "seed": index,
            "extra_body": {"ignore_eos": True, "return_token_ids": True}} | sampling


def stream(client, model, index, leave_after=None, pause=0.0):
    """The tokens; all of them, or those seen before the connection was closed."""
    tokens = []
    with client.completions.create(model=model, stream=True, **request_of(index)) as chunks:
        for chunk in chunks:
            tokens += chunk.choices[0].token_ids
            time.sleep(pause)
            if leave_after is not None and len(tokens) >= leave_after:
                break
    return tokens


def is_idle(server):
    return all(server.metric(name) == 0 for name in ("ark_kv_pages_held", "ark_requests_running", "ark_requests_waiting"))


def test_disconnecting_clients_do_not_touch_the_others(server):
    with server.client() as client:
        alone = [stream(client, server.model, index) for index in range(CLIENTS)]
    assert len({tuple(tokens) for tokens in alone}) == CLIENTS
    for turn in range(10 if FULL else 2):
        dice = random.Random(turn)
        leaves = {index: dice.randrange(0, 20) for index in dice.sample(range(CLIENTS), CLIENTS // 3)}
        together, start = [None] * CLIENTS, threading.Barrier(CLIENTS)

        def run(index):
            with server.client() as client:
                start.wait()
                together[index] = stream(client, server.model, index, leaves.get(index))

        threads = [threading.Thread(target=run, args=(index,)) for index in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5 * PATIENCE)
        for index in range(CLIENTS):
            wanted = alone[index] if index not in leaves else alone[index][:len(together[index])]
            assert together[index] == wanted, index
    until(lambda: is_idle(server), "an idle server")


def test_a_disconnected_client_s_sequence_is_cancelled_at_the_next_step(long_model):
    with Server("--model", long_model, "--tp", 2, "--kv-memory", "256M") as server:
        with server.busy():
            until(lambda: server.metric("ark_requests_running") == 1, "a running request")
        until(lambda: is_idle(server), "the end of a stream")
        with server.connect() as connection:  # not a stream: nothing is written that could fail
            connection.sendall(raw_post(b'{"prompt": [1, 2], "max_tokens": 60000, "ignore_eos": true}'))
            until(lambda: server.metric("ark_requests_running") == 1, "a running request")
        until(lambda: is_idle(server), "the end of a request")
        # Whose sequences came to their own end are not among these.
        until(lambda: server.metric("ark_sequences_total", reason="cancelled") == 2, "two counted as cancelled")


def test_a_template_ends_soon_after_its_client_has_gone(tmp_path):
    for name in ("model.onnx", "tokenizer.json"):
        shutil.copy(TINY / name, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template":
        "{% set all = range(100000)|list %}{% for i in all %}{% if all|sort %}{% endif %}{% endfor %}"}))
    body = b'{"messages": [{"role": "user", "content": "Hi"}]}'
    request = raw_post(body).replace(b"/v1/completions", b"/v1/chat/completions")
    with Server("--model", tmp_path) as server:

        def seconds(leaves):
            before = len(server.log)
            with server.connect() as connection:
                connection.sendall(request)
                if leaves:
                    time.sleep(0.05)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                else:
                    assert b"chat template, line 1: " in connection.recv(4096)
            (line,) = until(lambda: [line for line in server.log[before:] if "/v1/chat/completions" in line], "a line")
            return float(re.search(r" seconds=(\S+)", line)[1])

        takes_at_most(seconds(False) / 2, lambda: seconds(True))


def test_memory_is_stable(server):
    """After a first part that fills caches and pools, further requests leave resident memory where it is."""
    def work(count):
        def one(index):
            with server.client() as client:
                for turn in range(count // 8):
                    kind = (index + turn) % 4
                    try:
                        if kind == 3:
                            server.post("/v1/completions", {"prompt": "x" * 5000})
                        else:
                            stream(client, server.model, index * 1000 + turn % 50, 3 if kind == 2 else None)
                    except ark_server.httpx2.HTTPError:
                        raise AssertionError(server.errors())
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(8)))
        until(lambda: is_idle(server), "an idle server")
        return rss_bytes(server.pid)

    before = work(REQUESTS // 3)
    after = work(REQUESTS - REQUESTS // 3)
    print(f"resident: {before / MEBIBYTE:.1f} MiB after {REQUESTS // 3} requests, {after / MEBIBYTE:.1f} after {REQUESTS}")
    assert after - before <= 4 * MEBIBYTE, f"{before / MEBIBYTE:.1f} -> {after / MEBIBYTE:.1f} MiB"

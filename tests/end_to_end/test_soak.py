"""Everything at once for a long time: clients who leave or read slowly, keys that change, ranks that die. Whoever stays
gets the tokens that they would have got alone, and the server has in the end what it had at the beginning."""

import operator
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

from ark_server import FULL, MEBIBYTE, Server, family, rss_bytes, until
from test_load import is_idle, request_of, stream

REQUESTS = 20_000 if FULL else 500
CLIENTS = 16
SHAPES = 40  # different requests
KEY = "a-key-of-the-soak"
KEPT = (0, CLIENTS, 64 * MEBIBYTE)  # descriptors; threads, one for each request at a time; bytes, of all processes


def whole(client, model, index):
    return client.completions.create(model=model, **request_of(index)).choices[0].token_ids


def resources(server):
    """Descriptors, threads and bytes, of the server, the model's process and its ranks."""
    pids = [server.pid, *until(lambda: len(found := family(server)) == 2 and found, "the model's process and rank 1")]
    return (sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
            sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids), sum(map(rss_bytes, pids)))


def steady(server, before):
    """What the server has now, if it is no more than before but for what pools and allocators keep."""
    now = resources(server)
    return now if all(map(operator.le, now, map(operator.add, before, KEPT))) else None


def test_a_soak_of_everything(tiny_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(KEY + "\n")
    keys.chmod(0o600)
    with Server("--model", tiny_model, "--tp", 2, "--processes", "--max-restarts", 1000, "--api-key-file", keys) as server:
        server.headers = {"Authorization": f"Bearer {KEY}"}
        with server.client(api_key=KEY) as client:
            alone = [whole(client, server.model, index) for index in range(SHAPES)]
        wrong, counts, lock = [], {"whole": 0, "read": 0, "left": 0, "slow": 0}, threading.Lock()
        done = threading.Event()

        def one(client, number):
            dice = random.Random(number)
            index = dice.randrange(SHAPES)
            kind = dice.choices(list(counts), (4, 2, 3, 1) if number % 20 == 0 else (4, 2, 3, 0))[0]
            leave = dice.randrange(20) if kind == "left" else None
            if kind == "whole":
                tokens = whole(client, server.model, index)
            else:
                tokens = stream(client, server.model, index, leave, 0.02 if kind == "slow" else 0)
            expected = alone[index][:len(tokens)] if kind == "left" else alone[index]
            with lock:
                counts[kind] += 1
                if tokens != expected:
                    wrong.append((number, index, kind, tokens, expected))

        def worker(numbers):
            with server.client(api_key=KEY) as client:
                for number in numbers:
                    try:
                        one(client, number)
                    except Exception as error:  # every request that stays has an answer
                        with lock:
                            wrong.append((number, repr(error)))

        def disturb():
            turn = 0
            while not done.wait(1):
                turn += 1
                keys.write_text(KEY + "\n" + f"another-{turn}\n")
                server.signal(signal.SIGHUP)
                processes = family(server)
                if turn % 3 == 1 and processes:
                    os.kill(random.Random(turn).choice(processes), signal.SIGKILL)

        with ThreadPoolExecutor(CLIENTS) as pool:  # warm: threads and buffers that stay
            list(pool.map(worker, [range(i, 160, CLIENTS) for i in range(CLIENTS)]))
        until(lambda: is_idle(server), "an idle server")
        before = resources(server)
        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        try:
            with ThreadPoolExecutor(CLIENTS) as pool:
                list(pool.map(worker, [range(1000 + i, 1000 + REQUESTS, CLIENTS) for i in range(CLIENTS)]))
        finally:
            done.set()
            disturbing.join()
        assert not wrong, wrong[:3]
        until(lambda: is_idle(server), "an idle server")
        after = until(lambda: steady(server, before), f"resources as before, {before}")
        assert server.metric("ark_restarts_total") > 0
        print(counts, "descriptors, threads, bytes:", before, after)

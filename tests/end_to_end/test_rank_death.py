"""--no-supervise: kill -9 of a rank process in any state: the server names the rank and ends with 69 within two seconds.
With --supervise it goes on (test_supervise.py)."""

import os
import re
import signal
import threading
import time

import openai
import pytest

from ark_server import FULL, PATIENCE, Server, is_alive, takes_at_most, until

SECONDS = 2.0  # from the kill to the exit status
UNAVAILABLE = 69


def start(model, ranks):
    return Server("--model", model, "--tp", ranks, "--processes", "--no-supervise", "--kv-memory", "256M")


def ends_naming(server, rank, children, since):
    """The seconds that it took."""
    status = server.join()
    seconds = time.monotonic() - since
    assert status == UNAVAILABLE, server.errors()
    last = server.log[-1]
    assert last.startswith("ark-serve: error: ") and f"rank {rank}" in last, server.errors()
    until(lambda: not any(map(is_alive, children)), "the end of the other ranks")
    return seconds


def stream_forever(server, ended):
    """One client whose answer takes far longer than the test; how its stream ended is appended."""
    try:
        with server.client() as client:
            chunks = client.completions.create(model=server.model, prompt=[1, 2, 3], max_tokens=60_000, stream=True,
                                               temperature=0, extra_body={"ignore_eos": True})
            for count, _ in enumerate(chunks):
                if count == 5:
                    ended.append("began")
        ended.append("whole")
    except openai.APIError as error:
        ended.append(str(error))
    except Exception as error:  # the connection was cut
        ended.append(f"cut: {error!r}")


@pytest.mark.parametrize("ranks, victim", [(2, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_killed_rank_is_named_and_ends_the_server(long_model, ranks, victim, busy):
    takes_at_most(SECONDS, lambda: seconds_from_a_kill_to_the_end(long_model, ranks, victim, busy))


def seconds_from_a_kill_to_the_end(model, ranks, victim, busy):
    with start(model, ranks) as server:
        children = server.children()
        assert len(children) == ranks - 1
        by_rank = {rank_of(pid): pid for pid in children}
        ended, clients = [], [threading.Thread(target=stream_forever, args=(server, [])) for _ in range(2 * busy)]
        if busy:
            clients.append(threading.Thread(target=stream_forever, args=(server, ended)))
        for thread in clients:
            thread.start()
        if busy:
            until(lambda: "began" in ended, "a first token")
        else:
            time.sleep(0.3)
        since = time.monotonic()
        os.kill(by_rank[victim], signal.SIGKILL)
        seconds = ends_naming(server, victim, children, since)
        for thread in clients:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        if busy:
            assert ended[-1] != "whole"
            # Where rank 0 was on its way from one step to the next, it awaited nothing.
            where = r"step \d+, rank 0, .*phase \d+.* in .+|before step \d+"
            assert re.search(rf"rank {victim} is dead.* \(({where})\)", server.log[-1]), server.log[-1]
        return seconds


def rank_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return int(dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry)[b"ARK_RANK"])


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_ranks_end_when_rank_0_is_killed(long_model, busy):
    with start(long_model, 3) as server:
        children, ended = server.children(), []
        client = threading.Thread(target=stream_forever, args=(server, ended))
        if busy:
            client.start()
            until(lambda: "began" in ended, "a first token")
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, children)), "the end of the rank processes")
        if busy:
            client.join(PATIENCE)
        server.process.wait()
        server.process.returncode = 0  # expected


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.4] + ([i / 50 for i in range(40)] if FULL else []))
def test_ranks_end_when_rank_0_is_killed_while_loading(long_model, delay):
    server = Server("--model", long_model, "--tp", 3, "--processes", "--no-supervise", "--kv-memory", "256M",
                    wait=False)
    try:
        until(lambda: server.children() or server.process.poll() is not None, "rank processes")
        children = server.children()
        time.sleep(delay)
        os.kill(server.pid, signal.SIGKILL)
        server.process.wait()
        until(lambda: not any(map(is_alive, children)), "the end of the rank processes")
    finally:
        server.kill()


@pytest.mark.parametrize("delay", [0.0, 0.1])
def test_a_rank_killed_while_loading_ends_the_server(long_model, delay):
    server = Server("--model", long_model, "--tp", 3, "--processes", "--no-supervise", "--kv-memory", "256M",
                    wait=False)
    try:
        until(lambda: len(server.children()) == 2, "rank processes")
        children = server.children()
        time.sleep(delay)
        os.kill(children[0], signal.SIGKILL)
        assert server.join() == UNAVAILABLE, server.errors()
        assert "rank " in server.log[-1]
        until(lambda: not any(map(is_alive, children)), "the end of the other ranks")
    finally:
        server.kill()


def test_no_rank_process_is_left_after_sigterm(long_model):
    with start(long_model, 3) as server:
        children = server.children()
        assert server.stop() == 0
        assert not any(map(is_alive, children))

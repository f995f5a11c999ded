"""Health never lies or waits: beside thousands of slow clients, while loading, without descriptors, with a rank that hangs."""

import json
import multiprocessing
import os
import resource
import select
import signal
import time

import pytest

from ark_server import BODY, FULL, MEBIBYTE, Server, free_port, raw_get, raw_post, readable, receive_all, rss_bytes, until

UNAVAILABLE = 69
HEALTH = raw_get(b"Connection: close")
POST = raw_post()
SLOW = {"idle": b"", "head": POST[:40], "body": POST[:-5], "chunks": POST[:-len(BODY)].replace(
    b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked") + b"23\r\n{"}
MANY = 2000


def seconds_of(server, request, status=b"200"):
    since = time.monotonic()
    with server.connect() as connection:
        connection.sendall(request)
        answer = receive_all(connection)
    assert answer.startswith(b"HTTP/1.1 " + status), answer
    return time.monotonic() - since


@pytest.mark.parametrize("kind", SLOW)
def test_health_beside_thousands_of_slow_clients(tiny_model, kind):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY + 200:
        pytest.skip(f"{hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MANY + 200), hard))
    with Server("--model", tiny_model) as server:
        slow = []
        try:
            for _ in range(MANY):
                slow.append(server.connect())
                slow[-1].sendall(SLOW[kind])
            taken = []
            for index in range(60):
                slow[index].sendall(b"1" if kind == "chunks" else b"" if kind == "idle" else b"a")
                taken.append(seconds_of(server, HEALTH))
            print(f"{kind}: median {sorted(taken)[30] * 1000:.1f} ms, worst {max(taken) * 1000:.1f} ms")
            assert sorted(taken)[54] < 0.1  # a busy machine may be late once or twice
            assert seconds_of(server, POST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")) < 5
            assert not readable(slow)  # nobody was sent away for it
        finally:
            for connection in slow:
                connection.close()
        until(lambda: server.metric("ark_open_connections") <= 2, "the end of the connections")


def send_without_end(server, request, clients):
    """As fast as the server reads, and reads its answers."""
    poll, connections, unsent = select.epoll(), {}, {}
    for connection in (server.connect() for _ in range(clients)):
        connection.setblocking(False)
        connections[connection.fileno()], unsent[connection.fileno()] = connection, b""
        poll.register(connection, select.EPOLLIN | select.EPOLLOUT)
    while True:
        for number, events in poll.poll():
            if events & select.EPOLLIN:
                assert connections[number].recv(1 << 18)
            if events & select.EPOLLOUT:
                unsent[number] = unsent[number] or 100 * request
                unsent[number] = unsent[number][connections[number].send(unsent[number]):]


@pytest.mark.parametrize("path", [b"/health", b"/nothing"])
def test_health_beside_clients_that_ask_without_end(tiny_model, path):
    """Each has its turn: what one has sent ahead keeps nobody waiting."""
    request = raw_get(target=path)
    with Server("--model", tiny_model) as server:
        flood = multiprocessing.get_context("fork").Process(target=send_without_end, args=(server, request, 500), daemon=True)
        flood.start()
        try:
            until(lambda: server.metric("ark_open_connections") > 500, "the connections")
            taken = sorted(seconds_of(server, HEALTH) for _ in range(20))
            print(f"median {taken[10] * 1000:.1f} ms, worst {taken[-1] * 1000:.1f} ms")
            assert taken[10] < 0.3 and flood.is_alive()
        finally:
            flood.kill()
            flood.join()


def test_slow_requests_are_given_up_in_time(tiny_model):
    """Without a thread each: a head has 10 s."""
    with (Server("--model", tiny_model, "--keep-alive-timeout", 1) as server, server.connect() as fresh, server.connect() as idle,
          server.connect() as slow):
        slow.sendall(SLOW["head"])
        since = time.monotonic()
        idle.sendall(raw_get())
        assert receive_all(idle).startswith(b"HTTP/1.1 200 ") and time.monotonic() - since < 1 + 2
        fresh.sendall(raw_get(b"Connection: close"))  # the time is one between two requests
        assert receive_all(fresh).startswith(b"HTTP/1.1 200 ")
        if FULL:
            assert receive_all(slow).startswith(b"HTTP/1.1 408 ") and 9 < time.monotonic() - since < 14


def test_a_connection_that_may_not_be_idle_has_one_answer(tiny_model):
    with Server("--model", tiny_model, "--keep-alive-timeout", 0) as server, server.connect() as connection:
        time.sleep(0.3)  # as TLS and networks do
        connection.sendall(raw_get())
        answer = receive_all(connection)
        assert answer.startswith(b"HTTP/1.1 200 ") and b"\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize("limit", [24, 100])
def test_without_descriptors_others_are_sent_away_and_the_log_says_so(tiny_model, limit):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    with Server("--model", tiny_model, prepare=few) as server:
        idle = [server.connect() for _ in range(300)]
        try:
            for _ in range(10):
                assert seconds_of(server, HEALTH) < 1
        finally:
            for connection in idle:
                connection.close()
        assert server.post("/v1/completions", {"prompt": [1], "max_tokens": 1}).status_code == 200
        if limit < 48:  # with more, connections are limited before descriptors run out
            until(lambda: "no more descriptors" in server.errors(), "a line in the log")


def test_bodies_on_their_way_take_256_MiB_in_all(tiny_model):
    most = 8 * MEBIBYTE
    with Server("--model", tiny_model) as server:
        before, senders = rss_bytes(server.pid), []
        try:
            for _ in range(256 // 8 + 1):
                assert not readable(senders)
                senders.append(server.connect())
                senders[-1].sendall(raw_post(bytes(most - 1), b"Content-Length: %d" % most, length=False))
            # One at least: on a slow machine several were still on their way when the memory was full.
            for refused in until(lambda: readable(senders), "a refusal"):
                answer = receive_all(refused)
                assert answer.startswith(b"HTTP/1.1 503 ") and b"too many long requests at once" in answer
                assert b"Retry-After: " in answer
                senders.remove(refused)
            assert rss_bytes(server.pid) < before + 300 * MEBIBYTE
            senders.pop().close()
            assert seconds_of(server, POST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")) < 5
        finally:
            for connection in senders:
                connection.close()


def test_an_address_may_have_so_many_connections(tiny_model):
    with Server("--model", tiny_model, "--max-connections-per-peer", 5) as server:
        held = [server.connect() for _ in range(5)]
        until(lambda: b" 503 " in exchange_or_nothing(server), "a refusal")
        answer = exchange_or_nothing(server)
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
        assert b"Retry-After: 1\r\n" in answer
        for connection in held:
            connection.close()
        until(lambda: b" 200 " in exchange_or_nothing(server), "room again")


def exchange_or_nothing(server):
    with server.connect() as connection:
        try:
            connection.sendall(HEALTH)
        except OSError:
            pass
        return receive_all(connection)


def test_while_loading_health_says_the_stage_and_all_else_waits(long_model):
    """With a rank that is stopped loading does not go on; it is named within ten seconds."""
    server = Server("--model", long_model, "--tp", 2, "--processes", "--no-supervise", "--kv-memory", "256M", wait=False, port=free_port())
    try:
        child = until(server.children, "a rank process")[0]
        os.kill(child, signal.SIGSTOP)
        since = time.monotonic()
        health = server.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "loading" and health.json()["stage"] in health.json()["error"]["message"]
        assert health.json()["stage"] in ("recognise", "partition", "lower", "pack")
        assert server.get("/v2/health/live").status_code == 200
        for path in ("/v1/models", "/metrics", "/version"):
            answer = server.get(path)
            assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
        assert server.post("/v1/completions", {"prompt": [1]}).status_code == 503
        assert server.join() == UNAVAILABLE
        assert "rank 1" in server.log[-1] and time.monotonic() - since < 10 + 2, server.log
        asked = [line for line in server.log if "path=" in line]
        assert any("path=/v1/models" in line for line in asked) and not any("path=/health" in line for line in asked), asked
    finally:
        server.kill()


def test_a_rank_that_hangs_is_named_and_may_come_back(long_model):
    with Server("--model", long_model, "--tp", 2, "--processes", "--no-supervise", "--kv-memory", "256M") as server:
        (child,) = server.children()
        os.kill(child, signal.SIGSTOP)
        since = time.monotonic()
        until(lambda: server.get("/health").status_code == 503, "a rank without a sign of life")
        assert time.monotonic() - since < 2 + 1.5
        assert "rank 1" in server.get("/health").json()["error"]["message"]
        until(lambda: "rank 1 shows no sign of life" in server.errors(), "a line in the log")
        os.kill(child, signal.SIGCONT)
        until(lambda: server.get("/health").status_code == 200, "health again")
        assert server.post("/v1/completions", {"prompt": [1], "max_tokens": 2}).status_code == 200
        os.kill(child, signal.SIGSTOP)  # for good
        since = time.monotonic()
        assert server.join() == UNAVAILABLE
        assert "rank 1" in server.log[-1] and time.monotonic() - since < 5 + 3

"""HTTP byte by byte: what no client library sends. The right 4xx, never a 5xx, never a crash; others are served."""

import json
import random
import re
import select
import socket
import threading
import time

import pytest

from ark_server import FULL, receive_all, until

BODY = b'{"prompt": [1, 2], "max_tokens": 1}'
FOUR_KEYS = {"message", "type", "param", "code"}


def post(body=BODY, *headers, version=b"1.1", length=True):
    lines = [b"POST /v1/completions HTTP/" + version, b"Host: x", *headers]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def get(*headers, target=b"/health", version=b"1.1"):
    return b"\r\n".join([b"GET " + target + b" HTTP/" + version, *headers]) + b"\r\n\r\n"


def answers(data):
    """Status and body of each answer in a row; the bodies must be as long as announced."""
    found = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.[01] (\d{3}) ", head)
        assert status, data[:200]
        if status[1] == b"100":
            data = rest
            continue
        if re.search(rb"(?i)transfer-encoding: chunked", head):
            body, data = rest, b""
        else:
            length = re.search(rb"(?i)content-length: (\d+)", head)
            size = int(length[1]) if length else 0
            body, data = rest[:size], rest[size:]
            assert len(body) == size
        assert re.search(rb"(?i)x-request-id: \S+", head), head
        found.append((int(status[1]), body))
    return found


def one(server, data, end="answered"):
    found = answers(server.exchange(data, end))
    assert len(found) == 1, found
    status, body = found[0]
    if status >= 400:
        assert set(json.loads(body)["error"]) == FOUR_KEYS
    return status


@pytest.fixture(autouse=True)
def serves_on(tiny):
    yield
    assert answers(tiny.exchange(post(BODY, b"Connection: close")))[0][0] == 200
    assert tiny.process.poll() is None


HEADS = {
    "no version": (b"GET /health\r\n\r\n", 400), "HTTP/2": (get(version=b"2.0"), 400),
    "HTTP/0.9": (get(version=b"0.9"), 400), "preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),
    "bare LF": (b"GET /health HTTP/1.1\nHost: x\n\n", 400), "no colon": (get(b"Host x"), 400),
    "space before colon": (get(b"Host : x"), 400), "folded": (get(b"Host: x", b" y"), 400),
    "nul in a header": (get(b"Host: x\0y"), 400), "CR in a header": (get(b"Host: x\ry"), 400),
    "empty name": (get(b": x"), 400), "nul in the target": (get(target=b"/\0"), 400),
    "space in the target": (get(target=b"/a b"), 400), "raw UTF-8 target": (get(target="/ü".encode()), 400),
    "relative target": (get(target=b"health"), 400), "long target": (get(target=b"/" + b"x" * 5000), 414),
    "very long line": (b"GET /" + b"x" * 100_000, 414), "long header": (get(b"A: " + b"x" * 40_000), 431),
    "endless headers": (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000, 431), "many headers": (get(*[b"A: b"] * 101), 431),
    "length is a word": (post(BODY, b"Content-Length: x", length=False), 400),
    "length is negative": (post(BODY, b"Content-Length: -1", length=False), 400),
    "length has a sign": (post(BODY, b"Content-Length: +5", length=False), 400),
    "length is huge": (post(BODY, b"Content-Length: 99999999999999999999", length=False), 400),
    "length over the limit": (post(b"", b"Content-Length: 99999999999", length=False), 413),
    "two lengths": (post(BODY, b"Content-Length: 3"), 400), "a list of lengths": (post(BODY, b"Content-Length: 5, 5", length=False), 400),
    "length and chunked": (post(BODY, b"Transfer-Encoding: chunked"), 400),
    "other transfer coding": (post(BODY, b"Transfer-Encoding: gzip", length=False), 400),
    "chunked twice": (post(b"0\r\n\r\n", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", length=False), 400),
    "chunked in 1.0": (post(b"0\r\n\r\n", b"Transfer-Encoding: chunked", length=False, version=b"1.0"), 400),
    "expectation": (post(BODY, b"Expect: 200-ok"), 417), "no body": (post(b"", length=False), 400),
    "empty body": (post(b""), 400), "lower case method": (b"get /health HTTP/1.1\r\n\r\n", 405),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\n\r\n", 404), "connect": (b"CONNECT x:443 HTTP/1.1\r\n\r\n", 400),
}


@pytest.mark.parametrize("name", HEADS)
def test_malformed_heads(tiny, name):
    data, status = HEADS[name]
    assert one(tiny, data) == status


CHUNKS = {"good": (b"4\r\n" + BODY[:4] + b"\r\n%x;ext=1\r\n" % (len(BODY) - 4) + BODY[4:] + b"\r\n0\r\n\r\n", 200),
          "size is a word": (b"xyz\r\n", 400), "size is negative": (b"-1\r\n", 400), "size is huge": (b"ffffffffffffffff\r\nx", None),
          "no end": (b"5\r\nabc", 400), "too long": (b"3\r\nabcdef\r\n0\r\n\r\n", 400), "size over the limit": (b"fffffff\r\n" + b"x" * 1000, None)}


@pytest.mark.parametrize("name", CHUNKS)
def test_chunks(tiny, name):
    data, status = CHUNKS[name]
    end = "answered" if status == 200 else "at once"  # else the server waits for more
    found = answers(tiny.exchange(post(data, b"Transfer-Encoding: chunked", b"Connection: close", length=False), end))
    assert len(found) == 1 and found[0][0] in ([status] if status else [400, 413])


def test_a_body_that_ends_early(tiny):
    assert one(tiny, post(BODY[:-5], b"Content-Length: %d" % len(BODY), length=False), "at once") == 400


def test_expect_continue(tiny):
    with tiny.connect() as connection:
        connection.sendall(post(b"", b"Expect: 100-continue", b"Connection: close", b"Content-Length: %d" % len(BODY), length=False))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(BODY)
        assert answers(receive_all(connection))[0][0] == 200
    refused = post(b"", b"Expect: 100-continue", b"Content-Length: 99999999", length=False)
    assert tiny.exchange(refused).startswith(b"HTTP/1.1 413 ")


def test_pipelined_requests_are_answered_in_order(tiny):
    batch = get() + post() + get(target=b"/nowhere") + post(b"{") + get(target=b"/version") + get(b"Connection: close")
    statuses = [status for status, _ in answers(tiny.exchange(batch, "never"))]
    assert statuses == [200, 200, 404, 400, 200, 200]
    assert [s for s, _ in answers(tiny.exchange(get() * 49 + get(b"Connection: close"), "never"))] == [200] * 50


def test_nothing_after_a_refused_body_is_taken_for_a_request(tiny):
    """A body that nobody reads must not become the next request (request smuggling)."""
    inner = get(target=b"/version")
    for outer in (b"POST /health HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(inner),
                  b"GET /health HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(inner),
                  b"POST /nowhere HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(inner)):
        assert len(answers(tiny.exchange(outer + inner))) == 1


def test_http_1_0(tiny):
    (answer,) = answers(tiny.exchange(get(version=b"1.0")))
    assert answer == (200, b'{"status":"ok"}')
    stream = tiny.exchange(post(b'{"prompt": [1], "max_tokens": 3, "stream": true}', version=b"1.0"), "never")
    assert b"chunked" not in stream.lower() and stream.endswith(b"data: [DONE]\n\n")
    stream = tiny.exchange(post(b'{"prompt": [1], "max_tokens": 3, "stream": true}', b"Connection: keep-alive",
                                version=b"1.0"), "never")
    assert stream.endswith(b"data: [DONE]\n\n")  # its end is the connection's
    kept = tiny.exchange(get(b"Connection: keep-alive", version=b"1.0") * 2)
    assert len(answers(kept)) == 2


def test_head_and_absolute_targets(tiny):
    answer = tiny.exchange(b"HEAD /health HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\n")
    assert one(tiny, get(target=b"http://elsewhere/health")) == 200
    assert one(tiny, get(target=b"http://elsewhere")) == 404


def test_slow_clients_do_not_hold_up_others(tiny):
    """Heads and bodies that trickle in; others are served, and before the server gives the slow ones up."""
    slow = [tiny.connect() for _ in range(100)]
    try:
        for index, connection in enumerate(slow):
            connection.sendall(b"GET /hea" if index % 2 else post(BODY)[:-10])
        for connection in slow[:20]:
            connection.sendall(b"l")
            assert one(tiny, get(b"Connection: close")) == 200
        assert one(tiny, post(BODY, b"Connection: close")) == 200
        assert not select.select(slow, [], [], 0)[0]  # heads have 10 s, which is long for a few answers
    finally:
        for connection in slow:
            connection.close()


@pytest.mark.skipif(not FULL, reason="waits for the server's time limit of 10 s (ARK_FULL=1)")
def test_a_head_that_never_ends_is_given_up(tiny):
    with tiny.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost:")
        begin = time.monotonic()
        assert answers(receive_all(connection))[0][0] == 408
        assert 8 < time.monotonic() - begin < 14


def test_clients_that_reset_in_the_middle(tiny):
    for cut in (1, 10, 40, 60, 80, len(post())):
        for data in (post(), post(b'{"prompt": [1], "max_tokens": 100, "stream": true, "ignore_eos": true}')):
            connection = tiny.connect()
            connection.sendall(data[:cut])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
            connection.close()


PIECES = [b"GET ", b"POST ", b"/health", b"/v1/completions", b" HTTP/1.1", b" HTTP/1.0", b"\r\n", b"\n", b"\r", b"\r\n\r\n",
          b"Host: x", b"Content-Length: ", b"Transfer-Encoding: chunked", b"Connection: close", b"Expect: 100-continue",
          b"0", b"5", b"ffffffff", b"-1", b"{", b"}", b'{"prompt": ', b"[1]", b'"max_tokens": 1', b",", b'"', b"\\u", b"\0",
          b"\xff", b" ", b":", b"x" * 300, BODY, post(), get()]


def fuzzed(dice):
    if dice.random() < 0.5:
        return b"".join(dice.choice(PIECES) for _ in range(dice.randrange(1, 25)))
    data = bytearray(dice.choice([post(), post() + get(), post(b"5\r\nabcde\r\n0\r\n\r\n", b"Transfer-Encoding: chunked", length=False)]))
    for _ in range(dice.randrange(1, 6)):
        at = dice.randrange(len(data))
        kind = dice.randrange(3)
        if kind == 0:
            data[at] = dice.randrange(256)
        elif kind == 1:
            del data[at:at + dice.randrange(1, 20)]
        else:
            data[at:at] = dice.choice(PIECES)
        if not data:
            break
    return bytes(data)


def test_random_bytes_never_give_a_5xx(tiny):
    """Seeded, on several connections at once; the bytes of a failure are in its message."""
    failures = []

    def work(seed):
        dice = random.Random(seed)
        for _ in range(2500 if FULL else 150):
            data = fuzzed(dice)
            answer = tiny.exchange(data, "at once")
            for status in re.findall(rb"(?m)^HTTP/1\.[01] (\d{3}) ", answer):
                if status >= b"500":
                    failures.append((data, answer))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]


@pytest.mark.parametrize("target, shown", [
    (b"/x%20level=error%20status=200", 'path="/x level=error status=200"'), (b"/a%22b", 'path="/a\\"b"'),
    (b"/a%E2%80%AEb%E2%80%A8c", 'path="/a\\xe2\\x80\\xaeb\\xe2\\x80\\xa8c"'), (b"/plain%2Fpath", "path=/plain/path")])
def test_a_path_forges_no_fields_of_the_log(tiny, target, shown):
    mark = f"mark-{abs(hash(target))}"
    assert one(tiny, get(b"Host: x", b"X-Request-Id: " + mark.encode(), target=target)) == 404
    until(lambda: any(mark in line for line in list(tiny.log)), "the request's line in the log")
    (line,) = [line for line in tiny.log if mark in line]
    assert shown in line and line.isprintable() and " status=404 " in line

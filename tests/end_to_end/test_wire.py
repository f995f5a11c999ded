"""HTTP byte by byte: what no client library sends. The right 4xx, never a 5xx, never a crash; others are served."""

import email.utils
import json
import random
import re
import select
import socket
import threading
import time

import pytest

from ark_server import BODY, FULL, Server, raw_get, raw_post, receive_all, until

FOUR_KEYS = {"message", "type", "param", "code"}


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
        date = email.utils.parsedate_to_datetime(re.search(rb"\r\nDate: (.* GMT)\r?", head + b"\r")[1].decode())
        assert abs(date.timestamp() - time.time()) < 60
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
    assert answers(tiny.exchange(raw_post(BODY, b"Connection: close")))[0][0] == 200
    assert tiny.process.poll() is None


HEADS = {
    "no version": (b"GET /health\r\n\r\n", 400), "HTTP/2": (raw_get(version=b"2.0"), 400),
    "HTTP/0.9": (raw_get(version=b"0.9"), 400), "preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),
    "bare LF": (b"GET /health HTTP/1.1\nHost: x\n\n", 400), "no colon": (raw_get(b"Name x"), 400),
    "space before colon": (raw_get(b"Name : x"), 400), "folded": (raw_get(b"Name: x", b" y"), 400),
    "nul in a header": (raw_get(b"Name: x\0y"), 400), "CR in a header": (raw_get(b"Name: x\ry"), 400),
    "empty name": (raw_get(b": x"), 400), "nul in the target": (raw_get(target=b"/\0"), 400),
    "space in the target": (raw_get(target=b"/a b"), 400), "raw UTF-8 target": (raw_get(target="/ü".encode()), 400),
    "relative target": (raw_get(target=b"health"), 400), "long target": (raw_get(target=b"/" + b"x" * 5000), 414),
    "very long line": (b"GET /" + b"x" * 100_000, 414), "long header": (raw_get(b"A: " + b"x" * 40_000), 431),
    "endless headers": (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20_000, 431), "many headers": (raw_get(*[b"A: b"] * 101), 431),
    "length is a word": (raw_post(BODY, b"Content-Length: x", length=False), 400),
    "length is negative": (raw_post(BODY, b"Content-Length: -1", length=False), 400),
    "length has a sign": (raw_post(BODY, b"Content-Length: +5", length=False), 400),
    "length is huge": (raw_post(BODY, b"Content-Length: 99999999999999999999", length=False), 400),
    "length over the limit": (raw_post(b"", b"Content-Length: 99999999999", length=False), 413),
    "two lengths": (raw_post(BODY, b"Content-Length: 3"), 400), "a list of lengths": (raw_post(BODY, b"Content-Length: 5, 5", length=False), 400),
    "length and chunked": (raw_post(BODY, b"Transfer-Encoding: chunked"), 400),
    "other transfer coding": (raw_post(BODY, b"Transfer-Encoding: gzip", length=False), 400),
    "chunked twice": (raw_post(b"0\r\n\r\n", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", length=False), 400),
    "chunked in 1.0": (raw_post(b"0\r\n\r\n", b"Transfer-Encoding: chunked", length=False, version=b"1.0"), 400),
    "expectation": (raw_post(BODY, b"Expect: 200-ok"), 417), "no body": (raw_post(b"", length=False), 400),
    "empty body": (raw_post(b""), 400), "lower case method": (b"get /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    "connect": (b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n", 400),
    "no Host": (b"GET /health HTTP/1.1\r\n\r\n", 400), "two Hosts": (raw_get(b"Host: localhost"), 400),
    "a list of Hosts": (b"GET /health HTTP/1.1\r\nHost: localhost, x\r\n\r\n", 400),
    "another's Host": (b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
    "another's target": (raw_get(target=b"http://evil.example/health"), 403), "another's page": (raw_get(b"Origin: http://evil.example"), 403),
    "no page": (raw_get(b"Origin: null"), 403), "our own page": (raw_get(b"Origin: http://localhost:3000"), 200),
    "two keys": (raw_get(b"Authorization: Bearer a", b"Authorization: Bearer b"), 400),
    "text": (raw_post(BODY).replace(b"application/json", b"text/plain"), 415), "no type": (raw_post(BODY).replace(b"application/json", b""), 415),
    "form": (raw_post(BODY).replace(b"application/json", b"application/x-www-form-urlencoded"), 415),
    "json with charset": (raw_post(BODY).replace(b"/json", b"/JSON; charset=utf-8"), 200),
}


@pytest.mark.parametrize("name", HEADS)
def test_malformed_heads(tiny, name):
    data, status = HEADS[name]
    assert one(tiny, data) == status


def chunked(*sizes_and_data, end=b"0\r\n\r\n"):
    return b"".join(size + b"\r\n" + data + b"\r\n" for size, data in sizes_and_data) + end


SIZE = b"%x" % len(BODY)
CHUNKS = {"good": (chunked((b"4", BODY[:4]), (b"%x;ext=1" % (len(BODY) - 4), BODY[4:])), 200),
          "trailers": (chunked((SIZE, BODY), end=b"0;last\r\nExpires: never\r\nContent-Length: 3\r\n\r\n"), 200),
          "zeros": (chunked((b"00" + SIZE, BODY)), 200), "size is a word": (b"xyz\r\n", 400), "size is negative": (b"-2", 400),
          "size with 0x": (chunked((b"0x" + SIZE, BODY)), 400), "size with a sign": (chunked((b"+" + SIZE, BODY)), 400),
          "size after a blank": (chunked((b" " + SIZE, BODY)), 400), "size before a blank": (chunked((SIZE + b" ", BODY)), 400),
          "size before junk": (chunked((SIZE + b"zz", BODY)), 400), "bare LF": (chunked((SIZE, BODY)).replace(b"\r", b""), 400),
          "bare LF after data": (SIZE + b"\r\n" + BODY + b"\n0\r\n\r\n", 400), "no CR LF after data": (SIZE + b"\r\n" + BODY + b"0\r\n\r\n", 400),
          "a trailer that is none": (chunked((SIZE, BODY), end=b"0\r\nGET / HTTP/1.1\r\n\r\n"), 400),
          "endless extension": (b"1;" + b"x" * 100_000, 400), "endless trailers": (b"0\r\n" + b"A: b\r\n" * 20_000, 400),
          "size is huge": (b"ffffffffffffffff\r\nx", 413), "size is beyond numbers": (b"1" + b"0" * 16 + b"\r\nx", 400),
          "no end": (b"5\r\nabc", 400), "too long": (b"3\r\nabcdef\r\n0\r\n\r\n", 400),
          "size over the limit": (b"fffffff\r\n" + b"x" * 1000, 413)}


@pytest.mark.parametrize("name", CHUNKS)
def test_chunks(tiny, name):
    """What follows a malformed one is no request."""
    data, status = CHUNKS[name]
    end = "at once" if name == "no end" else "never"
    found = answers(tiny.exchange(raw_post(data, b"Transfer-Encoding: chunked", length=False) + (status == 200) * raw_get(b"Connection: close"), end))
    assert [one_status for one_status, _ in found] == ([200, 200] if status == 200 else [status])


def decode_chunks(data):
    """RFC 9112, section 7.1, as a regular expression says it: body and rest, or None."""
    body = b""
    while match := re.match(rb"([0-9A-Fa-f]{1,16})(;[^\x00-\x08\x0a-\x1f\x7f]*)?\r\n", data):
        size, data = int(match[1], 16), data[match.end():]
        if size == 0:
            end = re.match(rb"([!#-'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n)*\r\n", data)
            return (body, data[end.end():]) if end else None
        if data[size:size + 2] != b"\r\n":
            return None
        body, data = body + data[:size], data[size + 2:]
    return None


def test_chunks_are_what_a_second_reader_takes_them_for(tiny):
    """Seeded mutations of good bodies; both readers agree about body and end, or refuse."""
    dice, agreed = random.Random(7), {True: 0, False: 0}
    for _ in range(20_000 if FULL else 600):
        cut = sorted(dice.sample(range(1, len(BODY)), 2))
        parts = [BODY[:cut[0]], BODY[cut[0]:cut[1]], BODY[cut[1]:]]
        data = bytearray(chunked(*((b"%x" % len(part) + dice.choice([b"", b"", b";a=b"]), part) for part in parts),
                                 end=dice.choice([b"0\r\n\r\n", b"0;x\r\nA: b\r\n\r\n"])))
        if dice.random() < 0.8:
            frames = [i for i, c in enumerate(data) if c in b"\r\n0123456789abcdef;"]
            at = dice.choice(frames)
            data[at:at + dice.randrange(2)] = dice.choice([b"", b"0", b"-", b"+", b" ", b"\t", b"x", b"\n", b"\r", b"\r\n", b";", b"\0"])
        wanted = decode_chunks(bytes(data))
        if wanted and wanted[0] != BODY:
            continue  # its JSON is another matter
        found = answers(tiny.exchange(raw_post(bytes(data), b"Transfer-Encoding: chunked", length=False), "at once"))
        assert (found[0][0] == 200) == bool(wanted), (bytes(data), found)
        assert wanted or len(found) == 1, (bytes(data), found)
        agreed[bool(wanted)] += 1
    assert min(agreed.values()) > 100, agreed


@pytest.mark.parametrize("tokens", [1, 16_000])
def test_a_client_that_only_ends_its_side_gets_its_answer(long_model, tokens):
    """Also where it has to wait long enough to be asked whether it is still there: so long takes this prompt."""
    body = json.dumps({"prompt": [1] * tokens, "max_tokens": 2, "ignore_eos": True, "n": 2}).encode()
    with Server("--model", long_model, "--threads", 1) as server, server.connect() as connection:
        connection.sendall(raw_post(body))
        connection.shutdown(socket.SHUT_WR)
        data = receive_all(connection)
        assert data.startswith(b"HTTP/1.1 100 Continue\r\n\r\n") == (tokens > 1)
        ((status, answer),) = answers(data)
        assert (status, json.loads(answer)["choices"][1]["finish_reason"]) == (200, "length")


def test_a_body_that_ends_early(tiny):
    assert one(tiny, raw_post(BODY[:-5], b"Content-Length: %d" % len(BODY), length=False), "at once") == 400


def test_expect_continue(tiny):
    with tiny.connect() as connection:
        connection.sendall(raw_post(b"", b"Expect: 100-continue", b"Connection: close", b"Content-Length: %d" % len(BODY), length=False))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(BODY)
        assert answers(receive_all(connection))[0][0] == 200
    refused = raw_post(b"", b"Expect: 100-continue", b"Content-Length: 99999999", length=False)
    assert tiny.exchange(refused).startswith(b"HTTP/1.1 413 ")


def test_pipelined_requests_are_answered_in_order(tiny):
    batch = raw_get() + raw_post() + raw_get(target=b"/nowhere") + raw_post(b"{") + raw_get(target=b"/version") + raw_get(b"Connection: close")
    statuses = [status for status, _ in answers(tiny.exchange(batch, "never"))]
    assert statuses == [200, 200, 404, 400, 200, 200]
    assert [s for s, _ in answers(tiny.exchange(raw_get() * 49 + raw_get(b"Connection: close"), "never"))] == [200] * 50


def test_nothing_after_a_refused_body_is_taken_for_a_request(tiny):
    """A body that nobody reads must not become the next request (request smuggling)."""
    inner = raw_get(target=b"/version")
    for outer in (b"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(inner),
                  b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(inner),
                  b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(inner)):
        assert len(answers(tiny.exchange(outer + inner))) == 1


def test_blank_lines_before_a_request_are_skipped_wherever_they_are_cut(tiny):
    with tiny.connect() as connection:
        for part in (b"\r\n\r", b"\n\r", b"\n" + raw_post(BODY, b"Connection: close")):
            connection.sendall(part)
            time.sleep(0.05)
        assert answers(receive_all(connection))[0][0] == 200
    start = time.monotonic()  # as many take no longer than their bytes
    assert one(tiny, b"\r\n" * (16 << 20) + raw_post(BODY, b"Connection: close")) == 200
    assert time.monotonic() - start < 10


def test_http_1_0(tiny):
    (answer,) = answers(tiny.exchange(raw_get(version=b"1.0")))
    assert answer == (200, b'{"status":"ok"}')
    stream = tiny.exchange(raw_post(b'{"prompt": [1], "max_tokens": 3, "stream": true}', version=b"1.0"), "never")
    assert b"chunked" not in stream.lower() and stream.endswith(b"data: [DONE]\n\n")
    stream = tiny.exchange(raw_post(b'{"prompt": [1], "max_tokens": 3, "stream": true}', b"Connection: keep-alive",
                                version=b"1.0"), "never")
    assert stream.endswith(b"data: [DONE]\n\n")  # its end is the connection's
    kept = tiny.exchange(raw_get(b"Connection: keep-alive", version=b"1.0") * 2)
    assert len(answers(kept)) == 2


def test_head_and_absolute_targets(tiny):
    answer = tiny.exchange(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\n")
    assert one(tiny, raw_get(target=b"http://localhost/health")) == 200
    assert one(tiny, raw_get(target=b"http://127.0.0.1")) == 404


def test_slow_clients_do_not_hold_up_others(tiny):
    """Heads and bodies that trickle in; others are served, and before the server gives the slow ones up."""
    slow = [tiny.connect() for _ in range(100)]
    try:
        for index, connection in enumerate(slow):
            connection.sendall(b"GET /hea" if index % 2 else raw_post(BODY)[:-10])
        for connection in slow[:20]:
            connection.sendall(b"l")
            assert one(tiny, raw_get(b"Connection: close")) == 200
        assert one(tiny, raw_post(BODY, b"Connection: close")) == 200
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
    for cut in (1, 10, 40, 60, 80, len(raw_post())):
        for data in (raw_post(), raw_post(b'{"prompt": [1], "max_tokens": 100, "stream": true, "ignore_eos": true}')):
            connection = tiny.connect()
            connection.sendall(data[:cut])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
            connection.close()


PIECES = [b"GET ", b"POST ", b"/health", b"/v1/completions", b" HTTP/1.1", b" HTTP/1.0", b"\r\n", b"\n", b"\r", b"\r\n\r\n",
          b"Host: x", b"Content-Length: ", b"Transfer-Encoding: chunked", b"Connection: close", b"Expect: 100-continue",
          b"0", b"5", b"ffffffff", b"-1", b"{", b"}", b'{"prompt": ', b"[1]", b'"max_tokens": 1', b",", b'"', b"\\u", b"\0",
          b"\xff", b" ", b":", b"x" * 300, BODY, raw_post(), raw_get()]


def fuzzed(dice):
    if dice.random() < 0.5:
        return b"".join(dice.choice(PIECES) for _ in range(dice.randrange(1, 25)))
    data = bytearray(dice.choice([raw_post(), raw_post() + raw_get(), raw_post(b"5\r\nabcde\r\n0\r\n\r\n", b"Transfer-Encoding: chunked", length=False)]))
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
    assert one(tiny, raw_get(b"X-Request-Id: " + mark.encode(), target=target)) == 404
    until(lambda: any(mark in line for line in list(tiny.log)), "the request's line in the log")
    (line,) = [line for line in tiny.log if mark in line]
    assert shown in line and line.isprintable() and " status=404 " in line

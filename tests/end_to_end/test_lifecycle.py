"""From start to drain: a full queue, API keys, SIGTERM with work in flight."""

import json
import signal
import threading
import time

import openai
import pytest

from ark_server import PATIENCE, Server, Stream, raw_get, raw_post, receive_all, takes_at_most, until

FOUR_KEYS = {"message", "type", "param", "code"}


def busy_options(model):
    return {"model": model, "prompt": [1, 2, 3], "temperature": 0, "extra_body": {"ignore_eos": True}}


class Background:
    """A request in a thread of its own: its answer, or the exception."""

    def __init__(self, server, **options):
        self.server, self.options = server, busy_options(server.model) | options
        self.answer = self.error = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            with self.server.client() as client:
                self.answer = client.completions.create(**self.options)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def end(self):
        self.thread.join(2 * PATIENCE)
        assert not self.thread.is_alive()
        return self


def test_a_full_queue_refuses_with_retry_after(long_model):
    with Server("--model", long_model, "--max-num-seqs", 1, "--max-queue", 2, "--kv-memory", "256M") as server:
        first = server.busy()
        queued = []
        for waiting in (1, 2):
            queued.append(Background(server, max_tokens=5))
            until(lambda: server.metric("ark_requests_waiting") == waiting, "a waiting request")
        refused = server.post("/v1/completions", {"prompt": [1], "max_tokens": 1})
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert set(refused.json()["error"]) == FOUR_KEYS
        assert refused.json()["error"]["type"] == "rate_limit_error"
        with server.client() as client, pytest.raises(openai.RateLimitError):
            client.completions.create(**busy_options(server.model), max_tokens=1)
        assert server.get("/health").status_code == 200
        assert server.metric("ark_refused_total") == 2
        first.close()
        assert [run.end().answer.usage.completion_tokens for run in queued] == [5, 5]
        assert server.post("/v1/completions", {"prompt": [1], "max_tokens": 1}).status_code == 200


def test_the_queue_is_bounded_exactly_when_many_come_at_once(long_model):
    """One runs, two wait, all others are refused, however they race."""
    with Server("--model", long_model, "--max-num-seqs", 1, "--max-queue", 2, "--kv-memory", "256M") as server:
        first = server.busy()
        others = [Background(server, max_tokens=2) for _ in range(24)]
        until(lambda: sum(o.error is not None for o in others) == 22, "22 refusals")
        assert server.metric("ark_requests_waiting") == 2
        first.close()
        served = [o.end().answer for o in others if o.end().error is None]
        assert len(served) == 2
        assert all(isinstance(o.error, openai.RateLimitError) for o in others if o.error)


def test_api_keys(tiny_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first-key\n\n  second:second-key \r\n")
    with Server("--model", tiny_model, "--api-key-file", keys) as server:
        until(lambda: any("Authorization: Bearer KEY" in line for line in server.lines), "a command to try")
        for path in ("/health", "/v2/health/live", "/v2/health/ready"):
            assert server.get(path).status_code == 200
        wrong = [None, "", "Bearer", "Bearer x", "Bearer first-ke", "Bearer first-key2", "Basic first-key",
                 "first-key", "Bearer first-key second-key", "Bearer first-keyfirst-key"]
        for path in ("/v1/models", "/metrics", "/version", "/openapi.json", "/nowhere", "/v1/completions"):
            for value in wrong:
                answer = server.get(path, headers={"Authorization": value} if value is not None else {})
                assert answer.status_code == 401 and set(answer.json()["error"]) == FOUR_KEYS
                assert answer.headers["www-authenticate"] == "Bearer"
        for value, status in ((b"Bearer ", 401), (b"Bearer  first-ke", 401), (b"Bearer  first-key", 200), (b"\xff\xfe", 401)):
            answer = server.exchange(raw_get(b"Authorization: " + value, target=b"/version"))
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        # Nothing is read of a body whose sender has no key.
        assert server.exchange(raw_post(b"", b"Content-Length: 1000000", length=False)).startswith(b"HTTP/1.1 401")
        for key in ("first-key", "second-key"):
            with server.client(api_key=key) as client:
                assert client.completions.create(model=server.model, prompt=[1], max_tokens=1).usage.completion_tokens == 1
        with server.client(api_key="third") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        assert not any("first-key" in line for line in server.log + server.lines)


def test_sigterm_lets_what_is_in_flight_finish_and_refuses_the_rest(long_model):
    body = {"prompt": [1, 2, 3], "max_tokens": 500, "ignore_eos": True, "stream": True, "n": 1, "return_token_ids": True,
            "temperature": 0}
    with Server("--model", long_model, "--tp", 2, "--max-num-seqs", 2, "--kv-memory", "256M",
                "--shutdown-timeout", 5 * PATIENCE) as server:
        alone = Stream(server, body).result()
        # A prompt that is read for seconds, before which nobody ends.
        whole = Background(server, prompt=[1 + i % 200 for i in range(12_000)], max_tokens=5)
        until(lambda: server.metric("ark_requests_running") == 1, "a running request")
        reads = threading.Event()
        stream = Stream(server, body, reads)
        until(lambda: server.metric("ark_requests_running") == 2, "both running")
        queued = Background(server, max_tokens=3)
        until(lambda: server.metric("ark_requests_waiting") == 1, "a waiting request")
        server.signal()
        until(lambda: server.get("/health").status_code == 503, "draining")
        assert server.get("/v2/health/live").status_code == 200
        refused = server.post("/v1/completions", {"prompt": [1], "max_tokens": 1})
        assert refused.status_code == 503 and "retry-after" in refused.headers
        assert set(refused.json()["error"]) == FOUR_KEYS and refused.headers["connection"] == "close"
        reads.set()
        assert stream.result() == alone
        assert [run.end().answer.usage.completion_tokens for run in (whole, queued)] == [5, 3]
        assert server.join() == 0


@pytest.mark.parametrize("how", ["timeout", "second signal", "interrupt twice"])
def test_a_drain_ends_early(long_model, how):
    number = signal.SIGINT if how.startswith("interrupt") else signal.SIGTERM
    with Server("--model", long_model, "--tp", 2, "--kv-memory", "256M",
                "--shutdown-timeout", 0.5 if how == "timeout" else 10 * PATIENCE) as server:
        stream, whole = server.busy(), Background(server, max_tokens=60_000)
        until(lambda: server.metric("ark_requests_running") == 2, "both running")
        server.signal(number)
        if how != "timeout":
            until(lambda: any("draining" in line for line in server.log), "draining")
            server.signal(number)
        assert server.join() == 0
        streamed = receive_all(stream)
        assert b'"finish_reason":"length"' not in streamed and whole.end().error is not None
        if how == "timeout":  # there is time to say why
            assert isinstance(whole.error, openai.InternalServerError) and whole.error.status_code == 503
            assert b"shutting down" in streamed


def test_sigterm_while_idle_and_with_idle_connections(tiny_model):
    def stop():
        with Server("--model", tiny_model) as server, server.http() as http, server.connect() as silent:
            # The one that asks stays open; the other may be taken up later.
            until(lambda: "\nark_open_connections 2\n" in http.get("/metrics").text, "both connections")
            since = time.monotonic()
            assert server.stop() == 0
            seconds = time.monotonic() - since
            assert silent.recv(1) == b""
            return seconds

    takes_at_most(1, stop)


def test_json_logs(tiny_model):
    with Server("--model", tiny_model, "--log-format", "json") as server:
        server.post("/v1/completions", {"prompt": [1], "max_tokens": 2, "ignore_eos": True})
        server.get("/no\"where")
        server.stop()
    lines = [json.loads(line) for line in server.log]
    said = [json.loads(line) for line in server.lines]  # the load path's stages, too
    assert all({"time", "level", "message"} <= set(line) for line in lines + said)
    assert any(line["message"].startswith("text ") for line in said)
    assert next(line for line in said if "url" in line)["model"] == server.model
    request = next(line for line in lines if line.get("path") == "/v1/completions")
    assert (request["status"], request["generated_tokens"], request["method"]) == (200, 2, "POST")
    assert any(line.get("status") == 404 for line in lines)

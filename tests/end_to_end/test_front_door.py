"""Who may come in: names, pages in browsers, keys and their limits, other machines, TLS."""

import shutil
import signal
import socket
import ssl
import stat
import subprocess
import threading
import time

import openai
import pytest

from ark_server import PLAIN, Server, httpx2, raw_get, raw_post, run_to_end, takes_at_most, until

COMPLETE = "/v1/completions"
ONE = {"prompt": [1, 2], "max_tokens": 1, "ignore_eos": True}


def test_other_machines_need_keys_or_a_word(tiny_model, tmp_path):
    for host in ("0.0.0.0", "::"):
        run = run_to_end("--model", tiny_model, "--host", host, "--port", 0)
        assert run.returncode == 64 and "--insecure" in run.stderr and run.stderr.count("\n") == 1
    keys = tmp_path / "keys"
    keys.write_text("key\n")
    for options in (["--insecure"], ["--api-key-file", keys]):
        with Server("--model", tiny_model, "--host", "0.0.0.0", *options) as server:
            assert server.url == f"http://0.0.0.0:{server.port}"  # the truth
            until(lambda: any(f"curl http://127.0.0.1:{server.port}/" in line for line in server.lines), "what to try")
            answer = server.get("/health", headers={"Host": "any.name"})  # others call it by many names
            assert answer.status_code == 200
            assert server.get("/v1/models").status_code == (200 if options[0] == "--insecure" else 401)


def test_names_that_are_given_are_allowed_too(tiny_model):
    with Server("--model", tiny_model, "--allowed-hosts", "ark.example,other.example") as server:
        for host, status in (("ark.example", 200), ("Other.Example:80", 200), ("localhost", 200), ("evil.example", 403)):
            assert server.get("/health", headers={"Host": host}).status_code == status, host
        for origin, status in (("https://ark.example", 200), ("https://evil.example", 403)):
            assert server.post(COMPLETE, ONE, headers={"Origin": origin}).status_code == status, origin
    with Server("--model", tiny_model, "--host", "0.0.0.0", "--insecure", "--allowed-hosts", "ark.example") as server:
        assert server.get("/health", headers={"Host": "evil.example"}).status_code == 403
        assert server.get("/health", headers={"Host": "ark.example"}).status_code == 200


def test_pages_that_are_named_may_use_it(tiny_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("key\n")
    page, key = "https://app.example", {"Authorization": "Bearer key"}
    with Server("--model", tiny_model, "--cors-origins", page, "--api-key-file", keys) as server, server.http() as http:
        ask = {"Origin": page, "Access-Control-Request-Method": "POST",
               "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"}
        preflight = http.options(COMPLETE, headers=ask)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == page
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
        for body in (ONE, ONE | {"stream": True}, {"prompt": 1.5}):
            answer = server.post(COMPLETE, body, headers={"Origin": page} | key)
            assert answer.headers["access-control-allow-origin"] == page and "Origin" in answer.headers["vary"]
        refused = server.post(COMPLETE, ONE, headers={"Origin": page})  # whose page can read why
        assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == page
        for other in ("https://evil.example", "http://app.example", "null"):
            assert http.options(COMPLETE, headers=ask | {"Origin": other}).status_code == 403
            assert "access-control-allow-origin" not in server.get("/health", headers={"Origin": other}).headers
        assert "access-control-allow-origin" not in server.get("/health").headers


def test_keys_have_limits_of_their_own(tiny_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("few:f rpm=3\nshort s tpm=20\none:o concurrency=1\nfree:x\n")
    keys.chmod(0o644)
    with Server("--model", tiny_model, "--api-key-file", keys) as server:
        assert any("chmod 600" in line for line in server.log)

        def ask(key, **more):
            return server.post(COMPLETE, ONE | more, headers={"Authorization": f"Bearer {key}"})

        assert [ask("f").status_code for _ in range(4)] == [200, 200, 200, 429]
        refused = ask("f")
        assert 1 <= int(refused.headers["retry-after"]) <= 20 and "few" in refused.json()["error"]["message"]
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert [ask("s", max_tokens=n).status_code for n in (1, 40, 1)] == [200, 200, 429]  # 3 and 42 tokens
        assert [ask("x").status_code for _ in range(20)] == [200] * 20
        assert [ask("o").status_code for _ in range(5)] == [200] * 5
        statuses = []
        threads = [threading.Thread(target=lambda: statuses.append(ask("o", max_tokens=120, n=8).status_code)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 429}
        assert ask("o").status_code == 200
        # Who goes away in the middle of a body gives its place back.
        with server.connect() as connection:
            connection.sendall(raw_post(b"{", b"Authorization: Bearer o", b"Content-Length: 100", length=False))
            until(lambda: ask("o").status_code == 429, "a place that is taken")
        until(lambda: ask("o").status_code == 200, "a place that is free again")
        until(lambda: "key=few" in server.errors() and "key=short" in server.errors(), "names in the log")


def test_cached_tokens_of_prompts_are_counted_once(tiny_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k tpm=1000\n")
    with Server("--model", tiny_model, "--api-key-file", keys) as server:
        again = ONE | {"prompt": [5] * 100, "max_tokens": 1}  # 101 tokens, of which nearly all are cached but the first time
        answers = [server.post(COMPLETE, again, headers={"Authorization": "Bearer k"}) for _ in range(9)]
        assert [answer.status_code for answer in answers] == [200] * 9
        assert answers[-1].json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 50


def make_certificate(folder):
    if not shutil.which("openssl"):
        pytest.skip("no openssl")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
                   check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_tls(tiny_model, certificate):
    cert, key = certificate
    context = ssl.create_default_context(cafile=cert)
    with Server("--model", tiny_model, "--tls-cert", cert, "--tls-key", key) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        with httpx2.Client(base_url=server.url, **PLAIN | {"verify": context}) as http:
            assert http.get("/health").status_code == 200
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http, max_retries=0)
            assert client.completions.create(model=server.model, **{k: ONE[k] for k in ("prompt", "max_tokens")}).choices
            fifty = {"model": server.model, "prompt": [1], "max_tokens": 50, "temperature": 0, "extra_body": {"ignore_eos": True}}
            chunks = list(client.completions.create(**fifty, stream=True))  # on a busy machine several tokens each
            assert len(chunks) > 1
            assert "".join(c.choices[0].text for c in chunks if c.choices) == client.completions.create(**fifty).choices[0].text
            long = http.post(COMPLETE, json={"prompt": [1] * 200_000})  # several records
            assert long.status_code == 400
        # What speaks no TLS, or stalls in the handshake, is nobody's hindrance.
        plain = server.exchange(raw_get(), "never")
        assert b"200" not in plain
        silent = [server.connect() for _ in range(200)]
        for connection in silent:
            connection.sendall(b"\x16\x03\x01\x02\x00\x01")

        def seconds():
            since = time.monotonic()
            assert httpx2.get(f"{server.url}/health", **PLAIN | {"verify": context}).status_code == 200
            return time.monotonic() - since
        takes_at_most(1, seconds)
        with context.wrap_socket(socket.create_connection(("127.0.0.1", server.port)), server_hostname="localhost") as secure:
            secure.sendall(raw_get() * 20 + raw_get(b"Connection: close"))
            data = b""
            while block := secure.recv(65536):
                data += block
            assert data.count(b"HTTP/1.1 200 ") == 21
        for connection in silent:
            connection.close()


def test_a_certificate_is_read_again(tiny_model, tmp_path):
    cert, key = make_certificate(tmp_path)
    with Server("--model", tiny_model, "--tls-cert", cert, "--tls-key", key) as server:

        def served():
            return ssl.get_server_certificate(("127.0.0.1", server.port))

        old = cert.read_text()
        assert served() == old
        make_certificate(tmp_path)
        assert served() == old != cert.read_text()
        server.signal(signal.SIGHUP)
        until(lambda: served() == cert.read_text(), "the new certificate")
        new = served()
        for broken in ("no certificate\n", old):  # which is not of this key
            cert.write_text(broken)
            log = len(server.log)
            server.signal(signal.SIGHUP)
            line = until(lambda: [line for line in server.log[log:] if " stay as they were" in line], "a line")[0]
            assert "--tls-" in line and served() == new


def test_tls_files_that_are_wrong(tiny_model, certificate, tmp_path):
    cert, key = certificate
    other = tmp_path / "other.pem"
    other.write_text("no key\n")
    other.chmod(stat.S_IRUSR)
    for options, code in ((["--tls-cert", cert], 64), (["--tls-cert", cert, "--tls-key", other], 64),
                          (["--tls-cert", key, "--tls-key", key], 64), (["--tls-cert", cert, "--tls-key", tmp_path / "none"], 66)):
        run = run_to_end("--model", tiny_model, "--port", 0, *options)
        assert run.returncode == code and "--tls" in run.stderr and run.stderr.count("\n") == 1, run

"""Behind nginx, configured as docs/serving.md says: TLS, names, tokens as they are made, clients who leave."""

import re
import shutil
import ssl
import subprocess
import time

import openai
import pytest

from ark_server import PLAIN, ROOT, Server, free_port, httpx2, is_ready, until
from test_front_door import make_certificate
from test_load import is_idle


@pytest.fixture(scope="module")
def recipe():
    if not shutil.which("nginx"):
        pytest.skip("no nginx, which .ci/run installs")
    (text,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs" / "serving.md").read_text(), re.DOTALL)
    return text


@pytest.fixture(scope="module")
def served(recipe, long_model, tmp_path_factory):
    """A server, and a client of the proxy before it."""
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    cert, key = make_certificate(folder)
    with Server("--model", long_model, "--allowed-hosts", "ark.example") as server:
        for given, here in (("443", port), ("/etc/ssl/ark.example.pem", cert), ("/etc/ssl/ark.example.key", key),
                            ("127.0.0.1:8000", f"127.0.0.1:{server.port}")):
            assert recipe.count(given) == 1, given
            recipe = recipe.replace(given, str(here))
        folders = "".join(f"{kind}_temp_path {folder / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "nginx.conf").write_text(f"daemon off; master_process off; error_log stderr; pid {folder / 'pid'};\n"
                                           f"events {{}} http {{ access_log off; {folders}\n{recipe}}}\n")
        nginx = subprocess.Popen(["nginx", "-p", folder, "-c", folder / "nginx.conf"])
        http = httpx2.Client(**PLAIN | {"verify": ssl.create_default_context(cafile=cert)}, headers={"Host": "ark.example"},
                             base_url=f"https://localhost:{port}")
        try:
            until(lambda: is_ready(http), "nginx")
            yield server, http
        finally:
            http.close()
            nginx.kill()
            nginx.wait()


def test_tokens_come_through_as_they_are_made(served):
    server, http = served
    client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", http_client=http, max_retries=0)
    options = {"model": server.model, "max_tokens": 4, "temperature": 0, "extra_body": {"ignore_eos": True}}
    alone = client.completions.create(prompt=[1], **options).choices[0].token_ids
    # Tokens of the first prompt, too few to fill a buffer, come while the second is read.
    since, times, tokens = time.monotonic(), [], []
    for chunk in client.completions.create(prompt=[[1], [1] * 12_000], stream=True, **options):
        times.append(time.monotonic() - since)
        tokens += chunk.choices[0].token_ids * (chunk.choices[0].index == 0)
    assert tokens == alone and len(alone) == 4 and times[0] < times[-1] / 2, times


def test_who_leaves_the_proxy_leaves_the_server(served):
    server, http = served
    body = {"prompt": [1], "max_tokens": 60_000, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()  # whose end is the connection's
        next(lines)
        until(lambda: server.metric("ark_requests_running") == 1, "a running request")
    until(lambda: is_idle(server), "the end of the request")


def test_names_ids_and_large_bodies_are_handed_on(served):
    server, http = served
    assert http.get("/health", headers={"Host": "evil.example"}).status_code == 403
    answer = http.post("/v1/completions", json={"prompt": [1] * 200_000})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"
    until(lambda: f"id={answer.headers['x-request-id']} " in server.errors(), "the same id in the log")

"""The routes beside generation, checked by the tools that read them."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import jinja2.sandbox
import openapi_spec_validator
import pytest
from tokenizers import Tokenizer

from ark_server import TINY, Server, until

FOUR_KEYS = {"message", "type", "param", "code"}
TEXTS = ["Hello world", "", " ", "naïve 漢字 🦆\u200d", "<|im_start|>user\nHi<|im_end|>\n", "a\x00b", "\ud7ff\ue000￿"]


def test_models(tiny, client):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("llama-optimum", "model", "ark")
    assert client.models.retrieve("llama-optimum").id == model.id
    missing = tiny.get("/v1/models/other/with/slashes%20and%20spaces")
    assert missing.status_code == 404
    assert set(missing.json()["error"]) == FOUR_KEYS
    assert missing.json()["error"]["code"] == "model_not_found"
    assert "other/with/slashes and spaces" in missing.json()["error"]["message"]
    for path in ("/api/tags", "/v1/messages"):
        assert f"there is no {path} here; the API is OpenAI's" in tiny.get(path).json()["error"]["message"]


def test_apply_template_is_what_jinja2_renders(tiny):
    template = json.loads((TINY / "tokenizer_config.json").read_text())["chat_template"]
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    for messages in ([{"role": "user", "content": "Hi"}],
                     [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 漢字\n"},
                      {"role": "assistant", "content": "So?"}, {"role": "user", "content": "Go on"}]):
        for begin in (True, False):
            answer = tiny.post("/apply-template", {"messages": messages, "add_generation_prompt": begin})
            wanted = environment.from_string(template).render(
                messages=messages, add_generation_prompt=begin, tools=None,
                **{name: token for name, token in json.loads((TINY / "tokenizer_config.json").read_text()).items()
                   if name.endswith("_token") and isinstance(token, str)})
            assert (answer.status_code, answer.json()) == (200, {"prompt": wanted})
            # What a chat with these messages is computed from.
            ids = tiny.post("/tokenize", {"messages": messages, "add_generation_prompt": begin}).json()["tokens"]
            assert tiny.post("/tokenize", {"prompt": wanted, "add_special_tokens": False}).json()["tokens"] == ids
    refused = tiny.post("/apply-template", {"messages": []})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")


def test_what_a_template_would_lose_is_refused(tmp_path):
    """Roles and tools that it prints are taken, others refused by name."""
    for name in ("model.onnx", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role in ['user', 'assistant', 'tool'] %}[{{ m.role }}] {{ m.content }}\n"
        "{% endif %}{% endfor %}")
    user = {"role": "user", "content": "Hi"}
    with Server("--model", tmp_path) as server:
        for role, status in {"system": 400, "developer": 400, "function": 400, "tool": 200, "assistant": 200}.items():
            body = {"messages": [user, {"role": role, "content": "Be brief"}], "max_tokens": 1}
            for path in ("/apply-template", "/tokenize", "/v1/chat/completions"):
                answer = server.post(path, body)
                assert answer.status_code == status, (role, path, answer.text)
                if status == 400:
                    assert answer.json()["error"]["param"] == "messages[1].role"
                    assert f"is {role}, which the model's chat template does not print" in answer.json()["error"]["message"]
            begun = {"role": "assistant", "content": "So", "prefix": True}
            goes_on = server.post("/apply-template", {"messages": [*body["messages"], begun]})
            assert goes_on.status_code == status, (role, goes_on.text)
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        lost = server.post("/apply-template", {"messages": [user], "tools": tools})
        assert lost.status_code == 400 and lost.json()["error"]["param"] == "tools"
        assert server.post("/apply-template", {"messages": [user], "tools": tools, "tool_choice": "none"}).status_code == 200
    (tmp_path / "chat_template.jinja").write_text("{{ tools | tojson }}{{ messages[0].content }} {{ reasoning_effort or 'low' }}")
    with Server("--model", tmp_path) as server:
        for effort, printed in {"high": "high", "low": "low", "": "low", None: "low"}.items():
            answer = server.post("/apply-template", {"messages": [user], "reasoning_effort": effort})
            assert answer.json() == {"prompt": "nullHi " + printed}
        assert '"name": "f"' in server.post("/apply-template", {"messages": [user], "tools": tools}).json()["prompt"]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_tokenize_is_the_tokenizers_library(tiny, text):
    oracle = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    for special in (True, False):
        answer = tiny.post("/tokenize", {"prompt": text, "add_special_tokens": special, "return_token_strs": True})
        assert answer.status_code == 200
        wanted = oracle.encode(text, add_special_tokens=special)
        assert answer.json()["tokens"] == wanted.ids and answer.json()["count"] == len(wanted.ids)
        assert answer.json()["token_strs"] == wanted.tokens
        assert answer.json()["max_model_len"] == 128
    back = tiny.post("/detokenize", {"tokens": wanted.ids}).json()["prompt"]
    assert back == oracle.decode(wanted.ids, skip_special_tokens=False)


def test_tokenizer_info_is_what_lies_beside_the_model(tiny):
    """As lm-eval's remote tokenizer reads it."""
    config = json.loads((TINY / "tokenizer_config.json").read_text())
    for query in ("", "?model=llama-optimum"):
        info = tiny.get("/tokenizer_info" + query).json()
        for name in ("bos_token", "eos_token", "pad_token", "chat_template"):
            assert info[name] == config.get(name), name
        assert info["model_max_length"] == 128
    assert tiny.get("/tokenizer_info?model=other").status_code == 404


def test_health_and_version(tiny):
    for path in ("/health", "/v2/health/live", "/v2/health/ready"):
        answer = tiny.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert set(tiny.get("/version").json()) == {"version"}


def test_probes_are_logged_at_level_debug_only(tiny_model):
    for level, wanted in (("info", {"/v1/models"}), ("debug", {"/health", "/metrics", "/v1/models"}), ("error", set())):
        with Server("--model", tiny_model, "--log-level", level, "--log-format", "json") as server:
            for path in ("/health", "/metrics", "/v1/models"):
                assert server.get(path).status_code == 200
            server.stop()
        assert {line["path"] for line in map(json.loads, server.log) if "path" in line} == wanted


def test_a_model_may_have_several_names(tiny_model):
    with Server("--model", tiny_model, "--served-model-name", "first", "second", "--served-model-name", "third") as server:
        assert server.model == "first"
        assert [m["id"] for m in server.get("/v1/models").json()["data"]] == ["first", "second", "third"]
        for name in ("first", "second", "third"):
            answer = server.post("/v1/completions", {"model": name, "prompt": [1], "max_tokens": 1})
            assert (answer.status_code, answer.json()["model"]) == (200, "first")
            described = server.get(f"/v1/models/{name}").json()
            assert (described["id"], described["root"]) == (name, "first")
        wrong = server.post("/v1/completions", {"model": "gpt-4o-mini", "prompt": [1]})
        assert wrong.status_code == 404 and "first" in wrong.json()["error"]["message"]


def schema_faults(name, schema):
    """Values that a field's schema excludes, by its own words."""
    kind = schema.get("type")
    if kind in ("integer", "number"):
        yield "x"
        yield True
        if kind == "integer":
            yield 1.5
        for bound, step in (("minimum", -1), ("maximum", 1)):
            if abs(schema[bound]) < 2**62:
                yield schema[bound] + step
    elif kind == "boolean":
        yield "yes"
        yield 1
    elif kind == "string":
        yield 5
        if "enum" in schema:
            yield "none of these"


def resolved(document, operation):
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return document["components"]["schemas"][reference.rsplit("/", 1)[1]]


GOOD = {"/v1/completions": {"prompt": "Hi", "max_tokens": 1}, "/tokenize": {"prompt": "Hi"},
        "/detokenize": {"tokens": [1]}, "/apply-template": {"messages": [{"role": "user", "content": "Hi"}]},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
        "/v1/responses": {"input": "Hi", "max_output_tokens": 1}}


def test_what_openapi_excludes_is_refused_by_name(tiny):
    """The document and the reader are one table: each field, tried with what the document says it cannot be."""
    document, tried = tiny.get("/openapi.json").json(), 0
    with tiny.http() as http:
        for path, good in GOOD.items():
            for name, schema in resolved(document, document["paths"][path]["post"])["properties"].items():
                if path == "/tokenize" and name not in ("prompt", "add_special_tokens", "return_token_strs", "model"):
                    continue  # read only beside messages
                for value in schema_faults(name, schema):
                    extra = {"logprobs": True} if name == "top_logprobs" else {}
                    answer = http.post(path, json=good | extra | {name: value})
                    assert answer.status_code in (400, 404), (path, name, value, answer.text)
                    assert answer.json()["error"]["param"] == name, (path, name, value, answer.text)
                    tried += 1
    assert tried > 80


def test_openapi_is_valid_and_lists_every_route(tiny):
    document = tiny.get("/openapi.json").json()
    openapi_spec_validator.validate(document)
    assert set(document["paths"]) == {
        "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/models", "/v1/models/{model}", "/tokenize", "/detokenize", "/tokenizer_info",
        "/apply-template", "/health", "/v2/health/live", "/v2/health/ready", "/version", "/metrics", "/metrics/vllm", "/debug/slow",
        "/openapi.json"}
    with tiny.http() as http:
        for path, methods in document["paths"].items():
            path = path.replace("{model}", tiny.model)
            for method in methods:
                assert http.request(method.upper(), path, json={} if method == "post" else None).status_code in (200, 400)
            allowed = http.request("OPTIONS", path).headers["allow"].split(", ")
            assert {m.lower() for m in allowed} - {"head", "options"} == set(methods)


def test_the_openapi_schemas_know_every_field_that_is_answered(tiny):
    schemas = tiny.get("/openapi.json").json()["components"]["schemas"]
    messages = [{"role": "user", "content": "Hi"}]
    asked = {"CompletionAnswer": tiny.post("/v1/completions", {"prompt": "Hi", "return_token_ids": True, "logprobs": 1}),
             "ChatAnswer": tiny.post("/v1/chat/completions", {"messages": messages, "return_token_ids": True,
                                                              "max_tokens": 3}),
             "TokenizeAnswer": tiny.post("/tokenize", {"messages": messages}),
             "Model": tiny.get(f"/v1/models/{tiny.model}")}
    for name, answer in asked.items():
        schema = schemas[name]
        assert set(answer.json()) <= set(schema["properties"]), name
        assert set(schema["required"]) <= set(answer.json()), name
        for choice in answer.json().get("choices", []):
            assert set(choice) <= set(schema["properties"]["choices"]["items"]["properties"]), name


def test_metrics_satisfy_promtool(tiny, client):
    if not shutil.which("promtool"):
        pytest.skip("no promtool (Debian package prometheus)")
    client.completions.create(model=tiny.model, prompt="Hi", max_tokens=3)
    answer = tiny.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"

    def check(text):
        return subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)

    ours = re.sub(r"^(# (HELP|TYPE) )?vllm:.*\n", "", answer.text, flags=re.M)
    assert "vllm:" not in ours and (run := check(ours)).returncode == 0 and run.stdout + run.stderr == ""
    whole = check(answer.text)  # it minds nothing but the colon that vLLM writes
    assert all("should not contain ':'" in line for line in (whole.stdout + whole.stderr).splitlines()), whole


def test_metrics_by_vllms_names(tiny, client):
    """What vLLM's dashboards ask for, with the values of ours; promtool minds nothing but the colon that vLLM writes."""
    client.completions.create(model=tiny.model, prompt="Hi", max_tokens=3)
    text = tiny.get("/metrics").text
    names = lambda some: set(re.findall(r"^# TYPE (\S+)", some, re.M))  # noqa: E731
    assert names(tiny.get("/metrics/vllm").text) == {name for name in names(text) if name.startswith("vllm:")}
    ours = {"num_requests_running": "ark_requests_running", "num_requests_waiting": "ark_requests_waiting",
            "kv_cache_usage_perc": "ark_kv_usage_ratio", "gpu_cache_usage_perc": "ark_kv_usage_ratio",
            "prompt_tokens_total": "ark_prompt_tokens_total", "generation_tokens_total": "ark_generated_tokens_total",
            "time_to_first_token_seconds_count": "ark_time_to_first_token_seconds_count",
            "time_per_output_token_seconds_count": "ark_inter_token_latency_seconds_count",
            "e2e_request_latency_seconds_count": "ark_request_latency_seconds_count"}
    for theirs, name in ours.items():
        (value,) = re.findall(rf'^vllm:{theirs}\{{model_name="{tiny.model}"\}} (\S+)$', text, re.M)
        assert float(value) == tiny.metric(name)
    (value,) = re.findall(r'^vllm:request_success_total\{.*finished_reason="length"\} (\d+)$', text, re.M)
    assert int(value) == tiny.metric("ark_sequences_total", reason="length") > 0
    assert len(re.findall(r"^# TYPE (\S+)", text, re.M)) == len(names(text))  # none twice
    if shutil.which("promtool"):
        check = subprocess.run(["promtool", "check", "metrics"], input=text.replace("vllm:", "vllm_"), text=True,
                               capture_output=True)
        assert "error" not in check.stdout + check.stderr, check.stderr


def test_metrics_of_the_process(tiny):
    tiny.get("/nowhere")
    tiny.post("/health", {})
    assert tiny.metric("ark_build_info", version=tiny.get("/version").json()["version"]) == 1
    pid = tiny.process.pid
    assert tiny.metric("process_open_fds") <= len(os.listdir(f"/proc/{pid}/fd")) + 8
    assert 3 < tiny.metric("process_open_fds") <= tiny.metric("process_max_fds")
    stat = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    cpu = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    assert cpu - 0.02 <= tiny.metric("process_cpu_seconds_total") <= cpu + 10
    assert tiny.metric("ark_load_seconds") > 0
    assert 0 <= tiny.metric("ark_kv_usage_ratio") <= 1
    assert 'route=""' not in tiny.get("/metrics").text
    assert tiny.metric("ark_http_requests_total", route="none", status="404") >= 1
    assert tiny.metric("ark_http_requests_total", route="none", status="405") >= 1


def test_metrics_of_running_streams(long_model):
    with Server("--model", long_model, "--kv-memory", "256M", "--speculate", "off") as server:
        assert server.metric("ark_kv_usage_ratio") == 0
        streams = [server.busy(), server.busy()]
        until(lambda: server.metric("ark_batch_sequences") == 2, "a step of both")
        assert server.metric("ark_batch_tokens") == 2
        assert 0 < server.metric("ark_kv_usage_ratio") < 1
        for stream in streams:
            stream.close()


def test_energy_is_counted_where_it_can_be_read(tiny_model, tmp_path):
    """By a tree as the kernel's: no machine of the tests shows its own."""
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, text in (("name", "package-0"), ("energy_uj", "5000000"), ("max_energy_range_uj", "262143328850")):
        (zone / name).write_text(text + "\n")
    with Server("--model", tiny_model, environment={"ARK_POWERCAP": str(tmp_path)}) as server:
        assert server.metric("ark_energy_joules_total") == 0
        assert "ark_power_watts" not in server.get("/metrics").text
        (zone / "energy_uj").write_text("7500000\n")
        began = time.monotonic()
        time.sleep(1)
        assert server.metric("ark_power_watts") == pytest.approx(2.5 / (time.monotonic() - began), rel=0.5)
        assert server.metric("ark_energy_joules_total") == 2.5
    with Server("--model", tiny_model, environment={"ARK_POWERCAP": str(tmp_path / "nowhere")}) as server:
        assert "ark_energy" not in server.get("/metrics").text


def test_metrics_count(tiny_model):
    """Who has an answer finds it counted. By a server of its own: others' requests may still run."""
    names = {"steps": ("ark_steps_total", {}), "generated": ("ark_generated_tokens_total", {}),
             "prompt": ("ark_prompt_tokens_total", {}), "length": ("ark_sequences_total", {"reason": "length"}),
             "requests": ("ark_http_requests_total", {"route": "/v1/completions", "status": "200"}),
             "first": ("ark_time_to_first_token_seconds_count", {}), "between": ("ark_inter_token_latency_seconds_count", {})}
    with Server("--model", tiny_model, "--tp", 2) as server:
        read = lambda: {key: server.metric(name, **labels) for key, (name, labels) in names.items()}
        assert set(read().values()) == {0}
        body = {"prompt": [1, 2, 3, 4, 5], "max_tokens": 7, "n": 2, "ignore_eos": True}
        assert server.post("/v1/completions", body).status_code == 200
        counted = read()
        assert counted["generated"] == 14 and counted["prompt"] == 10 and counted["length"] == 2
        assert counted["requests"] == 1 and counted["first"] == 2 and counted["steps"] >= 7
        assert counted["between"] <= 12
        assert server.metric("ark_kv_pages_held") == 0 and server.metric("ark_requests_running") == 0


def test_every_answer_carries_a_request_id(tiny):
    for path in ("/health", "/v1/models", "/nowhere"):
        own = tiny.get(path).headers["x-request-id"]
        assert own.startswith("req-") and own != tiny.get(path).headers["x-request-id"]
        assert tiny.get(path, headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
        assert tiny.get(path, headers={"x-request-id": "no spaces"}).headers["x-request-id"].startswith("req-")
        assert tiny.get(path, headers={"x-request-id": "x" * 129}).headers["x-request-id"].startswith("req-")
    answer = tiny.post("/v1/completions", {"prompt": "Hi", "max_tokens": 1}, headers={"x-request-id": "mine-2"})
    assert answer.json()["id"] == "cmpl-mine-2"

    def logged():  # after the answer: the line is written once its bytes are sent
        return any("id=mine-2" in line and "status=200" in line and "generated_tokens=1" in line for line in list(tiny.log))

    until(logged, "the request's line in the log")

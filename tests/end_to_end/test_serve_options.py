"""Every option on the command line and in the environment; exit codes with one line; --check."""

import json
import os
import re
import shutil
import socket
import subprocess

import pytest

from ark_server import BINARY, FIXTURES, ROOT, TINY, Server, clean_environment, family, free_port, receive_all, run_to_end, until

USAGE, DATA, NO_INPUT, UNAVAILABLE, SYSTEM = 64, 65, 66, 69, 71

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")


def options_in_help():
    text = run_to_end("--help").stdout
    return dict(re.findall(r"^\s+(--[a-z-]+) .*?\(Env:(\w+)\)", text, re.MULTILINE))


def refused(code, *options, **more):
    """The one line of the error."""
    run = run_to_end(*options, **more)
    assert run.returncode == code, (run.returncode, run.stdout, run.stderr)
    assert run.stderr.startswith("ark-serve: error: ") and run.stderr.count("\n") == 1, run.stderr
    assert run.stderr[:-1].isprintable()
    return run.stderr


def test_help_names_the_contract():
    options = options_in_help()
    assert set(options) == set(BAD_VALUES) | {f"--{name.lower().replace('_', '-')}" for name in ENVIRONMENT} | ELSEWHERE
    assert re.search("--device .*{auto,cpu,cuda}=auto", run_to_end("--help").stdout)
    for option, variable in options.items():
        assert variable == "ARK_SERVE_" + option[2:].upper().replace("-", "_")


BAD_VALUES = {"--port": "65536", "--tp": "-1", "--device": "tpu", "--threads": "x", "--max-model-len": "-5",
              "--max-num-seqs": "0", "--max-num-batched-tokens": "1.5", "--max-queue": "0", "--kv-memory": "5Q",
              "--run-work": "-1", "--run-memory": "5Q",
              "--shutdown-timeout": "-1", "--log-format": "xml", "--host": "no..host",  # no name server is asked
              "--max-restarts": "1001", "--max-connections-per-peer": "-1", "--keep-alive-timeout": "-1",
               "--slo-itl": "-2", "--slo-ttft": "-1", "--energy-weight": "1.5", "--yield-cores": "perhaps",
               "--otlp-endpoint": "collector:4318", "--trace-slower-than": "-1", "--prompt-order": "random", "--speculate": "luck",
               "--draft-model": "/nowhere/draft.onnx", "--draft-weights": "int3", "--kv-dtype": "int3",
               "--log-level": "loud", "--log-file": "/dev/full", "--numerics": "good", "--variant": "q4",
               "--activations": "fp4", "--weights": "int3",
              "--plan": "/nowhere/plan", "--cache-size": "8Q", "--cors-origins": "app.example", "--tls-cert": "alone.pem", "--tls-key": "alone.pem",
              "--transport": "pigeon", "--verbs-gid": "256", "--kv-listen": "29600", "--kv-peers": "127.0.0.1:29600,node-b", "--role": "cook",
              "--api-key-file": "/nowhere/keys", "--model": "/nowhere/model.onnx"}
# Of a server that is started below, all at once.
ENVIRONMENT = {"SERVED_MODEL_NAME": "named", "HOST": "127.0.0.1", "TP": "2", "PROCESSES": "true", "NO_SUPERVISE": "true",
               "DEVICE": "cpu", "THREADS": "2", "MAX_MODEL_LEN": "64", "MAX_NUM_SEQS": "3", "MAX_NUM_BATCHED_TOKENS": "16",
               "MAX_QUEUE": "5", "KV_MEMORY": "64k", "SHUTDOWN_TIMEOUT": "1.5", "LOG_FORMAT": "json", "INSECURE": "true",
               "ALLOWED_HOSTS": "ark.example", "CORS_ORIGINS": "https://app.example", "MAX_CONNECTIONS_PER_PEER": "9",
               "KEEP_ALIVE_TIMEOUT": "0.2", "NO_PREFIX_CACHE": "true", "SLO_ITL": "50", "PROMPT_ORDER": "arrival", "SPECULATE": "off", "NO_CACHE": "true"}
ELSEWHERE = {"--cluster-key-file", "--check", "--supervise", "--trace-dir", "--cache-dir", "--verbs-device"}


@pytest.mark.parametrize("option", BAD_VALUES)
def test_a_bad_value_is_refused_alike_from_both_places(tiny_model, option):
    base = [] if option == "--model" else ["--model", tiny_model]
    code = NO_INPUT if "nowhere" in BAD_VALUES[option] else USAGE
    line = refused(code, *base, option, BAD_VALUES[option])
    variable = options_in_help()[option]
    assert refused(code, *base, environment={variable: BAD_VALUES[option]})
    assert option in line or BAD_VALUES[option] in line


@pytest.mark.parametrize("given, meant", {
    "--tensor-parallel-size": "--tp", "--tensor_parallel_size=2": "--tp", "--ctx-size=4096": "--max-model-len", "-np": "--max-num-seqs",
    "--api-key": "--api-key-file", "--modle=x": "--model", "--max-model-length": "--max-model-len", "--thread": "--threads",
    "--prot": "--port"}.items())
def test_what_an_unknown_option_may_mean_is_said(given, meant):
    assert f"did you mean {meant}?" in refused(USAGE, "model.onnx", given)


def test_an_option_like_no_other_has_no_suggestion():
    assert "did you mean" not in refused(USAGE, "--model", "x.onnx", "--frobnicate")


@pytest.mark.parametrize("options", [["MODEL"], ["--served-model-name", "foo", "MODEL"], ["--allowed-hosts", "a", "MODEL"],
                                     ["--kv-peers", "127.0.0.1:1", "MODEL"], ["--port", 0, "MODEL", "--served-model-name", "foo", "bar"],
                                     ["--served-model-name", "foo", "bar", "--model", "MODEL"],
                                     ["--served-model-name=foo", "--served-model-name", "bar", "MODEL"]], ids=str)
def test_the_model_may_stand_alone(tiny_model, options):
    run = run_to_end(*[tiny_model if option == "MODEL" else option for option in options], "--check")
    assert run.returncode == 0, run.stderr
    assert ("checked      foo can be served" in run.stdout) == any("foo" in str(option) for option in options)


def test_tools_take_their_file_behind_a_list(tmp_path):
    run = subprocess.run([BINARY.with_name("ark-run"), "--test-data", tmp_path, tmp_path / "none.onnx", "--threads", "1"],
                         capture_output=True, text=True)
    assert run.returncode == NO_INPUT and "none.onnx: no such file" in run.stderr


def test_names_of_a_list_may_have_commas_between(tiny_model):
    with Server("--model", tiny_model, environment={"ARK_SERVE_SERVED_MODEL_NAME": "a,b"}) as server:
        assert [m["id"] for m in server.get("/v1/models").json()["data"]] == ["a", "b"]


@pytest.mark.parametrize("given, blamed", [(["--tensor_parallel_size", "2", "MODEL"], "not expected: --tensor_parallel_size; by"),
                                           (["MODEL", "one", "two"], "not expected: one two (see"),
                                           (["MODEL", "--frob", "1", "--nicate"], "not expected: --frob --nicate (see")])
def test_only_what_is_not_expected_is_blamed_and_in_its_order(tiny_model, given, blamed):
    assert blamed in refused(USAGE, *[tiny_model if word == "MODEL" else word for word in given])


def test_what_an_unknown_command_may_mean_is_said():
    run = subprocess.run([BINARY.with_name("ark-bench"), "modle", "x.onnx"], capture_output=True, text=True)
    assert run.returncode == USAGE and "by modle, did you mean model?" in run.stderr


def test_the_environment_configures_a_server(tiny_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    port = free_port()
    environment = ENVIRONMENT | {"MODEL": str(tiny_model), "PORT": str(port), "API_KEY_FILE": str(keys)}
    with Server(environment={f"ARK_SERVE_{k}": v for k, v in environment.items()}, port=None) as server:
        assert (server.model, server.port) == ("named", port)
        assert len(server.children()) == 1 and not family(server)
        key = {"Authorization": "Bearer secret"}
        (model,) = server.get("/v1/models", headers=key).json()["data"]
        assert (model["id"], model["max_model_len"]) == ("named", 64)
        assert server.get("/v1/models").status_code == 401
        metrics = server.get("/metrics", headers=key).text
        assert 0 < int(re.search(r"ark_kv_pages\{.*\} (\d+)", metrics)[1]) < 3 * 4
        answer = server.post("/v1/completions", {"prompt": [1], "max_tokens": 3},
                             headers=key | {"Host": "ark.example", "Origin": "https://app.example"})
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://app.example"
        with server.connect() as idle:
            assert receive_all(idle, 10) == b""
        until(lambda: server.log, "a line in the log")
        assert server.log[0].startswith("{")


def test_the_command_line_wins_over_the_environment(tiny_model):
    with Server("--model", tiny_model, "--served-model-name", "line",
                environment={"ARK_SERVE_SERVED_MODEL_NAME": "environment"}) as server:
        assert server.model == "line"


def test_check_reports_and_ends(tiny_model):
    run = run_to_end("--model", tiny_model, "--check", "--tp", 2, "--no-cache")
    assert (run.returncode, run.stderr) == (0, "")
    stages = [line.split()[0] for line in run.stdout.splitlines()]
    assert stages[-1] == "checked"
    wanted = ["parse", "infer", "passes", "recognise", "partition", "lower", "pack", "warm"]
    assert [s for s in stages if s in wanted] == wanted
    assert run_to_end(environment={"ARK_SERVE_MODEL": str(tiny_model), "ARK_SERVE_CHECK": "1"}).returncode == 0


def test_a_model_is_named_after_its_file_or_folder(tiny_model, tmp_path):
    (tmp_path / "some.onnx").symlink_to(tiny_model)
    for given, name in ((tmp_path, "some"), (tmp_path / "some.onnx", "some"), (tiny_model.parent, "llama-optimum")):
        run = run_to_end("--model", given, "--check")
        assert f"checked      {name} can be served" in run.stdout
    (tmp_path / "other.onnx").symlink_to(tiny_model)
    assert "2 .onnx files" in refused(USAGE, "--model", tmp_path)


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl")
@pytest.mark.parametrize("beside, input", [(["tokenizer.json", "tokenizer_config.json"], "messages"),
                                           (["tokenizer.json"], "Once upon"), ([], "[1, 2, 3]")])
def test_the_command_that_is_offered_works(tmp_path, beside, input):
    """It asks for what the files beside the model allow: a chat, a text, or tokens."""
    for name in ["model.onnx", *beside]:
        shutil.copy(TINY / name, tmp_path)
    with Server("--model", tmp_path / "model.onnx") as server:
        until(lambda: any(line.startswith("try ") for line in server.lines), "a command to try")
        command = next(line for line in server.lines if line.startswith("try ")).removeprefix("try ")
        assert input in command
        answer = subprocess.run(command, shell=True, check=True, capture_output=True,
                                env=os.environ | {"no_proxy": "*"})
        assert json.loads(answer.stdout)["usage"]["completion_tokens"] > 0


def test_usage_errors(tiny_model, tmp_path):
    assert "--model" in refused(USAGE)
    refused(USAGE, "--model", tiny_model, "--no-such-option")
    refused(USAGE, "--model", tiny_model, "extra")
    assert "positions" in refused(USAGE, "--model", FIXTURES / "gpt2-optimum", "--max-model-len", 65)
    refused(USAGE, "--model", tiny_model, "--max-model-len", (1 << 20) + 1)
    for infinite in ("nan", "-nan", "inf"):
        assert "--shutdown-timeout" in refused(USAGE, "--model", tiny_model, f"--shutdown-timeout={infinite}")
    empty = tmp_path / "keys"
    empty.write_text("\n \n")
    for check in ([], ["--check"]):
        assert "holds no key" in refused(USAGE, "--model", tiny_model, "--api-key-file", empty, *check)
        assert "none" in refused(NO_INPUT, "--model", tiny_model, "--api-key-file", tmp_path / "none", *check)


def test_every_line_is_json_where_that_is_asked_for(tmp_path):
    """The last one, too: of a bad option, a missing model, an environment."""
    for options, code in ((["--model", tmp_path / "none.onnx"], NO_INPUT), (["--model", "x", "--port", "x"], USAGE),
                          (["--model", "x", "--no-such-option"], USAGE)):
        for form, more in ((["--log-format", "json"], {}), ([], {"environment": {"ARK_SERVE_LOG_FORMAT": "json"}})):
            run = run_to_end(*options, *form, **more)
            (line,) = map(json.loads, run.stderr.splitlines())
            assert run.returncode == code and line["level"] == "error" and line["message"].startswith("ark-serve: error: ")


def test_missing_and_broken_models(tmp_path):
    assert "no such file" in refused(NO_INPUT, "--model", tmp_path / "none.onnx")
    assert "no .onnx" in refused(NO_INPUT, "--model", tmp_path)
    for content in (b"", b"not a model", bytes(range(256)) * 100):
        broken = tmp_path / "broken.onnx"
        broken.write_bytes(content)
        assert "broken.onnx" in refused(DATA, "--model", broken, "--check")
    (tmp_path / "broken.onnx").unlink()


def test_a_name_with_control_characters_is_escaped(tmp_path):
    line = refused(NO_INPUT, "--model", tmp_path / "a\x1b[31m\nb.onnx")
    assert line.rstrip("\n").isprintable()


def test_names_of_models_hold_nothing_that_controls_terminals(tiny_model, tmp_path):
    """They stand in answers and in labels of metrics."""
    for name in ("a\x1b[31m", "a\nb", "a\u202eb", "a\udcffb"):
        line = refused(USAGE, "--model", tiny_model, "--served-model-name", "good", "--served-model-name", name)
        assert "--served-model-name" in line and line.rstrip("\n").isprintable()
    path = tmp_path / "a\x1b[31m.onnx"
    path.symlink_to(TINY / "model.onnx")
    assert "--served-model-name" in refused(USAGE, "--model", path)


def test_a_model_that_is_no_decoder():
    bert = FIXTURES / "bert-opset11"
    if not bert.exists():
        pytest.skip(f"no {bert}")
    assert "no decoder" in refused(DATA, "--model", bert)


def test_a_port_in_use_is_told_before_the_model_is_loaded(tiny_model):
    with Server("--model", tiny_model) as server:
        run = run_to_end("--model", tiny_model, "--port", server.port)
        assert run.returncode == SYSTEM and run.stdout == ""
        assert "--port" in run.stderr and run.stderr.count("\n") == 1


def needs_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no ::1 here: {error}")


@pytest.mark.parametrize("options", [["--tp", 1], ["--tp", 3], ["--threads", 1, "--tp", 2], ["--kv-memory", "48k"],
                                     ["--max-num-seqs", 1], ["--max-num-batched-tokens", 16], ["--host", "::1"],
                                     ["--tp", 2, "--processes"], ["--tp", 1, "--processes"], ["--tp", 2, "--transport", "socket"], ["--tp", 2, "--transport", "shm"], ["--max-model-len", 32]],
                         ids=str)
def test_no_option_changes_the_tokens(tiny, tiny_model, options):
    if "::1" in options:
        needs_ipv6()
    body = {"prompt": list(range(3, 20)), "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    wanted = tiny.post("/v1/completions", body).json()["choices"][0]["token_ids"]
    with Server("--model", tiny_model, *options) as server:
        answer = server.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["token_ids"] == wanted


@pytest.mark.parametrize("how", [["--transport", "socket"], {"ARK_SERVE_TRANSPORT": "socket"}, {"ARK_TRANSPORT": "socket"}], ids=str)
def test_the_transport_is_asked_for_by_option_or_environment(tiny_model, how):
    options, environment = (how, {}) if isinstance(how, list) else ([], how)
    run = run_to_end("--model", tiny_model, "--tp", 2, "--processes", "--check", *options, environment=environment)
    assert run.returncode == 0, run.stderr
    assert re.search("^ranks .* by socket$", run.stdout, re.MULTILINE), run.stdout


def test_a_transport_that_is_not_there_is_refused_for_threads_too(tiny_model, monkeypatch):
    monkeypatch.setenv("ARK_VERBS_DEVICE", "rxe77")  # also where there is a device, or no plug-in
    assert "verbs" in refused(UNAVAILABLE, "--model", tiny_model, "--tp", 2, "--check", "--transport", "verbs", "--device", "cpu")


def test_without_libcuda_one_line_says_so(tiny_model, monkeypatch):
    monkeypatch.setenv("ARK_LIBCUDA", "libcuda-absent.so.1")
    reason = "no CUDA here: libcuda-absent.so.1 cannot be loaded"
    assert refused(UNAVAILABLE, "--model", tiny_model, "--device", "cuda") == f"ark-serve: error: {reason}\n"
    for device, why in (("auto", reason), ("cpu", "asked for")):
        run = run_to_end("--model", tiny_model, "--device", device, "--check")
        assert run.returncode == 0, run.stderr
        assert re.search(rf"device .*cpu, \d+ threads?.* \({why}\)", run.stdout + run.stderr), run.stdout + run.stderr


def test_ranks_and_threads_follow_the_machine(tiny_model, tmp_path):
    """By trees as the kernel's, of machines of two CPUs: two nodes of memory, and a core with two threads."""
    two = sorted(os.sched_getaffinity(0))[:2]
    if len(two) < 2:
        pytest.skip("one CPU")

    def start(name, files, *options):
        for file, text in files.items():
            (tmp_path / name / "sys/devices/system" / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "sys/devices/system" / file).write_text(f"{text}\n")
        with Server("--model", tiny_model, "--device", "cpu", *options, environment={"ARK_TOPOLOGY": str(tmp_path / name)},
                    prepare=lambda: os.sched_setaffinity(0, two)) as server:
            answer = server.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 8, "ignore_eos": True, "logprobs": 1, "seed": 1})
            assert answer.status_code == 200
            tasks = map(int, os.listdir(f"/proc/{server.process.pid}/task"))
            return "\n".join(server.lines), answer.json()["choices"], [os.sched_getaffinity(task) for task in tasks]

    nodes = {f"node/node{i}/cpulist": cpu for i, cpu in enumerate(two)}
    siblings = {f"cpu/cpu{cpu}/topology/core_cpus_list": f"{two[0]},{two[1]}" for cpu in two}
    of_nodes, answer, seats = start("nodes", nodes)
    assert "2, one for each node of memory" in of_nodes and "on 2 ranks" in of_nodes and "cpu, 2 threads" in of_nodes
    assert {two[0]} in seats and {two[1]} in seats
    of_core, same, seats = start("core", siblings)
    assert "cpu, 1 thread, one for the only core, which has 2 CPUs" in of_core and "ranks" not in of_core
    assert answer == same and all(seat == set(two) for seat in seats)
    asked, same, _ = start("nodes", nodes, "--tp", 1, "--threads", 2)
    assert "ranks" not in asked and answer == same


def test_energy_that_cannot_be_read_is_no_measure(tiny_model, tmp_path):
    line = refused(UNAVAILABLE, "--model", tiny_model, "--energy-weight", 0.5, "--device", "cpu", environment={"ARK_POWERCAP": str(tmp_path)})
    assert "--energy-weight" in line and str(tmp_path) in line


def test_fewer_joules_change_no_answer(tiny_model, tmp_path):
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, text in {"name": "package-0", "energy_uj": "5", "max_energy_range_uj": "1000000000"}.items():
        (zone / name).write_text(text)
    answers = []
    for options in ((), ("--energy-weight", 1, "--slo-ttft", 200)):
        with Server("--model", tiny_model, "--threads", 2, *options, environment={"ARK_POWERCAP": str(tmp_path)}) as server:
            ask = {"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 40, "seed": 3, "temperature": 1, "ignore_eos": True, "return_token_ids": True}
            answers.append([choice["token_ids"] for _ in range(5) for choice in server.post("/v1/completions", ask).json()["choices"]])
            for _ in range(40):
                server.post("/v1/completions", ask)
                (zone / "energy_uj").write_text(str(int((zone / "energy_uj").read_text()) + 1000000))
            assert server.metric("ark_step_processors") in ((0,) if not options else (1, 2))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("options, is_given", [
    ([], False), (["--port", "9000", "--processes"], False), (["--served-model-name", "other.onnx"], False), (["--port=1", "--check"], False),
    (["other.onnx"], True), (["--model", "other.onnx"], True), (["--model=other.onnx"], True), (["--processes", "other.onnx"], True),
    (["--port", "9000", "other.onnx", "--check"], True), (["--help"], True)], ids=str)
def test_serve_sh_takes_its_own_model_only_where_none_is_given(tmp_path, options, is_given):
    """Beside scripts that only say that they were called, and an ark-serve that says what it was told."""
    def script(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    script("scripts/build.sh", "")
    script("scripts/venv.sh", "")
    script(".venv/bin/python", "echo own.onnx")
    script("build/bin/ark-serve", f'if [ "$*" = --help ]; then exec {BINARY} --help; fi; echo "$@"')
    shutil.copy(ROOT / "scripts" / "serve.sh", tmp_path / "scripts")
    run = subprocess.run([tmp_path / "scripts" / "serve.sh", *options], capture_output=True, text=True, env=clean_environment())
    assert run.returncode == 0, run.stderr
    assert "own.onnx" not in run.stdout if is_given else run.stdout.startswith("--model own.onnx ")
    assert " ".join(options) in run.stdout

"""ark-bench: serve against a server that keeps known times and against ark-serve, model, and the contract."""

import functools
import json
import math
import os
import socket
import subprocess
import threading
import time

import numpy
import pytest

from ark_server import BINARY, ROOT, TINY, skip_without_nvrtc, takes_at_most
from timed_server import FIRST, GAP, TimedServer

GPT2 = TINY.with_name("tiny-random-gpt2")  # its table of positions bounds the context
BENCH = BINARY.with_name("ark-bench")
LATE = 0.1  # seconds that a busy machine may take from the server's send to the bench's clock, in the median
TRIES = 4

pytestmark = pytest.mark.skipif(not BENCH.exists(), reason=f"no {BENCH} (scripts/build.sh makes it)")


def measures(test):
    """A busy machine may hold up single tokens and arrivals for longer than that: the test then measures once more.
    A wrong clock or a wrong sum is wrong each time."""
    @functools.wraps(test)
    def run(*arguments, **named):
        for left in reversed(range(TRIES)):
            try:
                return test(*arguments, **named)
            except AssertionError:
                if not left:
                    raise

    return run


def bench(*arguments, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ARK_BENCH") and k != "OPENAI_API_KEY"}
    return subprocess.run([BENCH, *map(str, arguments)], capture_output=True, text=True, timeout=600,
                          env=clean | environment)


def serve(url, *arguments, **environment):
    run = bench("serve", "--base-url", url, "--json", "--disable-tqdm", *arguments, **environment)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def shape(prompts=8, output=8, inputs=5):
    return ["--num-prompts", prompts, "--random-input-len", inputs, "--random-output-len", output]


def check_times(result, server):
    """The server's log is the second clock: what the bench saw is never earlier, and hardly later."""
    sent = [(start, times) for start, times in server.sent[1:] if times]
    assert len(sent) == result["completed"]
    first = numpy.sort([times[0] - start for start, times in sent])
    whole = numpy.sort([times[-1] - start for start, times in sent])
    assert (first >= FIRST * 0.999).all()
    for seen, truth in ((numpy.sort(result["ttfts"]), first),
                        (numpy.sort([t + sum(itls) for t, itls in zip(result["ttfts"], result["itls"])]), whole)):
        assert (seen >= truth).all() and numpy.median(seen - truth) <= LATE, (seen, truth)
    itls = [i for itls in result["itls"] for i in itls]
    assert result["mean_itl_ms"] == pytest.approx(1000 * numpy.mean(itls))
    assert result["median_ttft_ms"] == pytest.approx(1000 * numpy.median(result["ttfts"]))
    per_token = result["mean_e2el_ms"] - result["mean_ttft_ms"]
    assert result["mean_tpot_ms"] == pytest.approx(per_token / (max(result["output_lens"]) - 1), rel=1e-6)


ALL = ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99.9"]
DETAILS = ["--save-detailed", "--result-filename", "/dev/null"]


@pytest.mark.parametrize("style", [(), ("crlf", "comments"), ("bytewise", "crlf"), ("closing",), ("no_done",)],
                         ids="+".join)
@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
@measures
def test_times_of_a_server_that_keeps_known_ones(style, backend):
    with TimedServer(*style) as server:
        result = serve(server.url, "--backend", backend, *shape(), *ALL, *DETAILS)
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (8, 0, 64)
    check_times(result, server)
    assert result["p50_ttft_ms"] == result["median_ttft_ms"] <= result["p99.9_ttft_ms"]
    assert result["output_throughput"] == pytest.approx(64 / result["duration"])
    assert result["max_output_tokens_per_s"] >= result["output_throughput"]  # also of runs shorter than a second
    assert result["total_token_throughput"] == pytest.approx((64 + result["total_input_tokens"]) / result["duration"])
    assert (result["backend"], result["model_id"], result["request_rate"]) == (backend, "timed", "inf")
    assert server.paths[-1] == ("/v1/chat/completions" if backend == "openai-chat" else "/v1/completions")


@measures
def test_several_events_in_one_segment():
    with TimedServer("pairs") as server:
        result = serve(server.url, *shape(), *ALL, *DETAILS)
    assert result["total_output_tokens"] == 64
    check_times(result, server)


@pytest.mark.parametrize("style", [("no_usage",), ("no_ids",), ("no_ids", "no_usage")], ids="+".join)
def test_servers_that_know_less(style):
    with TimedServer(*style) as server:
        result = serve(server.url, *shape(inputs=6))
    assert result["completed"] == 8 and result["total_output_tokens"] == 64
    sent = server.bodies[-1]
    assert ("stream_options" in sent) == ("no_usage" not in style)
    assert isinstance(sent["prompt"], str if "no_ids" in style else list)
    if "no_usage" in style:
        assert result["total_input_tokens"] == 48  # as sent: the server does not count


@measures
def test_concurrency_and_duration():
    with TimedServer() as server:
        result = serve(server.url, *shape(8), "--max-concurrency", 2)
    truth = max(times[-1] for _, times in server.sent[1:]) - min(start for start, _ in server.sent[1:])
    assert server.most == 2 == result["max_concurrency"] == result["max_concurrent_requests"]
    assert max(truth, 4 * (FIRST + 7 * GAP)) <= result["duration"] <= truth + 2 * LATE
    sent = sorted(t for _, times in server.sent[1:] for t in times)
    most = max(sum(t <= other < t + 1 for other in sent) for t in sent)
    assert result["max_output_tokens_per_s"] == pytest.approx(most, rel=0.15)
    assert result["request_throughput"] == pytest.approx(8 / result["duration"])


@measures
def test_arrivals_follow_the_rate():
    with TimedServer() as server:
        result = serve(server.url, *shape(40, output=1), "--request-rate", 40, "--seed", 3)
        arrivals = sorted(server.arrivals[1:])
    assert result["completed"] == 40 and result["request_rate"] == 40
    assert arrivals[-1] - arrivals[0] == pytest.approx(1, abs=0.4)
    gaps = numpy.diff(arrivals)
    assert gaps.std() > 0.4 * gaps.mean()  # Poisson: as large as the mean


@measures
def test_even_arrivals():
    with TimedServer() as server:
        serve(server.url, *shape(20, output=1), "--request-rate", 10, "--burstiness", 10000)
        gaps = numpy.diff(sorted(server.arrivals[1:]))
    assert numpy.median(gaps) == pytest.approx(0.1, abs=0.02)


def test_goodput_counts_what_is_within_every_limit():
    with TimedServer() as server:
        met = serve(server.url, *shape(), "--goodput", f"ttft:{(FIRST + 5) * 1000}", "tpot:5000")
        missed = serve(server.url, *shape(), "--goodput", f"ttft:{FIRST * 900}", "e2el:5000")
        none = serve(server.url, *shape())
    assert met["request_goodput"] == pytest.approx(met["request_throughput"])
    assert missed["request_goodput"] == 0 and missed["completed"] == 8
    assert none["request_goodput"] is None


@pytest.mark.parametrize("style, message", [("error_event", "the device is gone"), ("cut", ""), ("refuse", "full up")])
@pytest.mark.parametrize("closing", [False, True])
def test_failures_are_counted_and_named(style, message, closing):
    with TimedServer(*["closing"] * closing, faults=[style]) as server:
        run = bench("serve", "--base-url", server.url, "--json", "--disable-tqdm", *shape(20), "--max-concurrency", 4)
    result = json.loads(run.stdout)
    assert (result["completed"], result["failed"]) == (8, 12)
    assert run.returncode == 0 and "a failed request: " in run.stderr and message in run.stderr


def test_fields_headers_and_lengths_of_requests():
    with TimedServer() as server:
        serve(server.url, *shape(12, inputs=100, output=10), "--random-range-ratio", 0.5, "--random-prefix-len", 7,
              "--ignore-eos", "--extra-body", '{"top_p": 0.5, "guided": {"a": [1]}}', "--header", "X-Team=blue",
              "X-Other=a=b", "--temperature", 0.25, "--top-k", 3, OPENAI_API_KEY="secret")
    bodies, headers = server.bodies[1:], server.received[-1]
    assert (headers["X-Team"], headers["X-Other"], headers["Authorization"]) == ("blue", "a=b", "Bearer secret")
    for body in bodies:
        assert (body["ignore_eos"], body["top_p"], body["guided"]) == (True, 0.5, {"a": [1]})
        assert (body["temperature"], body["top_k"], body["stream"], body["model"]) == (0.25, 3, True, "timed")
        assert 57 <= len(body["prompt"]) <= 157 and 5 <= body["max_tokens"] <= 15
        assert body["prompt"][:7] == bodies[0]["prompt"][:7]
    assert len({len(b["prompt"]) for b in bodies}) > 3 and len({tuple(b["prompt"]) for b in bodies}) == 12


def test_seeds_repeat():
    def prompts(seed):
        with TimedServer() as server:
            serve(server.url, *shape(4, output=1), "--seed", seed)
            return sorted(b["prompt"] for b in server.bodies[1:])

    assert prompts(5) == prompts(5) != prompts(6)


def test_results_are_saved_like_vllm(tmp_path):
    with TimedServer() as server:
        serve(server.url, *shape(), "--save-result", "--result-dir", tmp_path / "a", "--max-concurrency", 3, "--metadata",
              "tp=2", "--label", "mine")
        shown = serve(server.url, *shape(), "--save-detailed", "--result-dir", tmp_path, "--result-filename", "x.json", *ALL)
        table = bench("serve", "--base-url", server.url, *shape())
    [path] = (tmp_path / "a").iterdir()
    saved = json.loads(path.read_text())
    assert path.name == f"mine-infqps-concurrency3-timed-{saved['date']}.json"
    assert (saved["tp"], saved["label"]) == ("2", "mine") and "ttfts" not in saved
    detailed = json.loads((tmp_path / "x.json").read_text())
    assert detailed == shown and detailed["output_lens"] == [8] * 8 and detailed["errors"] == [""] * 8
    assert detailed["generated_texts"][0] == "".join(f" t{i}" for i in range(8))
    # numpy is the oracle of the statistics.
    for key, values in (("ttft", detailed["ttfts"]), ("itl", [i for itls in detailed["itls"] for i in itls])):
        values = numpy.array(values) * 1000
        assert detailed[f"mean_{key}_ms"] == pytest.approx(values.mean())
        assert detailed[f"std_{key}_ms"] == pytest.approx(values.std())
        assert detailed[f"median_{key}_ms"] == pytest.approx(numpy.median(values))
        assert detailed[f"p99.9_{key}_ms"] == pytest.approx(numpy.percentile(values, 99.9))
    assert table.returncode == 0 and "Successful requests:" in table.stdout and "P99 TTFT (ms):" in table.stdout
    assert "8 of 8 requests" in table.stderr


def test_datasets(tmp_path):
    tokenizer = ["--tokenizer", TINY]
    poem = tmp_path / "poem.txt"
    poem.write_text("\n".join(f"line {i} of the poem" for i in range(40)))
    share = tmp_path / "share.json"
    share.write_text(json.dumps([{"conversations": [{"from": "human", "value": f"question {i} " * 5},
                                                    {"from": "gpt", "value": "answer " * 9}]} for i in range(6)] + [3, {}]))
    custom = tmp_path / "custom.jsonl"
    custom.write_text("\n".join(json.dumps({"prompt": f"p{i}", "output_tokens": i + 1}) for i in range(3)))
    with TimedServer("no_ids") as server:
        serve(server.url, "--dataset-name", "sonnet", "--dataset-path", poem, "--num-prompts", 3, "--sonnet-input-len", 200,
              "--sonnet-prefix-len", 80, "--sonnet-output-len", 2, *tokenizer)
        sonnets = [b["prompt"] for b in server.bodies[-3:]]
        serve(server.url, "--dataset-name", "sharegpt", "--dataset-path", share, "--num-prompts", 9, *tokenizer)
        shared = [b["prompt"] for b in server.bodies[-9:]]
        serve(server.url, "--dataset-name", "custom", "--dataset-path", custom, "--num-prompts", 3, "--disable-shuffle")
        customs = sorted((b["prompt"], b["max_tokens"]) for b in server.bodies[-3:])
        without = bench("serve", "--base-url", server.url, "--dataset-name", "sonnet", "--dataset-path", poem)
    assert len(set(sonnets)) == 3 and len({s[:60] for s in sonnets}) == 1
    assert len(set(shared)) == 6 and all(p.startswith("question ") for p in shared)
    assert customs == [("p0", 1), ("p1", 2), ("p2", 3)]
    assert without.returncode == 64 and "--tokenizer" in without.stderr


def test_waits_for_a_server_that_is_not_yet_there():
    with socket.socket() as taken:  # nobody listens there, and nobody else takes it meanwhile
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        run = bench("serve", "--port", port, *shape())
        assert run.returncode == 69 and run.stderr.count("\n") == 1 and f":{port}" in run.stderr
        assert "connection refused: is the server running?" in run.stderr
        start = time.monotonic()
        run = bench("serve", "--port", port, "--ready-check-timeout-sec", 0.5, *shape())
        assert run.returncode == 69 and time.monotonic() - start >= 0.5


@pytest.mark.parametrize("backend, tokenizer", [("openai", []), ("vllm", ["--tokenizer", TINY]), ("openai-chat", [])])
def test_against_ark_serve(tiny, backend, tokenizer):
    result = serve(tiny.url, "--backend", backend, *shape(12, output=6, inputs=20), *tokenizer, "--ignore-eos",
                   "--max-concurrency", 4, "--save-detailed", "--result-filename", "/dev/null")
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (12, 0, 72), result["errors"]
    assert result["model_id"] == tiny.model and result["mean_ttft_ms"] > 0
    if backend != "openai-chat":
        assert result["total_input_tokens"] == 12 * 20
    assert all(len(itls) <= 5 for itls in result["itls"])
    for told in result["p99_blame"].values():
        assert told["requests"] == 1 and sum(told["causes"].values()) == pytest.approx(told["ms"], abs=0.1)
    assert result["p99_blame"].keys() == {"ttft", "itl", "e2el"}


def test_the_slowest_hundredth_is_blamed_as_the_server_tells():
    def told(name, ms, **causes):
        return {name: {"ms": ms, "causes": causes}, "total": {"ms": 1000, "causes": {"tokens": 1000}}}

    load = ["--base-url", "", *shape(250, output=1), "--max-concurrency", 50, "--disable-tqdm"]
    with TimedServer() as server:
        load[1] = server.url
        server.slow = {"first_token": [told("first_token", 10, prompt=4, queue=6), told("first_token", 30, server=29, queue=1)],
                       "pause": [told("longest_pause", 5, others_prompts=4.8, wire=0.2), {"total": {"ms": 9, "causes": {}}}],
                       "total": [told("first_token", 1, queue=1)]}
        run = bench("serve", *load, "--json")
        blame = json.loads(run.stdout)["p99_blame"]
        assert server.asked == [{"by": by, "n": "2", "minutes": "1"} for by in ("first_token", "pause", "total")]
        assert blame == {"ttft": {"requests": 2, "ms": 20, "causes": {"server": 14.5, "queue": 3.5, "prompt": 2}},
                         "itl": {"requests": 1, "ms": 5, "causes": {"others_prompts": 4.8, "wire": 0.2}},
                         "e2el": {"requests": 1, "ms": 1000, "causes": {"tokens": 1000}}}
        table = bench("serve", *load).stdout
        assert "ttft       20.00  server 14.50, queue 3.50, prompt 2.00\n" in table
        assert "itl         5.00  others_prompts 4.80\n" in table  # less than a twentieth is no line's
        server.slow = None
        assert "p99_blame" not in json.loads(bench("serve", *load, "--json").stdout)  # of a server that tells nothing


def test_model_prints_one_json_line():
    run = bench("model", TINY, "--batch", "1,3", "--context", 16, "--prefill", "8,24", "--threads", 2, "--tp", 2, "--json")
    assert run.returncode == 0 and run.stdout.count("\n") == 1, run.stderr
    result = json.loads(run.stdout)
    assert set(result["decode_ms"]) == {"1", "3"} and set(result["prefill_ms"]) == {"8", "24"}
    assert 0 < result["load_ms"] < result["first_token_ms"]
    assert 0 < result["rss_mb"]["loaded"] <= result["rss_mb"]["peak"] >= result["rss_mb"]["steady"]
    assert all(ms > 0 for group in ("decode_ms", "prefill_ms") for ms in result[group].values())
    table = bench("model", TINY, "--batch", "1", "--context", 16, "--prefill", "8")
    assert table.returncode == 0 and "decode" in table.stdout and "peak" in table.stdout


def test_model_in_a_loop_that_is_launched_for_each_step():
    run = bench("model", TINY, "--context", 16, "--prefill", 8, "--device", "cpu", "--launch", "step", "--json")
    assert run.returncode == 0 and json.loads(run.stdout)["decode_ms"]["1"] > 0, run.stderr


def test_the_timeline_of_a_cpu_loop(tmp_path):
    run = bench("model", TINY, "--context", 16, "--prefill", 8, "--device", "cpu", "--threads", 4, "--tp", 2, "--trace",
                tmp_path / "trace.json", "--json")
    assert run.returncode == 0 and "waits" in run.stderr, run.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["rank 0", "rank 1"]
    spans = {}
    for e in events:
        if e["ph"] == "X":
            spans.setdefault((e["pid"], e["tid"]), []).append(e)
    assert set(spans) == {(rank, processor) for rank in range(2) for processor in range(2)}
    for mine in spans.values():
        assert {e["cat"] for e in mine} == {"wait", "run", "publish"} and any("MatMul" in e["name"] for e in mine)
        assert all(b["ts"] >= a["ts"] + a["dur"] - 0.002 for a, b in zip(mine, mine[1:]))  # one thing at a time


def test_joules_a_token(tmp_path):
    """A package that uses as much as this test says while the steps run."""
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    energy = zone / "energy_uj"
    for name, text in (("name", "package-0"), ("energy_uj", "0"), ("max_energy_range_uj", "1000000000000")):
        (zone / name).write_text(text)
    arguments = ["model", GPT2, "--context", 16, "--prefill", 8, "--batch", "2", "--device", "cpu", "--json", "--repeat", 400]
    done = threading.Event()

    def burn():
        start = time.monotonic()
        while not done.wait(0.002):  # 10 W
            part = zone / "part"
            part.write_text(str(int(1e7 * (time.monotonic() - start))))
            part.rename(energy)

    def times_too_many():
        run = bench(*arguments, ARK_POWERCAP=str(tmp_path))
        assert run.returncode == 0, run.stderr
        figures = json.loads(run.stdout)
        times = figures["decode_joules"]["2"] / (10 * figures["decode_ms"]["2"] / 1000 / 2)  # two tokens a step
        watts = figures["decode_watts"]["2"] / 10
        return max(times, watts) if min(times, watts) > 1 / 4 else math.inf

    burning = threading.Thread(target=burn)
    burning.start()
    try:
        # The mean beside the median step, and counters that are 2 ms old: more on a busy machine.
        takes_at_most(8, times_too_many)
    finally:
        done.set()
        burning.join()
    run = bench(*arguments[:-3], ARK_POWERCAP=str(tmp_path / "nowhere"))
    assert "not readable: no package in" in run.stderr and "J a token" not in run.stdout


def test_the_profile_adds_up_to_the_step():
    run = bench("model", TINY, "--context", 16, "--prefill", 8, "--batch", "1,4", "--device", "cpu", "--threads", 2, "--profile", "--json")
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout)
    assert figures["read_rate"] > 1e8 and list(figures["profile"]) == ["prefill 8", "decode 1", "decode 4"]
    for what, phases in figures["profile"].items():
        assert f"\n{what}: a step" in run.stderr and {"MatMul", "Attention"} <= {p["code"] for p in phases}
        kind, size = what.split()
        # The median over steps from outside, and the mean of the same steps from inside.
        assert 0 < sum(p["run_ms"] + p["wait_ms"] for p in phases) < 20 * figures[f"{kind}_ms"][size] + 20
    one, four = (sum(p["operations"] for p in figures["profile"][f"decode {n}"]) for n in (1, 4))
    assert four == 4 * one > 0


def test_a_timeline_that_cannot_be_written_is_refused_before_the_load(tmp_path):
    run = bench("model", TINY, "--trace", tmp_path / "no" / "trace.json")
    assert run.returncode == 71 and run.stderr.count("\n") == 1 and "--trace" in run.stderr


def test_a_cuda_graph_is_refused_where_there_is_none(tmp_path):
    graph = ["model", TINY, "--context", 16, "--prefill", 8, "--launch", "graph"]
    run = bench(*graph, ARK_LIBCUDA="libcuda-absent.so.1")  # no other device will do
    assert run.returncode == 69 and run.stdout == ""
    assert run.stderr == "ark-bench: error: no CUDA here: libcuda-absent.so.1 cannot be loaded\n"
    driver = ROOT / "build" / "libfake_old_libcuda.so"  # of the tests' own, as old as CUDA 11
    if not driver.exists():
        pytest.skip(f"no {driver}")
    run = bench(*graph, ARK_LIBCUDA=str(driver), ARK_CACHE_DIR=str(tmp_path))
    assert run.returncode == 69 and run.stdout == ""
    error = run.stderr.splitlines()[-1]
    skip_without_nvrtc(error)
    assert error == (f"ark-bench: error: {driver} has no function cuGraphCreate; a newer driver or toolkit is needed")


def test_a_trace_is_scheduled_in_virtual_time(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"at": i / 100, "prompt_tokens": 5 + i % 70, "output_tokens": 1 + i % 9}) + "\n"
                             for i in range(200)))
    steps = tmp_path / "steps.json"
    measured = bench("schedule", trace, "--model", TINY, "--threads", 1, "--json", "--save-steps", steps)
    assert measured.returncode == 0, measured.stderr
    figures = json.loads(measured.stdout)
    assert (figures["completed"], figures["failed"]) == (200, 0)
    assert figures["total_output_tokens"] == sum(1 + i % 9 for i in range(200))
    assert 0 < figures["median_itl_ms"] and figures["median_ttft_ms"] <= figures["p99_ttft_ms"] <= figures["p99_e2el_ms"] * 1.01
    assert json.loads(bench("schedule", trace, "--steps", steps, "--json").stdout) == figures
    slower = json.loads(steps.read_text())
    slower["decode"] = [[n, before, ms * 100] for n, before, ms in slower["decode"]]
    steps.write_text(json.dumps(slower))
    assert json.loads(bench("schedule", trace, "--steps", steps, "--json").stdout)["mean_itl_ms"] > 10 * figures["mean_itl_ms"]
    assert figures["p99_ttft_ms"] <= figures["max_ttft_ms"] <= figures["max_e2el_ms"]
    assert "time to first token" in bench("schedule", trace, "--steps", steps).stdout
    goals = ("--goodput", "ttft:60000", "--goodput", "itl:0.0001")
    counted = json.loads(bench("schedule", trace, "--steps", steps, "--json", "--slo-ttft", "60000", "--slo-itl", "50", *goals).stdout)
    single = sum(i % 9 == 0 for i in range(200))  # answers of one token have no pause
    assert (counted["late_requests"], counted["slow_requests"]) == (0, 200 - single)
    assert counted["request_goodput"] * counted["duration"] == pytest.approx(single)
    assert "good requests a second" in bench("schedule", trace, "--steps", steps, *goals).stdout
    trace.write_text('{"at": 0, "prompt_tokens": 1, "output_tokens": 1}\n{"at": "x"}\n')
    for wrong in (["schedule", trace, "--steps", steps], ["schedule", trace], ["schedule", trace, "--steps", trace]):
        run = bench(*wrong)
        assert run.returncode == 64 and run.stderr.count("\n") == 1, run.stderr


@pytest.mark.parametrize("arguments, code", [
    ([], 64), (["fly"], 64), (["model"], 64), (["model", "/nonexistent.onnx"], 66), (["model", TINY, "--batch", "0"], 64),
    (["model", TINY, "--device", "cpu", "--launch", "graph"], 64), (["model", TINY, "--launch", "twice"], 64),
    (["model", TINY, "--device", "cpu", "--groups", "4"], 64), (["model", TINY, "--groups", "65"], 64),
    (["model", TINY, "--device", "cpu", "--processors", "4"], 64), (["model", TINY, "--processors", "-1"], 64),
    (["model", GPT2, "--context", "100000"], 64), (["dma", "--sizes", "3"], 64), (["serve", "--request-rate", "-1"], 64),
    (["serve", "--goodput", "speed:3"], 64), (["schedule", "x", "--steps", "y", "--goodput", "tpot:3"], 64),
    (["schedule", "x", "--steps", "y", "--goodput", "itl:3s"], 64), (["serve", "--extra-body", "[1]"], 64), (["serve", "--base-url", "nowhere"], 64),
    (["serve", "--percentile-metrics", "x"], 64), (["serve", "--dataset-name", "custom"], 64)])
def test_wrong_options_are_one_line(arguments, code):
    run = bench(*arguments)
    assert run.returncode == code and run.stdout == "", run.stderr
    assert run.stderr.splitlines()[-1].startswith("ark-bench: error: ")


def test_help_and_environment():
    for command in ("serve", "model", "schedule", "dma"):
        run = bench(command, "--help")
        assert run.returncode == 0 and "ARK_BENCH_" + command.upper() in run.stdout
    assert bench("dma", ARK_BENCH_DMA_SIZES="5").returncode == 64

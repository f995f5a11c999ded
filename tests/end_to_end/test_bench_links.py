"""ark-bench dma and plan: what links carry, beside other tools, and what many ranks would take."""

import json
import shutil

import pytest
from ark_server import BINARY, TINY
from test_bench import bench


def test_dma_prints_every_transport_and_size():
    run = bench("dma", "--sizes", "4,65536", "--time", 2, "--ranks", 3, "--json")
    assert run.returncode == 0 and run.stdout.count("\n") == 1, run.stderr
    printed = json.loads(run.stdout)
    rows, loaded = printed["rows"], printed["beside_bulk"]
    found = {(r["transport"], r["link"], r["bytes"]) for r in rows}
    ways = [("local", "direct"), ("local", "posted"), ("shm", "direct"), ("shm", "posted"), ("socket", "posted")]
    ways += [("ucx", "posted")] if (BINARY.parent / "libark_ucx.so").exists() else []
    assert found == {(*way, n) for way in ways for n in (4, 65536)}
    assert all(0 < r["latency_us"] <= r["p99_us"] and r["gb_per_s"] > 0 and r["messages_per_s"] > 0 for r in rows)
    assert sorted(r["transport"] for r in loaded) == sorted({way for way, _ in ways})
    assert all(0 < r[how]["p50"] <= r[how]["p99"] for r in loaded for how in ("alone_us", "beside_bulk_us", "one_queue_us"))
    assert sorted((r["transport"], r["link"]) for r in printed["messages"]) == sorted([*ways, ("socketpair", "")])
    assert all(r["per_s"] > 0 and r["wakes_per_message"] >= 0 for r in printed["messages"])
    # A busy machine may get no large message through in the time of one way.
    assert all(r[how] >= 0 for r in loaded for how in ("bulk_gb_per_s", "one_queue_gb_per_s"))
    assert any(r["bulk_gb_per_s"] > 0 for r in loaded) and any(r["one_queue_gb_per_s"] > 0 for r in loaded)
    reduced = [r for r in printed["all_reduce"] if r["transport"] != "Open MPI"]
    assert {(r["transport"], r["link"], r["ranks"], r["bytes"]) for r in reduced} == {(*way, 3, n) for way in ways for n in (4, 65536)}
    assert all(0 < r["latency_us"] <= r["p99_us"] for r in printed["all_reduce"])
    by_mpi = [r["bytes"] for r in printed["all_reduce"] if r["transport"] == "Open MPI"]
    tools = printed["tools"]
    assert {t["tool"].split(",")[0] for t in tools} >= {"ib_write_lat", "ib_write_bw", "ucx_perftest"}
    assert all(t["figure"] > 0 if "figure" in t else t["why_none"] for t in tools)
    if shutil.which("mpirun") and (BINARY.parent / "libark_mpi.so").exists():
        assert by_mpi == [4, 65536], tools
    else:
        assert [t for t in tools if t["tool"] == "MPI_Allreduce, 3 ranks" and t["why_none"].startswith("no ")]


def fake_tool(folder, name, lines):
    script = folder / name
    script.write_text("#!/bin/sh\nfor word; do last=$word; done\n[ \"$last\" = 127.0.0.1 ] || exec sleep 5\n" +
                      "".join(f"echo '{line}'\n" for line in lines))
    script.chmod(0o755)


def test_dma_shows_what_other_tools_print(tmp_path):
    """As UCX 1.13 prints it."""
    fake_tool(tmp_path, "ucx_perftest", ["iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr",
                                         " 2000,0.250,0.248,0.248,30.77,1000.00,4032985,4032985"])
    run = bench("dma", "--sizes", 64, "--time", 1, "--ranks", 2, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert ["ucx_perftest,", "us", "64", "0.250"] in lines and ["ucx_perftest,", "GB/s", "64", "1.049"] in lines
    assert any(line[:1] == ["ib_write_lat,"] for line in lines) and any(line[:1] == ["local"] for line in lines)


def test_dma_measures_the_one_that_is_asked_for():
    run = bench("dma", "--transport", "shm", "--sizes", 64, "--time", 1, "--ranks", 2, "--json")
    assert run.returncode == 0, run.stderr
    printed = json.loads(run.stdout)
    assert all({row["transport"] for row in printed[key]} - {"socketpair", "Open MPI"} == {"shm"}
               for key in ("rows", "beside_bulk", "messages", "all_reduce"))
    for name, status in (("verbs", 69), ("shn", 64)):
        run = bench("dma", "--transport", name)
        assert run.returncode == status and f" {name}" in run.stderr, run.stderr


def plan(*arguments):
    given = ["--batch", 3, "--context", 16, "--repeat", 5, "--inside-latency-us", 1, "--inside-gap-us", 0.5,
             "--inside-bandwidth-gbs", 5, "--latency-us", 5, "--gap-us", 1, "--bandwidth-gbs", 12]
    return bench("plan", TINY, *given, *arguments)


def test_a_plan_of_many_ranks_and_what_runs_here():
    run = plan("--ranks", 16, "--ranks-per-machine", 4, "--check", "2,4", "--json")
    assert run.returncode == 0 and run.stdout.count("\n") == 1, run.stderr
    result = json.loads(run.stdout)
    rows = {row["ranks"]: row for row in result["rows"]}
    assert list(rows) == [1, 2, 4, 8, 16] and [row["machines"] for row in rows.values()] == [1, 1, 1, 2, 4]
    assert rows[1]["bytes"] == 0 and all((row["bytes_between_machines"] > 0) == (n > 4) for n, row in rows.items())
    assert all(0 < row["compute_ms"] <= row["step_ms"] for row in rows.values())
    assert [n for n, row in rows.items() if "formula_ms" in row] == [1, 2, 4, 8]
    assert rows[16]["weight_bytes"] < rows[1]["weight_bytes"] and rows[16]["inbox_bytes"] > rows[2]["inbox_bytes"]
    for check in result["checks"]:
        assert check["predicted_bytes"] == check["counted_bytes"] == rows[check["ranks"]]["bytes"]
        assert check["predicted_ms"] > 0 and check["measured_ms"] > 0
    assert result["inside"] == {"latency_us": pytest.approx(1), "gap_us": pytest.approx(0.5), "gb_per_s": pytest.approx(5)}
    text = plan("--ranks", 16, "--ranks-per-machine", 4)
    assert text.returncode == 0 and "reckoned by a formula" in text.stdout, text.stderr


@pytest.mark.parametrize("arguments, said", [
    (["--ranks", 1024], "no weight can be cut in so many parts, only in "),
    (["--ranks", 12], "do not fill machines of 8"), (["--ranks", 2, "--check", 65], "ark runs 64 ranks at the most"),
    (["--ranks", 1025], "--ranks"), (["--ranks", 2, "--device", "cuda"], "leave out --device cuda")])
def test_what_cannot_be_planned_is_one_line(arguments, said):
    run = plan(*arguments)
    assert run.returncode == 64 and run.stdout == "", run.stderr
    assert run.stderr.splitlines()[-1].startswith("ark-bench: error: ") and said in run.stderr.splitlines()[-1]

"""What gpu-check.sh makes of figures, and its comparison of peers, on the CPU with small models: no GPU is here."""

import json
import os
import subprocess
import sys
import tarfile
import time

import pytest

from ark_server import BINARY, ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import gpu_serve  # noqa: E402

PEERS = ROOT / "scripts" / "gpu_peers.py"
SHARED = "GPT-2 124M fp16, batch {}, context 16: {}, {}"


def peers(folder, *options, **environment):
    """Exit status and rows by name."""
    out = folder / "figures.jsonl"
    run = subprocess.run([sys.executable, PEERS, "--out", out, "--bin", BINARY.parent, "--smollm2", folder / "no.onnx",
                          "--context", "16", *options], capture_output=True, text=True, timeout=600,
                         env={"TMPDIR": str(folder), **environment})
    assert run.stderr == ""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({row["name"] for row in rows}) == len(rows)
    assert not list(folder.glob("ark-peers-*")), "models were left behind"
    return run.returncode, {row["name"]: row for row in rows}


@pytest.mark.skipif(not BINARY.with_name("ark-bench").exists(), reason="no ark-bench (scripts/build.sh makes it)")
def test_peers_are_measured_on_the_same_files_or_say_why_not(tmp_path):
    code, rows = peers(tmp_path, "--device", "cpu", "--small")
    assert code == 0
    for batch in (1, 32):
        for peer, how in (("ark", "step alone"), ("ONNX Runtime", "step alone"), ("ONNX Runtime", "steps back to back")):
            row = rows[SHARED.format(batch, peer, how)]
            assert row["unit"] == "us" and 0 < row["value"] < 1e7
        torch = rows[SHARED.format(batch, "PyTorch, CUDA graph", "step alone")]
        assert torch.get("not_measured") == "torch is not installed" or torch["value"] > 0
    llama = "Llama-1B-shaped bf16, batch 1, context 16: "
    assert rows[llama + "ark, step alone"]["value"] > 0
    assert "Could not find an implementation" in rows[llama + "ONNX Runtime, step alone"]["not_measured"]
    for peer in ("ark", "ONNX Runtime", "PyTorch, CUDA graph"):
        row = rows[f"SmolLM2-135M f32, batch 1, context 16: {peer}, step alone"]
        assert row["not_measured"] == f"no {tmp_path / 'no.onnx'}"


@pytest.mark.parametrize("options, why", [((), "no GPU is here (nvidia-smi -L)"),
                                          (("--device", "cpu", "--seconds", "0.5"), "out of time")])
def test_a_machine_without_a_gpu_or_time_gets_a_reason_in_each_row(tmp_path, options, why):
    code, rows = peers(tmp_path, *options, PATH=str(tmp_path))
    assert code == 77 and len(rows) == 12
    reasons = {name: row["not_measured"] for name, row in rows.items()}
    assert {reason for name, reason in reasons.items() if why == reason or "SmolLM2" not in name} == {why}


@pytest.mark.parametrize("verdict, code", [("pass", 0), ("skipped (no fixtures)", 0), ("FAIL (1)", 1)])
def test_the_table_has_figures_and_reasons(tmp_path, verdict, code):
    (tmp_path / "card.txt").write_text("a card, 580.1\n")
    (tmp_path / "steps.tsv").write_text(f"conformance\t{verdict}\t12\n")
    rows = [{"name": "barrier", "value": 1.23456, "unit": "us", "floor": 0.0},
            {"name": "GPT-2, step alone", "value": 130.0, "unit": "us", "floor": 57.5},
            {"name": "GPT-2: PyTorch", "not_measured": "a | b"}]
    (tmp_path / "figures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = subprocess.run([sys.executable, ROOT / "scripts" / "gpu_results.py", tmp_path], capture_output=True, text=True,
                         timeout=60)
    assert run.returncode == code and run.stderr == ""
    assert run.stdout == (tmp_path / "results.md").read_text() == "\n".join([
        "Card: a card, 580.1", "", "| check | verdict | s |", "|---|---|---|", f"| conformance | {verdict} | 12 |", "",
        "| figure | value | byte floor |", "|---|---|---|", "| barrier | 1.23 us | - |",
        "| GPT-2, step alone | 130.00 us | 57.5 |", "| GPT-2: PyTorch | not measured: a / b | - |", ""])
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["figures"] == rows and results["steps"] == [{"name": "conformance", "verdict": verdict, "seconds": "12"}]


@pytest.mark.skipif(not BINARY.with_name("ark-bench").exists(), reason="no ark-bench (scripts/build.sh makes it)")
def test_predictions_stand_beside_what_was_measured_or_alone(tmp_path):
    model = tmp_path / "model.onnx"
    subprocess.run([sys.executable, ROOT / "models" / "gpt2_random.py", model, "--dtype", "f16", "--layers", "2",
                    "--hidden", "96", "--vocab", "300"], check=True)
    command = [sys.executable, ROOT / "scripts" / "gpu_cost.py", "--bin", BINARY.parent, "--model", model, "--context", "8",
               "--prompt", "48", "--out", tmp_path / "cost.json"]
    run = subprocess.run([*command, "--batch", "1,3", "--device", "cpu"], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    *both, exact, fast = json.loads((tmp_path / "cost.json").read_text())
    assert [(p["tokens"], p["numerics"]) for p in (exact, fast)] == [(48, "exact"), (48, "fast")]
    assert all(p["predicted_ms"] > 0 and p["measured_ms"] > 0 for p in (exact, fast))
    assert [result["batch"] for result in both] == [1, 3]
    for result in both:
        said, seen = result["predicted"], result["measured"]
        # A CPU has a phase for what the products of a GPU do themselves.
        numbers = {p["number"] for p in said["phases"]}
        assert numbers < {p["number"] for p in seen["phases"]}
        beside = [p["phase"] for p in seen["phases"] if p["number"] not in numbers]
        assert len(beside) == 2 and all(phase.endswith("append") for phase in beside)
        assert 10 < said["us"] < 10000 and seen["us"] > 0
        assert sum(p["us"] for p in said["phases"]) < said["us"]
        assert f"{seen['us'] / said['us']:.2f}" in run.stdout
    run = subprocess.run([*command, "--batch", "1", "--device", "cuda"], capture_output=True, text=True, timeout=300,
                         env={"ARK_LIBCUDA": str(tmp_path / "none.so")})
    assert run.returncode == 77 and "the step, from the host to the host" in run.stdout
    assert run.stdout.splitlines()[-1].startswith("not measured: ark-bench: error: ")


FIRST = ["first-light", "correctness", "figures", "cost"]


@pytest.mark.skipif(not BINARY.with_name("emulator_test").exists(), reason="no emulator_test")
def test_the_first_call_of_a_lease_ends_in_time(tmp_path):
    begin = time.monotonic()
    run = subprocess.run([ROOT / "scripts" / "gpu-check.sh", "--dry-run", "--part", "first", "--bin", BINARY.parent, "--out",
                          tmp_path / "lease"], capture_output=True, text=True, timeout=400)
    assert time.monotonic() - begin <= 270
    logs = "\n".join(f"{log}: {log.read_text()[-2000:]}" for log in tmp_path.glob("lease/*.log"))
    assert run.returncode == 0, f"{run.stdout}{run.stderr}{logs}"
    with tarfile.open(tmp_path / "lease.tgz") as archive:
        results = json.load(archive.extractfile("lease/results.json"))
        assert archive.extractfile("lease/results.md").read().decode() in run.stdout
    assert [step["name"] for step in results["steps"]] == FIRST
    assert {step["verdict"] for step in results["steps"]} == {"pass"}
    assert results["card"].startswith("none: a dry run")
    measured = [row["name"] for row in results["figures"] if "value" in row]
    assert len([name for name in measured if "GPT-2" in name]) == 8 and any("barrier" in name for name in measured)
    [graph] = [row for row in results["figures"] if "not_measured" in row]
    assert "no CUDA graphs" in graph["not_measured"]
    cost = (tmp_path / "lease" / "cost.log").read_text()
    assert "predicted   measured  ratio" in cost and "not measured" not in cost


def stand_in(folder, code):
    """A folder of binaries that all do the same."""
    for name in ("emulator_test", "ark-run", "ark-serve", "ark-bench", "ark-inspect"):
        (folder / name).write_text(f"#!/bin/sh\n{code}\n")
        (folder / name).chmod(0o755)
    return folder


def lease(tmp_path, code, *options):
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    run = subprocess.run([ROOT / "scripts" / "gpu-check.sh", "--dry-run", "--bin", stand_in(folder, code), "--out",
                          tmp_path / "lease", *options], capture_output=True, text=True, timeout=400,
                         env=os.environ | {"ARK_FIXTURES": str(tmp_path / "none")})
    steps = json.loads((tmp_path / "lease" / "results.json").read_text())["steps"]
    return run.returncode, [(step["name"], step["verdict"]) for step in steps]


def test_without_first_light_a_lease_is_kept(tmp_path):
    dark = 'case "$*" in *list_tests*) exit 0 ;; esac; exit 3'
    code, steps = lease(tmp_path, dark)
    assert code == 1
    assert [name for name, _ in steps] == FIRST + ["peers", "served", "exported", "fixtures", "processes", "kill", "compute-sanitizer",
                                   "conformance", "host-links"]
    assert [verdict for _, verdict in steps] == ["FAIL (3)"] + (len(steps) - 1) * ["skipped (no first light)"]
    # Parts go on in the same files, and a new first part begins anew.
    assert lease(tmp_path, dark, "--part", "peers")[1] == steps + [(name, steps[-1][1]) for name in ("peers", "served")]
    assert [name for name, _ in lease(tmp_path, dark, "--part", "first")[1]] == FIRST


@pytest.mark.parametrize("options", [["--part"], ["--part", "second"], ["--dry"], ["--out"]])
def test_wrong_options_of_a_lease_are_refused(tmp_path, options):
    run = subprocess.run([ROOT / "scripts" / "gpu-check.sh", *options], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert run.returncode == 64 and "--dry-run" in run.stdout and not list(tmp_path.iterdir())


@pytest.mark.skipif(not BINARY.with_name("ark-bench").exists(), reason="no ark-bench (scripts/build.sh makes it)")
def test_what_is_served_is_compared_and_measured(tmp_path):
    run = subprocess.run([sys.executable, ROOT / "scripts" / "gpu_serve.py", "--small", "--device", "cpu", "--bin",
                          BINARY.parent, "--out", tmp_path / "figures"], capture_output=True, text=True, timeout=300,
                         env={"TMPDIR": str(tmp_path)})
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("equal (24 tokens compared)") == gpu_serve.PROMPTS
    assert len((tmp_path / "figures").read_text().splitlines()) == 3 and len(list(tmp_path.iterdir())) == 1
    run = subprocess.run([sys.executable, ROOT / "scripts" / "gpu_serve.py", "--small", "--device", "cuda", "--bin",
                          BINARY.parent], capture_output=True, text=True, timeout=300,
                         env={"TMPDIR": str(tmp_path), "ARK_LIBCUDA": "libcuda-absent.so.1"})
    assert run.returncode == 1 and "no CUDA here: libcuda-absent.so.1 cannot be loaded" in run.stderr


def scored(*tokens):
    return [(token, score, f"t{token}", {f"t{token}": score, **others}) for token, score, others in tokens]


def test_tokens_are_judged_by_their_margins():
    expected = scored((1, -1.0, {"t2": -1.05}), (3, -0.5, {"t4": -2.0}))
    assert gpu_serve.differences(expected, expected) == ("", 2)
    assert gpu_serve.differences(expected, scored((2, -1.0, {}), (9, -3.0, {}))) == ("", 0), "a near tie, and what follows"
    assert "token 1 is 4, not 3 (margin 1.5" in gpu_serve.differences(expected, scored((1, -1.0, {}), (4, -2.0, {})))[0]
    assert "token 0 is 7, not 1 (margin inf" in gpu_serve.differences(expected, scored((7, -1.0, {}), (4, -2.0, {})))[0]
    assert "log-probability -1.2" in gpu_serve.differences(expected, scored((1, -1.2, {}), (3, -0.5, {})))[0]
    assert "log-probability nan" in gpu_serve.differences(expected, scored((1, float("nan"), {}), (3, -0.5, {})))[0]
    assert "1 tokens instead of 2" in gpu_serve.differences(expected, expected[:1])[0]

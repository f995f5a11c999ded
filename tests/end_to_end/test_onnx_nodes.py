"""The operator tests that ONNX publishes, through both drivers of ark-run."""

import collections
import os
import subprocess
from pathlib import Path

import onnx
import pytest

from ark_server import BIN, ROOT
from onnx_nodes import obtain

BINARY = BIN / "ark-run"
# Sets that passed when this was written: fewer is a step back, more should be recorded here.
FLOOR = {"dynamic": 1821, "static": 1493}
# Bernoulli's come by chance; of these the reference takes a length before it is rounded, against the standard's text,
# PyTorch and ONNX Runtime.
OTHERWISE = ("bernoulli", "test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners")
SECONDS = 60  # on two cores, for one driver

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")


@pytest.fixture(scope="session")
def tree():
    return obtain(ROOT / "build" / "onnx-nodes")


def run_suite(tree, driver, *options):
    """Verdict and reason by data set."""
    run = subprocess.run([BINARY, "--suite", tree, "--driver", driver, *options], capture_output=True, text=True,
                         timeout=10 * SECONDS)
    lines = run.stdout.splitlines()
    assert run.returncode in (0, 1), run.stderr
    verdicts = {}
    for line in lines[:-1]:
        verdict, path, reason = (line.split(" ", 2) + [""])[:3]
        verdicts[Path(path).relative_to(tree)] = (verdict, reason)
    count = collections.Counter(verdict for verdict, _ in verdicts.values())
    assert lines[-1] == f"{count['PASS']} passed, {count['FAIL']} failed, {count['UNSUPPORTED']} skipped"
    return verdicts


def print_matrix(tree, verdicts):
    """Per operator: sets passed and refused, of the node tests (one operator each)."""
    table = collections.defaultdict(collections.Counter)
    for path, (verdict, _) in verdicts.items():
        if path.parts[0] == "node" and "_expanded" not in path.parts[1]:
            node = onnx.load(tree / path.parent / "model.onnx").graph.node[0]
            table[f"{node.domain or 'ai.onnx'}.{node.op_type}"][verdict] += 1
    for operator in sorted(table):
        print(f"{operator:50} {table[operator]['PASS']:4} passed {table[operator]['UNSUPPORTED']:4} refused")


@pytest.mark.parametrize("driver", ["dynamic", "static"])
def test_node_tests(tree, driver):
    verdicts = run_suite(tree, driver)
    failed = {str(path): reason for path, (verdict, reason) in verdicts.items()
              if verdict == "FAIL" and not any(name in str(path) for name in OTHERWISE)}
    assert not failed
    refused = {path: reason for path, (verdict, reason) in verdicts.items() if verdict == "UNSUPPORTED"}
    assert all(refused.values()), "a refusal without a reason"
    passed = sum(verdict == "PASS" for verdict, _ in verdicts.values())
    if driver == "dynamic":
        print_matrix(tree, verdicts)
    print(f"{driver}: {passed} passed, {len(refused)} refused")
    assert passed >= FLOOR[driver]


def test_drivers_give_equal_bytes(tree, tmp_path):
    """What both drivers run they run with the same kernels: every output is the same, bit for bit."""
    saved, passed = {}, {}
    for driver in ("dynamic", "static"):
        verdicts = run_suite(tree, driver, "--output-dir", tmp_path / driver)
        passed[driver] = {path for path, (verdict, _) in verdicts.items() if verdict == "PASS"}
        saved[driver] = {file.relative_to(tmp_path / driver): file.read_bytes()
                         for file in (tmp_path / driver).rglob("*.npy")}
    assert passed["static"] <= passed["dynamic"]
    assert len(saved["static"]) >= len(passed["static"]) / 2
    different = [str(file) for file, data in saved["static"].items() if saved["dynamic"].get(file) != data]
    assert not different


@pytest.mark.skipif(not (BIN / "engine_test").exists(), reason=f"no {BIN / 'engine_test'}: it is built with the tests")
def test_mutants_are_refused_by_name_or_run_alike(tree):
    """Models and inputs of these tests with a thing or two changed, by both drivers (tests/engine/operator_mutants_test.cc)."""
    run = subprocess.run([BIN / "engine_test", "--gtest_filter=OperatorMutants.*"], capture_output=True, text=True,
                         env=os.environ | {"ARK_MUTANT_MODELS": str(tree / "node")}, timeout=10 * SECONDS)
    assert run.returncode == 0 and "[       OK ] OperatorMutants" in run.stdout, run.stdout[-4000:] + run.stderr[-2000:]

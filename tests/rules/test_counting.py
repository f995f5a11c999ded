"""The counts that test.sh closes with: crashes, time-outs and silent suites are failures."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import run_tests  # noqa: E402

GTEST = """[==========] Running 3 tests from 1 test suite.
[ RUN      ] Ring.Wraps
noise without a newline[       OK ] Ring.Wraps (0 ms)
[ RUN      ] All/Ring.Fills/0
[  SKIPPED ] All/Ring.Fills/0 (0 ms)
[ RUN      ] All/Ring.Fails/1
ring_test.cc:1: Failure
[  FAILED  ] All/Ring.Fails/1, where GetParam() = (1, "a, b") (2 ms)
"""
SUMMARY = """[  PASSED  ] 1 test.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] All/Ring.Fills/0
[  FAILED  ] 1 test, listed below:
[  FAILED  ] All/Ring.Fails/1, where GetParam() = (1, "a, b")
"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """Runs a shell script as if it were a test binary; returns its result."""
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)

    def run(script, limit=120):
        binary = tmp_path / "fake_test"
        (tmp_path / "text").write_text(GTEST)
        (tmp_path / "summary").write_text(SUMMARY)
        binary.write_text(f"#!/bin/bash\ncd {tmp_path}\n{script}\n")
        binary.chmod(0o755)
        totals = run_tests.Totals()
        run_tests.run_gtest(totals, "fake", binary, limit)
        result = totals.sum
        return result.passed, result.failed, result.skipped

    return run


def test_results_are_counted_once(suite):
    assert suite("cat text summary; exit 1") == (1, 1, 1)


def test_a_crash_is_a_failure_and_keeps_what_passed(suite):
    assert suite("cat text; echo '[ RUN      ] Ring.Dies'; kill -SEGV $$") == (1, 2, 1)


def test_a_suite_that_ends_badly_without_a_failure_is_a_failure(suite):
    assert suite("exit 1") == (0, 1, 0)
    assert suite("exit 77") == (0, 1, 0)


def test_a_suite_that_hangs_is_ended(suite):
    assert suite("cat text; sleep 60", limit=5) == (1, 2, 1)


def test_a_suite_without_a_test_is_a_failure(suite):
    assert suite("exit 0") == (0, 1, 0)


def test_a_pytest_that_cannot_be_collected_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)
    monkeypatch.setattr(run_tests, "PYTHON", sys.executable)
    (tmp_path / "test_broken.py").write_text("import does_not_exist")
    totals = run_tests.Totals()
    run_tests.run_pytest(totals, "broken", [tmp_path], 300)
    assert (totals.sum.passed, totals.sum.failed) == (0, 1)

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

    def run(script, limit=120, again=False):
        binary = tmp_path / "fake_test"
        (tmp_path / "text").write_text(GTEST)
        (tmp_path / "summary").write_text(SUMMARY)
        binary.write_text(f"#!/bin/bash\ncd {tmp_path}\n{script}\n")
        binary.chmod(0o755)
        totals = run_tests.Totals()
        run_tests.run_gtest(totals, "fake", binary, limit)
        if again:
            totals.try_again()
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


def test_what_the_build_should_have_made_is_no_reason_to_skip(tmp_path, monkeypatch):
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)
    monkeypatch.setattr(run_tests, "PYTHON", sys.executable)
    (tmp_path / "test_skips.py").write_text(f"""
import pytest
@pytest.mark.parametrize("why", ["no {ROOT}/build/bin/engine_test", "no GPU is here"])
def test_it(why):
    pytest.skip(why)
""")
    totals = run_tests.Totals()
    run_tests.run_pytest(totals, "skips", [tmp_path], 300)
    assert (totals.sum.passed, totals.sum.failed, totals.sum.skipped) == (0, 1, 1)


PASSES = "echo '[ RUN      ] All/Ring.Fails/1'; echo '[       OK ] All/Ring.Fails/1 (1 ms)'; exit 0"


def test_what_fails_by_its_own_words_is_run_again_alone(suite, capsys):
    once = f"if [[ $2 == --gtest_filter=All/Ring.Fails/1 ]]; then {PASSES}; fi; cat text summary; exit 1"
    assert suite(once) == (1, 1, 1)
    assert suite(once, again=True) == (2, 0, 1)
    assert "unsteady: All/Ring.Fails/1" in capsys.readouterr().out
    assert suite("cat text summary; exit 1", again=True) == (1, 1, 1)


def test_a_second_go_must_run_what_failed(suite):
    assert suite("if [[ $2 ]]; then exit 0; fi; cat text; exit 1", again=True) == (1, 1, 1)


@pytest.mark.parametrize("end", ["echo '[ RUN      ] Ring.Dies'; kill -SEGV $$", "echo '[ RUN      ] Ring.Dies'; exit 1", "exit 66", "sleep 60"])
def test_crashes_hangs_and_sanitizers_get_no_second_go(suite, end):
    assert suite(f"if [[ $2 ]]; then {PASSES}; fi; cat text; {end}", limit=5, again=True) == (1, 2, 1)


def test_many_failures_are_not_run_again(suite):
    many = "".join(f"[ RUN      ] Ring.Fails{i}\n[  FAILED  ] Ring.Fails{i} (1 ms)\n" for i in range(run_tests.UNSTEADY + 1))
    assert suite(f"if [[ $2 ]]; then {PASSES}; fi; printf '{many}'; exit 1", again=True)[1] == run_tests.UNSTEADY + 1


def test_pytest_runs_what_failed_again_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)
    monkeypatch.setattr(run_tests, "PYTHON", sys.executable)
    (tmp_path / "test_unsteady.py").write_text("""
from pathlib import Path
import pytest
@pytest.mark.parametrize("name", ["once", "never"])
def test_it(name):
    seen = Path(__file__).with_suffix("." + name)
    first = not seen.exists()
    seen.touch()
    assert name == "never" or not first
""")
    totals = run_tests.Totals()
    run_tests.run_pytest(totals, "unsteady", [tmp_path], 300)
    assert (totals.sum.passed, totals.sum.failed) == (1, 1)
    totals.try_again()
    assert (totals.sum.passed, totals.sum.failed) == (2, 0)
    assert "unsteady: " in capsys.readouterr().out

"""cmake --install: what a packager gets, and a program of somebody else's that finds it."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ARK_BIN", ROOT / "build" / "bin")).parent
FIXTURES = Path(os.environ.get("ARK_FIXTURES", ROOT.parent / "shared" / "fixtures"))
EXECUTABLES = ["ark-serve", "ark-run", "ark-inspect", "ark-bench"]


def run(*command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", folder)
    return folder


def test_executables_and_their_manual_pages_are_installed(prefix):
    for name in EXECUTABLES:
        assert run(prefix / "bin" / name, "--version").startswith("ark ")
        page = (prefix / "share" / "man" / "man1" / f"{name}.1").read_text()
        assert page.startswith(f'.TH {name.upper()} 1 "" "ark ')
        assert ".SH EXIT STATUS" in page and "\\-\\-help" in page
        assert not [line for line in page.splitlines() if line.startswith("'")], "roff takes it for a request"


def test_a_program_finds_the_package_and_generates_what_ark_run_does(prefix, tmp_path):
    model = FIXTURES / "gpt2-optimum"
    run("cmake", "-S", ROOT / "tests" / "end_to_end" / "embedding", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    generated = run(tmp_path / "generate", model, "Hello", 12)
    expected = run(prefix / "bin" / "ark-run", model, "--prompt", "Hello", "--max-tokens", 12, "--temperature", 0)
    assert generated.strip() and generated.strip() in expected

"""cmake --install: what a packager gets, and a program of somebody else's that finds it."""

import json
import re
import subprocess

import pytest

from ark_server import BIN, FIXTURES, ROOT

BUILD = BIN.parent
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


@pytest.mark.skipif(not (BUILD / "bin" / "libark_verbs.so").exists(), reason="libibverbs was not there to build with")
def test_transport_verbs_lies_where_executables_look(prefix):
    [found] = re.findall(r"RUNPATH.*\[(.*)\]", run("readelf", "-d", prefix / "bin" / "ark-serve"))
    assert any((prefix / "bin" / folder.replace("$ORIGIN", ".") / "libark_verbs.so").exists() for folder in found.split(":"))
    assert all(folder.startswith("$ORIGIN") for folder in found.split(":")), "an empty one is the working directory"


def test_a_program_finds_the_package_and_generates_what_ark_run_does(prefix, tmp_path):
    model = FIXTURES / "gpt2-optimum"
    run("cmake", "-S", ROOT / "tests" / "end_to_end" / "embedding", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    generated = run(tmp_path / "generate", model, "Hello", 12)
    expected = run(prefix / "bin" / "ark-run", model, "--prompt", "Hello", "--max-tokens", 12, "--temperature", 0)
    assert generated.strip() and generated.strip() in expected


def test_executables_are_hardened():
    for name in EXECUTABLES:
        headers = run("readelf", "-W", "-h", "-l", "-d", "--dyn-syms", BUILD / "bin" / name)
        assert "DYN (Position-Independent Executable file)" in headers and "GNU_RELRO" in headers, name
        assert "BIND_NOW" in headers or "Flags: NOW" in headers, name
        assert "__stack_chk_fail" in headers, name
        if "CMAKE_BUILD_TYPE:STRING=Release" in (BUILD / "CMakeCache.txt").read_text():
            assert "__memcpy_chk" in headers or "__snprintf_chk" in headers or "__read_chk" in headers, name


def test_servers_need_no_http_library():
    """server/http parses what strangers send; only ark-bench, a client, has one."""
    for name in ("ark-serve", "ark-run", "ark-inspect"):
        assert "httplib" not in run("readelf", "-d", BUILD / "bin" / name), name


def test_the_bill_of_materials_names_what_is_linked_and_what_is_installed():
    bill = json.loads(run(ROOT / "scripts" / "sbom.sh", BUILD / "bin" / "ark-serve"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    named = {component["name"]: component for component in bill["components"]}
    assert all(component["purl"].endswith(("?arch=all", f"@{component['version']}")) or "?arch=" in component["purl"]
               for component in named.values())
    packages = {"stdc++": "stdc++6", "gcc_s": "gcc-s1", "m": "c6", "c": "c6", "crypto": "ssl3"}
    for library in re.findall(r"\(NEEDED\).*\[lib([^.\]]+)", run("readelf", "-d", BUILD / "bin" / "ark-serve")):
        assert any(name.startswith("lib" + packages.get(library, library)) for name in named), (library, sorted(named))
    for line in (ROOT / "scripts" / "requirements.in").read_text().splitlines():
        if not line.startswith("#"):
            name, version = line.lower().split("==")
            assert named[name]["version"] == version

"""Servers that many tests share. Each is started when first asked for and stopped with SIGTERM at the end."""

import subprocess
import sys

import pytest

import ark_server
from ark_server import ROOT, Server

sys.path.insert(0, str(ROOT / "models"))  # presets, writers of models, the oracle


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """What servers keep for their next start is the session's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARK_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def needs(*paths):
    for path in paths:
        if not path.exists():
            pytest.skip(f"no {path}")


@pytest.fixture(scope="session")
def tiny():
    """A random Llama with tokenizer and chat template, on two ranks; context 128."""
    needs(ark_server.BINARY, ark_server.TINY)
    with Server("--model", ark_server.TINY, "--tp", 2) as server:
        yield server


@pytest.fixture(scope="session")
def client(tiny):
    with tiny.client() as client:
        yield client


@pytest.fixture(scope="session")
def long_model(tmp_path_factory):
    """A random Llama without a tokenizer whose context is long enough to keep a server busy for a minute."""
    needs(ark_server.BINARY)
    path = tmp_path_factory.mktemp("long") / "long.onnx"
    subprocess.run([sys.executable, ROOT / "models" / "llama_random.py", path, "--context", "65536", "--hidden", "128",
                    "--layers", "4", "--intermediate", "256", "--vocab", "256"], check=True)
    return path


@pytest.fixture(scope="session")
def tiny_model():
    needs(ark_server.BINARY, ark_server.TINY)
    return ark_server.TINY / "model.onnx"


@pytest.fixture(scope="session")
def smollm2_model():
    needs(ark_server.BINARY, ark_server.SMOLLM2)
    return ark_server.SMOLLM2

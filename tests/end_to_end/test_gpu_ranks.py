"""--processes with --device cuda: each rank process takes a GPU where rank 0 has one, and they end together. No GPU is
here: a CUDA driver of the tests' own runs loops that never answer, so that only what happens around them is shown."""

import os
import signal
import subprocess

import pytest

from ark_server import BINARY, ROOT, START_SECONDS, Server, children_of, clean_environment, skip_without_nvrtc, until

UNAVAILABLE = 69
FAKE = ROOT / "build" / "libfake_libcuda.so"


def test_a_rank_that_has_no_gpu_says_its_name(tiny_model):
    environment = clean_environment() | {"ARK_RANK": "1", "ARK_WORLD_SIZE": "2", "ARK_BOOTSTRAP": "@ark-nobody",
                                         "ARK_LIBCUDA": "libcuda-absent.so.1"}
    run = subprocess.run([BINARY, "--model", tiny_model, "--tp", "2", "--processes", "--device", "cuda"],
                         capture_output=True, text=True, env=environment, timeout=600)
    assert run.returncode == UNAVAILABLE
    assert run.stderr == ("ark-serve: error: rank 1: no CUDA here: libcuda-absent.so.1 cannot be loaded\n")


@pytest.fixture
def two_ranks(tiny_model, tmp_path):
    """Rank 0 in front of the first step that the fake GPU never ends."""
    if not FAKE.exists():
        pytest.skip(f"no {FAKE}")
    environment = {"ARK_LIBCUDA": str(FAKE), "ARK_FAKE_CUDA_HANGS": "1", "ARK_CACHE_DIR": str(tmp_path)}
    server = Server("--model", tiny_model, "--tp", 2, "--processes", "--device", "cuda", "--kv-memory", "64k",
                    environment=environment, wait=False)
    try:
        until(lambda: server.process.poll() is not None or any(line.startswith("device ") for line in server.lines),
              "the line about the device", START_SECONDS)
        if server.process.poll() is not None:
            server.join()
            skip_without_nvrtc(server.errors())
        yield server
    finally:
        server.kill()


def test_ranks_that_would_share_a_gpu_stay_on_the_cpu_unless_asked(tiny_model, tmp_path):
    if not FAKE.exists():
        pytest.skip(f"no {FAKE}")
    environment = {"ARK_LIBCUDA": str(FAKE), "ARK_CACHE_DIR": str(tmp_path)}
    with Server("--model", tiny_model, "--tp", 2, "--processes", "--kv-memory", "64k", environment=environment) as server:
        [device] = [line for line in server.lines if line.startswith("device ")]
        skip_without_nvrtc(device)
        assert "cpu, " in device and "2 processes on 1 GPUs would take turns" in device, device


def test_a_killed_rank_ends_the_loop_of_the_other(two_ranks):
    server = two_ranks
    assert server.process.poll() is None, server.errors()
    assert any(line.startswith("ranks ") and "2 processes on 1 GPUs; loops that share a GPU take turns" in line
               for line in server.lines), server.lines
    [rank_0] = server.children()  # whose first load ends the server where it fails
    [rank_1] = children_of(rank_0)
    os.kill(rank_1, signal.SIGKILL)
    assert server.join() == UNAVAILABLE, server.errors()  # 5 s are for a loop that does not hear the abort
    assert "rank 1 is dead" in server.log[-1]


def test_rank_processes_end_with_rank_0(two_ranks):
    [rank_0] = two_ranks.children()
    children = [rank_0, *children_of(rank_0)]
    assert len(children) == 2
    os.kill(two_ranks.pid, signal.SIGKILL)
    until(lambda: not any(os.path.exists(f"/proc/{pid}/fd/0") for pid in children), "the end of the ranks")

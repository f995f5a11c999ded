"""--processes with --device cuda: each rank process takes a GPU where rank 0 has one, and they end together. No GPU is
here: a CUDA driver of the tests' own runs loops that never answer, so that only what happens around them is shown."""

import json
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
def two_ranks(request, tiny_model):
    """Rank 0 in front of the first step that the fake GPU never ends."""
    if not FAKE.exists():
        pytest.skip(f"no {FAKE}")
    environment = {"ARK_LIBCUDA": str(FAKE), "ARK_FAKE_CUDA_HANGS": "1"}
    environment |= getattr(request, "param", {})
    server = Server("--model", tiny_model, "--tp", 2, "--processes", "--device", "cuda", "--kv-memory", "64k",
                    environment=environment, wait=False)
    try:
        until(lambda: server.process.poll() is not None or any(line.startswith("links ") for line in server.lines),
              "the lines about device, ranks and links", START_SECONDS)
        if server.process.poll() is not None:
            server.join()
            skip_without_nvrtc(server.errors())
        yield server
    finally:
        server.kill()


def test_ranks_that_would_share_a_gpu_stay_on_the_cpu_unless_asked(tiny_model):
    if not FAKE.exists():
        pytest.skip(f"no {FAKE}")
    environment = {"ARK_LIBCUDA": str(FAKE)}
    with Server("--model", tiny_model, "--tp", 2, "--processes", "--kv-memory", "64k", environment=environment) as server:
        [device] = [line for line in server.lines if line.startswith("device ")]
        skip_without_nvrtc(device)
        assert "cpu, " in device and "2 processes on 1 GPUs would take turns" in device, device


def test_a_killed_rank_ends_the_loop_of_the_other(two_ranks):
    server = two_ranks
    assert server.process.poll() is None, server.errors()
    assert any(line.startswith("ranks ") and "2 processes on 1 GPUs; loops that share a GPU take turns" in line
               for line in server.lines), server.lines
    assert any(line.split() == ["links", "GPU", "to", "GPU:", "0-1"] for line in server.lines), server.lines
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


@pytest.mark.parametrize("two_ranks", [{"ARK_GPU_LINKS": "host"}], indirect=True)
def test_memory_of_the_host_can_be_asked_for(two_ranks):
    assert any("through memory of the host: 0-1 (rank 0: ARK_GPU_LINKS=host asks for it)" in line
               for line in two_ranks.lines if line.startswith("links ")), two_ranks.lines


def test_what_is_no_way_between_gpus_is_refused(tiny_model):
    run = subprocess.run([BINARY, "--model", tiny_model, "--device", "cpu"], capture_output=True, text=True, timeout=60,
                         env=clean_environment() | {"ARK_GPU_LINKS": "nvlink"})
    assert run.returncode == 64
    assert run.stderr.splitlines()[-1] == "ark-serve: error: ARK_GPU_LINKS=nvlink: give auto or host"


def test_the_placement_says_which_way_gpus_would_take(tiny_model):
    if not FAKE.exists():
        pytest.skip(f"no {FAKE}")
    command = [BINARY.with_name("ark-inspect"), tiny_model, "--stage", "placement", "--tp", "2"]

    def placement(*options, **environment):
        run = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60,
                             env=clean_environment() | environment)
        assert run.returncode == 0, run.stderr
        return run.stdout

    line = "as processes on this machine's GPUs: "
    assert line + "GPU to GPU: 0-1\n" in placement(ARK_LIBCUDA=str(FAKE))
    assert line + "through memory of the host: 0-1 (" in placement(ARK_LIBCUDA=str(FAKE), ARK_GPU_LINKS="host")
    assert line not in placement(ARK_LIBCUDA="libcuda-absent.so.1")
    by_nic = "those that do not reach each other, by --transport verbs: "
    assert by_nic + "by a NIC that reads and writes GPU memory" in placement(ARK_LIBCUDA=str(FAKE))
    assert by_nic + "through memory of the host (ARK_GPU_LINKS" in placement(ARK_LIBCUDA=str(FAKE), ARK_GPU_LINKS="host")
    assert by_nic not in placement(ARK_LIBCUDA="libcuda-absent.so.1")
    [link] = json.loads(placement("--json", ARK_LIBCUDA=str(FAKE)))["links"]
    assert link["between"] == [0, 1] and link["by_gpus"] == "GPU to GPU: 0-1"

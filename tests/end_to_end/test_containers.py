"""What a container leaves: the server promises no more, and a kernel never has to end it."""

import os
import resource
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ark_server import BINARY, MEBIBYTE, Server, clean_environment, run_to_end


@pytest.fixture
def group():
    """A control group for memory below our own, v1 or v2: the folder, and the name of its limit."""
    for root, limit in (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max"):
        folder = root / f"ark-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / limit).exists():
            yield folder, limit
            folder.rmdir()
            return
        folder.rmdir()
    pytest.skip("no control group for memory can be made here")


def limited(group, mebibytes):
    folder, limit = group
    (folder / limit).write_text(str(mebibytes * MEBIBYTE))
    return lambda: (folder / "cgroup.procs").write_text(str(os.getpid()))


AS_F32 = "--weights", "f32"


def check(model, enter, *options):
    return subprocess.run([BINARY, "--check", "--model", model, *options], preexec_fn=enter, capture_output=True, text=True,
                          timeout=120, env=clean_environment())


def talk(server, words):
    """A prompt of so many words; only its answer's status matters: 200, or a refusal that names a limit."""
    answer = server.post("/v1/completions", {"model": server.model, "prompt": "word " * words, "max_tokens": 16})
    return answer.status_code, answer.text


def test_weights_that_do_not_fit_the_group_are_refused_with_both_numbers(group, smollm2_model):
    result = check(smollm2_model, limited(group, 300), *AS_F32)
    assert result.returncode == 69, result.stderr
    last = result.stderr.splitlines()[-1]
    assert "weights of 51" in last and "do not fit in the 2" in last and "MiB" in last and "--kv-memory" in last, last


@pytest.mark.parametrize("mebibytes, enough, options", [(620, 700, AS_F32), (700, 700, AS_F32), (900, 700, AS_F32),
                                                       (180, 400, ()), (260, 400, ()), (400, 400, ())])
def test_a_group_serves_or_refuses_and_is_never_killed(group, smollm2_model, mebibytes, enough, options):
    enter = limited(group, mebibytes)
    result = check(smollm2_model, enter, *options)
    assert result.returncode in (0, 69), result.stderr
    if result.returncode:
        assert mebibytes < enough, result.stderr
        assert "do not fit" in result.stderr
        return
    with Server("--model", smollm2_model, *options, prepare=enter) as server:
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda i: talk(server, (400, 700)[i % 2]), range(6)))
        assert server.process.poll() is None, "it was killed"
        for status, text in answers:
            assert status == 200 or status in (400, 429) and ("--kv-memory" in text or "context_length" in text), text
        assert talk(server, 20)[0] == 200


@pytest.mark.parametrize("mebibytes", [300, 700, 1200, 3000])
def test_an_address_space_serves_or_refuses(smollm2_model, mebibytes):
    def enter():
        resource.setrlimit(resource.RLIMIT_AS, (mebibytes * MEBIBYTE, mebibytes * MEBIBYTE))

    result = check(smollm2_model, enter, *AS_F32)
    assert result.returncode in (0, 69), result.stderr
    assert result.returncode == 0 or "do not fit in the" in result.stderr or mebibytes < 700, result.stderr
    assert (result.returncode == 0) == (mebibytes > 1000), result.stderr
    if result.returncode == 0:
        with Server("--model", smollm2_model, *AS_F32, prepare=enter) as server:
            assert talk(server, 300)[0] == 200


def test_memory_that_is_asked_for_must_be_there(smollm2_model):
    """All sequences together can use less than is asked for: what counts is what would be taken."""
    options = ["--check", "--model", smollm2_model, "--kv-memory", "100000G", "--max-num-seqs"]
    assert run_to_end(*options, 1).returncode == 0
    result = run_to_end(*options, 4096)
    assert result.returncode == 69, result.stderr
    assert "keys and values of" in result.stderr and "--max-num-seqs" in result.stderr


@pytest.mark.parametrize("kibibytes", [128, 320, 2048])
@pytest.mark.parametrize("options", [(), ("--tp", "2", "--processes")])
def test_a_small_stack_serves(tiny_model, kibibytes, options):
    """What `ulimit -s` leaves to all threads is less than kernels keep there."""

    def enter():
        resource.setrlimit(resource.RLIMIT_STACK, (kibibytes << 10, kibibytes << 10))

    with Server("--model", tiny_model, *options, prepare=enter) as server:
        assert talk(server, 8)[0] == 200

"""Every call that can fail does, once (tests/faults): a named error, or a request that is served. Nothing hangs, dies or
is lost."""

import os
import random
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

import plain_model
from ark_server import BINARY, FULL, PATIENCE, TINY, Server, clean_environment

LIBRARY = BINARY.parent.parent / "libark_faults.so"
# Not every malloc of 200,000: a sample, another one with --full; of the other calls all with --full.
MOST_OF_A_KIND = 2000 if FULL else 6
PLAIN = "plain"  # stands for a decoder that is served one sequence at a time
SEED = os.getpid() if FULL else 1


@pytest.fixture(scope="module")
def library():
    if not LIBRARY.exists():
        pytest.skip(f"no {LIBRARY}: it is built with the tests")
    return LIBRARY


def environment(library, fault, counts=None, since="main"):
    return {"LD_PRELOAD": str(library), "ARK_FAULT": fault, "ARK_FAULT_FROM": since} | (
        {"ARK_FAULT_COUNTS": str(counts)} if counts else {})


def points(counts):
    """KIND:N for the calls that a run without a fault has counted."""
    chosen, pick = [], random.Random(SEED)
    for line in counts.read_text().splitlines():
        kind, number = line.split()
        numbers = range(1, int(number) + 1)
        chosen += [f"{kind}:{n}" for n in sorted(pick.sample(numbers, min(MOST_OF_A_KIND, len(numbers))))]
    assert len({point.split(":")[0] for point in chosen}) > 4, chosen
    return chosen


def try_all(faults, attempt):
    """Each attempt returns what was wrong, or None."""
    with ThreadPoolExecutor(3) as pool:
        wrong = [f"{fault}: {what}" for fault, what in zip(faults, pool.map(attempt, faults)) if what]
    assert not wrong, "\n".join(wrong)
    print(f"{len(faults)} faults")


@pytest.mark.parametrize("options", [[TINY], [PLAIN], [TINY, "--processes", "--tp", "2"]])
def test_loading_survives_or_names_every_fault(library, tmp_path, options):
    options = [plain_model.folder() if o == PLAIN else o for o in options]

    def load(fault, counts=None):
        return subprocess.run([BINARY, "--check", "--model", *options], capture_output=True, text=True,
                              errors="replace", timeout=PATIENCE,
                              env=clean_environment() | environment(library, fault, counts))

    def attempt(fault):
        try:
            result = load(fault)
        except subprocess.TimeoutExpired:
            return "hangs"
        last = (result.stderr.splitlines() or [""])[-1]
        if result.returncode not in (0, 65, 66, 69, 71) or (result.returncode and ": error: " not in last):
            return f"exit status {result.returncode}, {last}"

    assert load("open:0", tmp_path / "counts").returncode == 0
    try_all(points(tmp_path / "counts"), attempt)


def ask(server, tokens=8):
    body = {"model": server.model, "prompt": [5, 6, 7], "max_tokens": tokens, "temperature": 0, "logprobs": 0,
            "stream": False}
    return server.post("/v1/completions", body)


@pytest.mark.parametrize("options", [[TINY], [TINY, "--tp", "2"], [PLAIN]])
def test_serving_survives_every_fault(library, tmp_path, options):
    options = [plain_model.folder() if o == PLAIN else o for o in options]

    def start(fault, counts=None):
        return Server("--model", *options, environment=environment(library, fault, counts, "ready"))

    with start("open:0", tmp_path / "counts") as server:
        expected = ask(server).json()["choices"][0]["logprobs"]["tokens"]

    def answers(server):
        """The answers to four requests that are wrong, and what became of those that were not answered."""
        others, refused = [], []
        for i in range(4):
            try:
                answer = ask(server)
                said = answer.json()
            except httpx2.HTTPError as error:
                refused.append(f"request {i}: {error!r}")
                continue
            if answer.status_code != 200 and said["error"]["message"]:
                refused.append(f"request {i}: {answer.status_code} {said}")
            elif answer.status_code != 200 or said["choices"][0]["logprobs"]["tokens"] != expected:
                others.append(f"request {i}: {said}")
        return others, refused

    def attempt(fault):
        server = start(fault)
        try:
            others, refused = answers(server)
            status = server.stop()
            if others:
                return f"other tokens: {others}"
            if status == 69 and re.search("error: .*(rank [01]|memory|the loop cannot go on)", server.log[-1]):
                return None  # within a step, or where memory is given back: it says so and ends
            if status or len(refused) > 1:  # one may be refused or cut off, whichever the fault hits
                return f"exit status {status}, {refused}: {server.errors()}"
        except subprocess.TimeoutExpired:
            return f"does not end: {server.errors()}"
        finally:
            server.kill()

    try_all(points(tmp_path / "counts"), attempt)

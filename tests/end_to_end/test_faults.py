"""Every call that can fail does, once (tests/faults): a named error, or a request that is served. Nothing hangs, dies or
is lost."""

import json
import os
import random
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

import plain_model
from ark_server import BINARY, FULL, PATIENCE, TINY, Server, clean_environment, raw_get, receive_all

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


def points(counts, first=0):
    """KIND:N for the calls that a run without a fault has counted, of mallocs also the `first`."""
    chosen, pick = [], random.Random(SEED)
    for line in counts.read_text().splitlines():
        kind, number = line.split()
        numbers = range(1, int(number) + 1)
        some = {*pick.sample(numbers, min(MOST_OF_A_KIND, len(numbers))), *numbers[:first if kind == "malloc" else 0]}
        chosen += [f"{kind}:{n}" for n in sorted(some)]
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


SAMPLING = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}


def complete(server):
    answer = server.post("/v1/completions", SAMPLING | {"prompt": [5, 6, 7], "logprobs": 0})
    return answer.json()["choices"][0]["logprobs"]["tokens"] if answer.status_code == 200 else answer.json()


def chat(server):
    answer = server.post("/v1/chat/completions", SAMPLING | {"messages": [{"role": "user", "content": "Who are you?"}]})
    return answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else answer.json()


def stream(server):
    answer = server.post("/v1/completions", SAMPLING | {"prompt": "Once upon a time", "stream": True})
    if answer.status_code != 200:
        return answer.json()
    *events, end = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert end == "[DONE]"
    events = list(map(json.loads, events))
    return next((e for e in events if "error" in e), None) or "".join(e["choices"][0]["text"] for e in events)


REQUESTS = [complete, chat, stream, complete, chat, complete]


def resources(server):
    """Descriptors, but for those by which the loop watches its threads, and threads."""
    folder = Path(f"/proc/{server.pid}/fd")
    opened = []
    for number in os.listdir(folder):
        try:
            opened.append(os.readlink(folder / number))
        except FileNotFoundError:  # closed meanwhile
            pass
    return sum(not name.endswith("/schedstat") for name in opened), len(os.listdir(f"/proc/{server.pid}/task"))


def started(start, fault):
    """The server, or what was wrong; None where the fault hit what it says once it is ready, and it named that."""
    try:
        return start(fault)
    except AssertionError as ended:
        return None if re.search("ended with 69: .*error: out of memory", str(ended)) else str(ended)


def leaked(server, before):
    """What it has more of than before and, for threads, than pools keep: one for each request at most. None if nothing."""
    deadline = time.monotonic() + 5  # connections take a moment to close
    while time.monotonic() < deadline:
        try:
            server.get("/health")  # wakes whoever has missed that a connection is over
        except httpx2.HTTPError:
            pass
        time.sleep(0.05)
        after = resources(server)
        if after[0] <= before[0] and after[1] <= before[1] + len(REQUESTS):
            return None
    return f"descriptors and threads: {before} before, {after} after"


@pytest.mark.parametrize("options", [[TINY], [TINY, "--tp", "2"], [PLAIN]])
def test_serving_survives_every_fault(library, tmp_path, options):
    options = [plain_model.folder() if o == PLAIN else o for o in options]

    def start(fault, counts=None):
        return Server("--model", *options, environment=environment(library, fault, counts, "ready"))

    with start("open:0", tmp_path / "counts") as server:
        expected = [request(server) for request in REQUESTS]

    def answers(server):
        """The answers to requests that are wrong, and what became of those that were not answered."""
        others, refused = [], []
        for request, wanted in zip(REQUESTS, expected):
            try:
                said = request(server)
            except (httpx2.HTTPError, AssertionError) as error:
                refused.append(f"{request.__name__}: {error!r}")
                continue
            if isinstance(said, dict) and said["error"]["message"]:
                refused.append(f"{request.__name__}: {said}")
            elif said != wanted:
                others.append(f"{request.__name__}: {said}")
        return others, refused

    def attempt(fault):
        server = started(start, fault)
        if not isinstance(server, Server):
            return server
        try:
            before = resources(server)
            others, refused = answers(server)
            leak = leaked(server, before) if server.process.poll() is None else None
            status = server.stop()
            if others:
                return f"other tokens: {others}"
            ends = "error: .*(rank [01]|memory|the loop cannot go on)"
            if status == 69 and any(re.search(ends, line) for line in server.log[-3:]):  # requests may be logged behind it
                return None  # within a step, or where memory is given back: it says so and ends
            if status or len(refused) > 1:  # one may be refused or cut off, whichever the fault hits
                return f"exit status {status}, {refused}: {server.errors()}"
            return leak
        except subprocess.TimeoutExpired:
            return f"does not end: {server.errors()}"
        finally:
            server.kill()

    try_all(points(tmp_path / "counts", first=12), attempt)


def test_keys_are_read_again_or_kept_at_every_fault(library, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-the-faults\n")
    keys.chmod(0o600)

    def start(fault, counts=None):
        return Server("--model", TINY, "--api-key-file", keys, environment=environment(library, fault, counts, "ready"))

    def reload(server):
        server.signal(signal.SIGHUP)
        deadline = time.monotonic() + 5  # without memory the line is dropped
        while time.monotonic() < deadline and server.process.poll() is None and not any("keys and" in line for line in list(server.log)):
            time.sleep(0.02)

    def attempt(fault):
        server = started(start, fault)
        if not isinstance(server, Server):
            return server
        try:
            reload(server)
            if server.process.poll() is not None:
                return f"exit status {server.join()}: {server.errors()}"
            if any("are read again" in line for line in list(server.log)):
                return None  # the fault is none of reading, and may be still to come
            headers = {"Authorization": "Bearer a-key-of-the-faults"}
            answer = server.post("/v1/completions", SAMPLING | {"prompt": [1]}, headers=headers)
            status = server.stop()
            if answer.status_code != 200 or status:
                return f"{answer.text}, exit status {status}: {server.errors()}"
        except httpx2.HTTPError as error:
            return f"{error!r}: {server.errors()}"
        finally:
            server.kill()

    server = start("open:0", tmp_path / "counts")
    reload(server)
    server.stop()
    try_all(points(tmp_path / "counts"), attempt)


HOURS = 6 * 3600


def test_a_time_of_day_that_jumps_for_hours_changes_stamps_only(library, tmp_path):
    """As of a virtual machine that was asleep, or whose clock is set: in all processes of a server, 20 times a second."""
    keys = tmp_path / "keys"
    keys.write_text("once:one rpm=1\nfree:x\n")
    keys.chmod(0o600)
    once, free = ({"Authorization": f"Bearer {key}"} for key in ("one", "x"))
    body = SAMPLING | {"prompt": [1]}
    with Server("--model", TINY) as server:
        expected = [request(server) for request in REQUESTS]
    with Server("--model", TINY, "--tp", 2, "--processes", "--api-key-file", keys, "--shutdown-timeout", 1,
                environment={"LD_PRELOAD": str(library), "ARK_FAULT_CLOCK": str(HOURS)}) as server:
        assert server.post("/v1/completions", body, headers=once).status_code == 200
        server.headers, created = free, []
        with server.connect() as idle:
            while len(created) < 10 or max(created) - min(created) < HOURS:
                assert [request(server) for request in REQUESTS] == expected
                created.append(server.post("/v1/completions", body).json()["created"])
                assert server.get("/health").status_code == 200
                refused = server.post("/v1/completions", body, headers=once)  # no minute has gone by
                assert refused.status_code == 429 and int(refused.headers["Retry-After"]) <= 60
            idle.sendall(raw_get(b"Connection: close"))  # not closed as idle for hours
            assert receive_all(idle).startswith(b"HTTP/1.1 200 ")
        assert server.metric("ark_restarts_total") == 0
        since = time.monotonic()
        assert server.stop() == 0 and time.monotonic() - since < 2 + PATIENCE / 10

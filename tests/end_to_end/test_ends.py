"""Ends are bounded in every state, signals mean what they should, and a log that nobody reads holds up nothing."""

import os
import resource
import signal
import time

import pytest

from ark_server import Server, family, free_port, is_alive, is_ready, raw_get, until

STUCK = 75
SLACK = 1.5  # of a busy machine, beyond what is promised
NOWHERE, LAST = raw_get(target=b"/nowhere"), raw_get(b"Connection: close", target=b"/nowhere")


@pytest.mark.parametrize("stopped", [None, "rank", "model"])
@pytest.mark.parametrize("signals", [1, 2])
def test_sigterm_ends_whatever_runs_or_hangs(long_model, stopped, signals):
    timeout = 1 if signals == 1 else 60
    supervise = "--supervise" if stopped == "model" else "--no-supervise"
    with Server("--model", long_model, "--tp", 2, "--processes", supervise, "--kv-memory", "256M", "--shutdown-timeout",
                timeout) as server:
        with server.busy():
            processes = family(server) if stopped == "model" else server.children()
            if stopped:
                os.kill(processes[0], signal.SIGSTOP)
            since = time.monotonic()
            for _ in range(signals):
                server.signal()
                time.sleep(0.1)
            status = server.join()
            assert time.monotonic() - since < (timeout if signals == 1 else 0.1) + 1 + SLACK
            assert status == (STUCK if stopped else 0), server.errors()
            assert not stopped or "stuck in" in server.log[-1], server.errors()
            until(lambda: not any(map(is_alive, processes)), "the end of the ranks")
            server.process.returncode = 0  # expected


def test_a_signal_while_loading_ends_at_once(long_model):
    for wait in (0.05, 0.2, 0.4):
        server = Server("--model", long_model, "--tp", 2, "--processes", wait=False)
        try:
            time.sleep(wait)
            since = time.monotonic()
            server.signal()
            assert server.join() in (0, -signal.SIGTERM)  # by default before the program is asked
            assert time.monotonic() - since < 1 + SLACK
        finally:
            server.kill()


def test_other_signals_end_nothing_and_sighup_reads_the_keys_again(tiny_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("old:sk-one-1\n")
    keys.chmod(0o600)
    with Server("--model", tiny_model, "--api-key-file", keys) as server:
        def status(key):
            return server.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

        assert (status("sk-one-1"), status("sk-two-2")) == (200, 401)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGPIPE, signal.SIGXFSZ):
            server.signal(number)
        keys.write_text("new:sk-two-2\n")
        server.signal(signal.SIGHUP)
        until(lambda: status("sk-two-2") == 200, "the new key")
        assert status("sk-one-1") == 401
        keys.write_text("\n")
        server.signal(signal.SIGHUP)
        until(lambda: "holds no key" in server.errors(), "a line about the file")
        assert status("sk-two-2") == 200
        assert not any("sk-" in line for line in server.log)
        until(lambda: "key=new" in server.errors(), "the key's name in the log")


def test_a_log_that_nobody_reads_holds_up_nothing(tiny_model):
    with Server("--model", tiny_model, read_log=False) as server:
        for _ in range(12):
            answers = server.exchange(NOWHERE * 999 + LAST, "never")
            assert answers.count(b"HTTP/1.1 404 ") == 1000
        since = time.monotonic()
        assert server.get("/health").status_code == 200 and time.monotonic() - since < 1
        dropped = server.metric("ark_log_lines_dropped_total")
        assert dropped > 1000
        server.read_log()  # it flows again, and says what is missing
        until(lambda: any(f"lines={dropped:.0f}" in line for line in list(server.log)), "the number of lines dropped")
        assert sum("path=/nowhere" in line for line in server.log) + dropped == 12_000


def test_sigterm_ends_a_server_whose_log_nobody_reads(tiny_model):
    with Server("--model", tiny_model, "--shutdown-timeout", 1, read_log=False) as server:
        server.exchange(NOWHERE * 1999 + LAST, "never")
        since = time.monotonic()
        assert server.stop() in (0, STUCK)
        assert time.monotonic() - since < 2 + SLACK


def test_a_full_disk_and_closed_descriptors_are_served_on(tiny_model, tmp_path):
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    def closed():
        for descriptor in (0, 1, 2):
            os.close(descriptor)

    for prepare, where in ((limited, tmp_path / "log"), (lambda: None, "/dev/full"), (closed, "/dev/null")):
        with open(where, "w") as log:
            server = Server("--model", tiny_model, wait=False, port=free_port(), prepare=prepare, read_log=False, stderr=log)
        try:
            until(lambda: is_ready(server), "readiness")  # which standard output may not say
            for _ in range(40):
                assert server.get("/nowhere").status_code == 404
            assert server.post("/v1/completions", {"prompt": [1], "max_tokens": 2}).status_code == 200
            assert server.process.poll() is None
        finally:
            server.kill()


def test_the_log_file_is_opened_anew_and_kept_where_that_fails(tiny_model, tmp_path):
    path, old, older = tmp_path / "log", tmp_path / "log.1", tmp_path / "log.2"
    with Server("--model", tiny_model, "--tp", 2, "--processes", "--log-file", path) as server:
        def goes_to(file, name):
            assert server.get(f"/{name}").status_code == 404
            until(lambda: f"path=/{name}" in file.read_text(), f"a line about {name}")

        goes_to(path, "first")
        path.rename(older)
        goes_to(older, "moved")
        path.mkdir()
        server.signal(signal.SIGHUP)
        until(lambda: "stays in the file that it was in why=" in older.read_text(), "a line about the folder")
        goes_to(older, "kept")
        path.rmdir()
        server.signal(signal.SIGHUP)
        until(lambda: path.exists() and "opened anew" in path.read_text(), "the next file")
        goes_to(path, "anew")
        assert path.stat().st_mode & 0o007 == 0
        path.rename(old)
        path.touch()  # as logrotate's `create`
        goes_to(path, "created")
        for process in family(server):  # they have it, too
            assert os.readlink(f"/proc/{process}/fd/2") in map(str, (older, old, path))
    assert "stopped" in path.read_text() and server.log == []
    assert [file.read_text().count("path=/") for file in (older, old, path)] == [3, 1, 1]

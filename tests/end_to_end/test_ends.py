"""Ends are bounded in every state, signals mean what they should, and a log that nobody reads holds up nothing."""

import os
import re
import resource
import signal
import subprocess
import threading
import time

import pytest

from ark_server import BINARY, PATIENCE, Server, clean_environment, until

STUCK, UNAVAILABLE = 75, 69
SLACK = 1.5  # of a busy machine, beyond what is promised


def get(path=b"/health", *headers):
    return b"\r\n".join([b"GET " + path + b" HTTP/1.1", b"Host: localhost", *headers]) + b"\r\n\r\n"


def busy(server, tokens=60_000):
    """A stream that runs on, with its first event read."""
    connection = server.connect()
    body = b'{"prompt": [1, 2], "max_tokens": %d, "ignore_eos": true, "stream": true}' % tokens
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n" % len(body) + body)
    data = b""
    while b"data: " not in data:
        data += connection.recv(4096)
    return connection


@pytest.mark.parametrize("stopped", ["rank", "nobody"])
@pytest.mark.parametrize("signals", [1, 2])
def test_sigterm_ends_whatever_runs_or_hangs(long_model, stopped, signals):
    timeout = 1 if signals == 1 else 60
    with Server("--model", long_model, "--tp", 2, "--processes", "--kv-memory", "256M", "--shutdown-timeout", timeout) as server:
        with busy(server):
            children = server.children()
            if stopped == "rank":
                os.kill(children[0], signal.SIGSTOP)
            since = time.monotonic()
            for _ in range(signals):
                server.signal()
                time.sleep(0.1)
            status = server.join()
            assert time.monotonic() - since < (timeout if signals == 1 else 0.1) + 1 + SLACK
            assert status == (0 if stopped == "nobody" else status) and status in (0, STUCK, UNAVAILABLE)
            if status == STUCK:
                assert "stuck in" in server.log[-1]
            until(lambda: not any(os.path.exists(f"/proc/{pid}/exe") for pid in children), "the end of the ranks")


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
    process = subprocess.Popen([BINARY, "--model", tiny_model, "--port", "0", "--shutdown-timeout", "1"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
    server = Server.__new__(Server)
    server.process = process
    try:
        line = next(line for line in process.stdout if line.startswith("ready "))
        server.url = re.search(r"http://\S+", line)[0]
        server.host, port = server.url.split("://")[1].rsplit(":", 1)
        server.port = int(port)
        threading.Thread(target=process.stdout.read, daemon=True).start()
        for _ in range(12):
            answers = server.exchange(get(b"/nowhere") * 999 + get(b"/nowhere", b"Connection: close"), "never")
            assert answers.count(b"HTTP/1.1 404 ") == 1000
        since = time.monotonic()
        assert server.get("/health").status_code == 200 and time.monotonic() - since < 1
        dropped = server.metric("ark_log_lines_dropped_total")
        assert dropped > 1000
        log = []
        reader = threading.Thread(target=lambda: log.extend(process.stderr), daemon=True)
        reader.start()  # it flows again, and says what is missing
        until(lambda: any(f"lines={dropped:.0f}" in line for line in log), "the number of lines dropped")
        assert sum("path=/nowhere" in line for line in log) + dropped == 12_000
    finally:
        process.kill()
        process.wait()


def test_sigterm_ends_a_server_whose_log_nobody_reads(tiny_model):
    process = subprocess.Popen([BINARY, "--model", tiny_model, "--port", "0", "--shutdown-timeout", "1"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
    try:
        line = next(line for line in process.stdout if line.startswith("ready "))
        server = Server.__new__(Server)
        server.host, port = re.search(r"http://(\S+)", line)[1].rsplit(":", 1)
        server.port = int(port)
        server.exchange(get(b"/nowhere") * 1999 + get(b"/nowhere", b"Connection: close"), "never")
        since = time.monotonic()
        process.terminate()
        assert process.wait(PATIENCE) in (0, STUCK)
        assert time.monotonic() - since < 2 + SLACK
    finally:
        process.kill()
        process.wait()


def test_a_full_disk_and_closed_descriptors_are_served_on(tiny_model, tmp_path):
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    def closed():
        for descriptor in (0, 1, 2):
            os.close(descriptor)

    for prepare, where in ((limited, tmp_path / "log"), (lambda: None, "/dev/full"), (closed, "/dev/null")):
        port = 0
        with open(where, "w") as log:
            # Standard output may be lost, too: the port is asked of the system.
            process = subprocess.Popen([BINARY, "--model", tiny_model, "--port", "0"], stderr=log, preexec_fn=prepare,
                                       stdout=subprocess.DEVNULL, env=clean_environment())
        try:
            server = Server.__new__(Server)
            port = until(lambda: listening_port(process.pid), "a listening socket")
            server.url, server.host, server.port = f"http://127.0.0.1:{port}", "127.0.0.1", port
            until(lambda: server.get("/health").status_code == 200, "readiness")
            for _ in range(40):
                assert server.get("/nowhere").status_code == 404
            assert server.post("/v1/completions", {"prompt": [1], "max_tokens": 2}).status_code == 200
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()


def listening_port(pid):
    try:
        sockets = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    except OSError:
        return None
    with open("/proc/net/tcp") as table:
        for line in table.readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                return int(fields[1].split(":")[1], 16)
    return None

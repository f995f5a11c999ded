"""A running ark-serve: started on a free port, always stopped, watched from outside."""

import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx2
import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("ARK_BIN", ROOT / "build" / "bin"))
BINARY = BIN / "ark-serve"
FIXTURES = Path(os.environ.get("ARK_FIXTURES", ROOT.parent / "shared" / "fixtures"))
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
SMOLLM2 = CACHE / "ark" / "smollm2-135m-instruct" / "smollm2.onnx"
TINY = FIXTURES / "llama-optimum"  # 512 tokens of vocabulary, a context of 128, a chat template
FULL = bool(os.environ.get("ARK_FULL"))
START_SECONDS = 120
MEBIBYTE = 1 << 20
# How long what must happen may take: far more than it needs, because the machine may be busy with other things.
PATIENCE = 60
# For clients: no certificates, which take long to load, and no proxy of the caller's between here and here.
PLAIN = {"verify": False, "trust_env": False, "timeout": 3 * PATIENCE}


def clean_environment():
    """Without options that the caller's environment would give the server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ARK_SERVE_")}


def skip_without_nvrtc(text):
    """Only where it cannot be had: source that it refuses is a failure."""
    if "nvrtc" in text.lower() and "cannot be loaded" in text and "ARK_REQUIRE_NVRTC" not in os.environ:
        pytest.skip(text)


def children_of(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:  # the thread ended meanwhile
            pass
    return sorted(found)


def running_children_of(pid):
    """Of a server. One that is being made holds its parent up, and has its environment until it runs its own program."""
    return [child for child in children_of(pid) if environment_of(child) not in (None, environment_of(pid))]


def environment_of(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone
        return None


def is_model_process(pid):
    return b"ARK_MODEL_PROCESS=1" in (environment_of(pid) or b"").split(b"\0")


def family(server):
    """The model's process and its ranks, as far as there are any now. Ranks of one that died come to the server to be
    reaped."""
    models = list(filter(is_model_process, server.children()))
    return models + [rank for model in models for rank in running_children_of(model)]


def is_alive(pid):
    """Whether the process still runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def rss_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def until(condition, what, seconds=PATIENCE):
    """The condition's first true value; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.01)
    return value


def takes_at_most(seconds, measure, tries=3):
    """That the seconds (or what else time is in) which `measure` returns are no more. A busy machine may be late once or twice; what waits
    for the wrong thing is late each time."""
    taken = []
    while not taken or taken[-1] > seconds:
        assert len(taken) < tries, f"took {taken} s, more than {seconds} s each time"
        taken.append(measure())


def is_ready(server):
    """Also of one that does not listen yet, or of an HTTP client of it."""
    try:
        return server.get("/health").status_code == 200
    except httpx2.ConnectError:
        return False


def free_port():
    """Free, and none that the system gives to those who ask for any: other tests do so all the time."""
    while True:
        port = random.randrange(10_000, 30_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
            return port
        except OSError:
            pass


BODY = b'{"prompt": [1, 2], "max_tokens": 1}'


def raw_get(*headers, target=b"/health", version=b"1.1"):
    """The bytes of a request."""
    return b"\r\n".join([b"GET " + target + b" HTTP/" + version, b"Host: localhost", *headers]) + b"\r\n\r\n"


def raw_post(body=BODY, *headers, version=b"1.1", length=True):
    lines = [b"POST /v1/completions HTTP/" + version, b"Host: localhost", b"Content-Type: application/json", *headers]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Server:
    """`with Server("--model", path) as server:`; standard output and error are kept in `lines` and `log`, the latter
    where `read_log` is false only once read_log() is called."""

    headers = {}  # of get() and post(): a key, where the server wants one

    def __init__(self, *options, environment=None, wait=True, port=0, prepare=None, read_log=True, stderr=subprocess.PIPE):
        self.host, self.port, self.url = "127.0.0.1", port, f"http://127.0.0.1:{port}"
        command = [BINARY, *map(str, options)] + ([] if port is None else ["--port", str(port)])
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True,
                                        errors="replace", stdin=subprocess.DEVNULL,
                                        env=clean_environment() | (environment or {}), start_new_session=True,
                                        preexec_fn=prepare)
        self.lines, self.log, self.readers = [], [], []
        self._read(self.process.stdout, self.lines)
        if read_log:
            self.read_log()
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.kill()
                raise

    def _read(self, pipe, into):
        def read():
            for line in pipe:
                into.append(line.rstrip("\n"))

        self.readers.append(threading.Thread(target=read, daemon=True))
        self.readers[-1].start()

    def read_log(self):
        self._read(self.process.stderr, self.log)

    def wait_ready(self):
        def ready():
            if self.process.poll() is not None:
                self.join()
                raise AssertionError(f"ark-serve ended with {self.process.returncode}: {self.errors()}")
            texts = (json.loads(line)["message"] if line.startswith("{") else line for line in list(self.lines))
            return next((text for text in texts if text.startswith("ready ")), None)

        line = until(ready, "ready line", START_SECONDS)
        self.url, self.model = re.fullmatch(r"ready +(https?://\S+)  model (.*)", line).groups()
        self.host, port = self.url.split("://")[1].rsplit(":", 1)
        self.port = int(port)

    # -- clients
    def client(self, **options):
        return openai.OpenAI(base_url=f"{self.url}/v1", http_client=httpx2.Client(**PLAIN, follow_redirects=True),
                             **{"api_key": "none", "max_retries": 0, "timeout": PLAIN["timeout"]} | options)

    def http(self, **options):
        return httpx2.Client(base_url=self.url, **PLAIN | options)

    def get(self, path, **options):
        return httpx2.get(self.url + path, **PLAIN | {"headers": self.headers} | options)

    def post(self, path, body, **options):
        return httpx2.post(self.url + path, json=body, **PLAIN | {"headers": self.headers} | options)

    def connect(self, timeout=PATIENCE):
        return socket.create_connection((self.host, self.port), timeout)

    def busy(self, tokens=60_000):
        """A stream that runs on, with its first event read; nobody reads the others, and a close ends it."""
        connection, data = self.connect(), b""
        connection.sendall(raw_post(b'{"prompt": [1, 2], "max_tokens": %d, "ignore_eos": true, "stream": true}' % tokens))
        while b"data: " not in data:
            data += connection.recv(4096)
        return connection

    def exchange(self, data, end="answered", timeout=PATIENCE):
        """Sends bytes and returns all that comes back. Our side ends "at once", when the first answer begins
        ("answered"), or "never": then the server has to close."""
        with self.connect(timeout) as connection:
            try:
                connection.sendall(data)
                if end == "answered":
                    readable([connection], timeout)
                if end != "never":
                    connection.shutdown(socket.SHUT_WR)
            except OSError:  # refused in the middle: the answer is there all the same
                pass
            return receive_all(connection, timeout)

    def metric(self, name, **labels):
        """The sum of all series of `name` with these labels."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if match and match[1] == name and all(f'{k}="{v}"' in (match[2] or "") for k, v in labels.items()):
                total += float(match[3])
        return total

    # -- the process
    @property
    def pid(self):
        return self.process.pid

    def children(self):
        return running_children_of(self.pid)

    def errors(self):
        return "\n".join(self.log)

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def join(self, seconds=PATIENCE):
        """The exit status, after all output has been read."""
        status = self.process.wait(seconds)
        for reader in self.readers:
            reader.join(PATIENCE)
        return status

    def stop(self):
        if self.process.poll() is None:
            self.signal()
        return self.join()

    def kill(self):
        """Ends what is left of the process group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if self.process.poll() is None:
                status = self.stop()
                assert kind or status == 0, f"exit status {status}: {self.errors()}"
        finally:
            self.kill()


class Stream(threading.Thread):
    """One client: per choice its tokens and log-probabilities, and when they came. `reads`: when it begins to read, an
    event; until then it costs this process nothing, which can watch the server meanwhile."""

    def __init__(self, server, body, reads=None):
        super().__init__()
        self.server, self.body, self.reads = server, body, reads
        self.tokens, self.logprobs, self.times, self.error = {}, {}, [], None
        self.start()

    def run(self):
        try:
            with self.server.http() as http, http.stream("POST", "/v1/completions", json=self.body) as answer:
                assert answer.status_code == 200, answer.read()
                if self.reads:
                    self.reads.wait()
                for line in answer.iter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    event = json.loads(line[6:])
                    if "error" in event:
                        self.error = event["error"]["message"]
                        return
                    self.times.append(time.monotonic())
                    for choice in event["choices"]:
                        i = choice["index"]
                        self.tokens.setdefault(i, []).extend(choice.get("token_ids") or [])
                        self.logprobs.setdefault(i, []).extend((choice.get("logprobs") or {}).get("token_logprobs", []))
        except Exception as error:
            self.error = repr(error)

    def result(self):
        self.join(2 * PATIENCE)
        assert not self.is_alive() and self.error is None, self.error
        assert [len(self.tokens[i]) for i in range(self.body["n"])] == [self.body["max_tokens"]] * self.body["n"]
        return self.tokens, self.logprobs

    def gap(self):
        """The longest pause between two events, in seconds."""
        return max(b - a for a, b in zip(self.times, self.times[1:]))

    @property
    def count(self):
        return sum(map(len, self.tokens.values()))


def readable(connections, seconds=0.0):
    """Those on which something has come, after `seconds` at the latest; also of descriptors that select() cannot take."""
    poller = select.poll()
    by_number = {connection.fileno(): connection for connection in connections}
    for number in by_number:
        poller.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poller.poll(max(0, seconds) * 1000)]


def receive_all(connection, seconds=PATIENCE):
    """Until the other side ends or resets."""
    data, deadline = b"", time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not readable([connection], deadline - time.monotonic()):
            break
        try:
            block = connection.recv(65536)
        except OSError:
            break
        if not block:
            return data
        data += block
    else:
        raise AssertionError(f"the connection stays open; so far {data[:200]!r}")
    return data


def ark(tool, *arguments, code=0, **environment):
    """What became of a tool, which must end with `code`."""
    done = subprocess.run([BIN / tool, *map(str, arguments)], capture_output=True, text=True, timeout=10 * PATIENCE,
                          env=os.environ | environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def run_to_end(*options, environment=None, seconds=2 * PATIENCE):
    """ark-serve with options that make it end by itself."""
    return subprocess.run([BINARY, *map(str, options)], capture_output=True, text=True, timeout=seconds,
                          stdin=subprocess.DEVNULL, env=clean_environment() | (environment or {}))

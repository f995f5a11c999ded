"""--supervise of ranks that a launcher has started: whatever dies or stops, and whoever brings it back (the rank's own keeper,
or a restarter from outside), the group meets again and open streams go on with exactly the tokens they would have had."""

import contextlib
import os
import random
import re
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from ark_server import FULL, PATIENCE, TINY, Stream, children_of, free_port, is_alive, is_model_process, is_ready, until
from test_cluster import MpiServer, Rank, become_nobody, ends_all, group, mpi_rank, needs_mpi, write_key
from test_faults import LIBRARY
from test_rank_processes import tokens_of
from test_supervise import requests, run_all, serves_again, undisturbed  # noqa: F401 (a fixture)

USAGE, UNAVAILABLE = 64, 69
# Of each group below: ARK_FAULTS=1000 for a long run (-s shows what became of them).
FAULTS = int(os.environ.get("ARK_FAULTS", 60 if FULL else 8))


class Kept:
    """A rank and what a StatefulSet, systemd or a shell loop does: it is started again whenever it ends badly."""

    def __init__(self, start):
        self.start, self.rank, self.starts, self.stopped = start, start(), 1, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopped.is_set():
            if self.rank.process.poll():
                self.rank.kill()
                self.rank, self.starts = self.start(), self.starts + 1
            time.sleep(0.05)

    def processes(self):
        """The keeper and the rank that it keeps."""
        return [self.rank.pid, *self.rank.children()]

    def kill(self):
        self.stopped.set()
        self.thread.join()
        self.rank.kill()


class Group:
    """Rank 0 with its server, and the others, kept."""

    def __init__(self, model, size, *options, transport="socket", users=1, faults=None):
        """`faults`: a folder with one for each rank but the first, for what it sends (tests/faults)."""
        self.port, options = free_port(), ("--supervise", "--max-restarts", 1000, *options)

        def start(rank):
            more = {"LD_PRELOAD": str(LIBRARY), "ARK_FAULT_FOLDER": str(faults / str(rank))} if faults and rank else {}
            return Rank(model, *options, environment=group(rank, self.port, size=size, ARK_TRANSPORT=transport, **more),
                        prepare=become_nobody if users == 2 and rank >= size // 2 else None)

        self.server = start(0)
        self.others = [Kept(lambda rank=rank: start(rank)) for rank in range(1, size)]
        try:
            self.server.wait_ready()
        except BaseException:
            self.kill()
            raise

    def keeper(self, rank):
        return self.others[rank - 1].rank.pid

    def processes(self, rank):
        """Of one rank, but not the server."""
        return self.others[rank - 1].processes() if rank else list(filter(is_model_process, self.server.children()))

    def victims(self):
        """Everything but the server: rank 0, the other ranks and their keepers."""
        return list(filter(is_model_process, self.server.children())) + [p for other in self.others for p in other.processes()]

    def kill(self):
        ends_all(self.server, *self.others)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind:
                for rank, one in enumerate([self.server, *(other.rank for other in self.others)]):
                    print(f"rank {rank}, at the end:", *one.log[-12:], sep="\n  ")
                    for pid in [one.pid, *one.children()]:
                        print(f"  {pid}: {(Path('/proc') / str(pid) / 'stat').read_text().split(')')[1][:2]}")
            if not kind:
                left = self.victims()
                assert self.server.stop() == 0, self.server.errors()
                for other in self.others:
                    assert other.rank.join() == 0, other.rank.errors()
                assert not any(map(is_alive, left))
        finally:
            self.kill()


@pytest.mark.parametrize("victim", ["rank 0", "rank 1", "keeper of rank 1"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_streams_go_on_with_the_same_tokens(long_model, undisturbed, victim, how):  # noqa: F811
    bodies, expected = undisturbed
    with Group(long_model, 2, "--kv-memory", "256M") as ranks:
        rank0, keeper, rank1 = ranks.victims()
        pid = {"rank 0": rank0, "rank 1": rank1, "keeper of rank 1": keeper}[victim]
        reads = threading.Event()
        streams = [Stream(ranks.server, body, reads) for body in bodies]
        until(lambda: ranks.server.metric("ark_requests_running") > 4, "steps of several")
        since = time.monotonic()
        os.kill(pid, how)
        if (victim, how) == ("keeper of rank 1", signal.SIGSTOP):  # it has nothing to do
            reads.set()
            assert [stream.result() for stream in streams] == expected
            assert ranks.server.metric("ark_restarts_total") == 0
            os.kill(pid, signal.SIGCONT)
            return
        until(lambda: ranks.server.get("/health").status_code == 503 or "serves again" in ranks.server.errors(), "503")
        print(f"noticed after {time.monotonic() - since:.2f} s")
        assert time.monotonic() - since < 5
        waiting = Stream(ranks.server, next(requests(1, 3)))
        reads.set()
        assert [stream.result() for stream in streams] == expected
        waiting.result()
        assert ranks.server.metric("ark_restarts_total") == 1
        serves_again(ranks.server)
        if victim != "rank 0":
            assert "rank 1" in next(line for line in ranks.server.log if "begins anew" in line)
        assert not is_alive(rank0) and not is_alive(rank1), "nothing of the dead group stays"
        assert ranks.others[0].starts == 1 + (victim == "keeper of rank 1")
        print(f"gap {max(stream.gap() for stream in streams):.2f} s")


class Faults:
    """Kills, stops, cuts, delays and changed bits, one after the other, at any moment: as ranks meet, load and serve."""

    def __init__(self, ranks, folder):
        self.ranks, self.folder, self.kinds, self.noticed, self.formed = ranks, folder, Counter(), [], []

    def losses(self):
        return [line for line in list(self.ranks.server.log) if "begins anew" in line]

    def one(self, number):
        """Five alone, as the group serves: then it is known whom they must name, and what they take. Then three as they come."""
        if number % 8 == 0:
            self.settle()
        time.sleep(random.uniform(0, 1))
        kind = random.choice(["kill", "kill", "stop", *(["send", "corrupt", "delay"] if self.folder else [])])
        self.kinds[kind] += 1
        rank, before, since = random.randrange(len(self.ranks.others) + 1), len(self.losses()), time.monotonic()
        if kind in ("send", "corrupt", "delay"):
            rank = max(rank, 1)
            self.go_on()
            file = self.folder / str(rank) / kind
            file.touch()
            until(lambda: not file.exists(), f"something that rank {rank} sends")
            since = time.monotonic()
        elif number % 8 < 5:
            # A keeper that is stopped has nothing to do.
            victims = self.ranks.processes(rank)[kind == "stop" and rank > 0:]
            send(random.choice(victims), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        else:
            for pid in random.sample(self.ranks.victims(), 1 + (number % 4 == 3)):
                send(pid, random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))
        if number % 8 < 5 and kind != "delay":
            self.await_loss(kind, rank, before, since)

    def await_loss(self, kind, rank, before, since):
        while len(self.losses()) == before:
            assert time.monotonic() - since < PATIENCE, f"{kind} of rank {rank} was not noticed"
            time.sleep(0.01)
        self.noticed.append(time.monotonic() - since)
        line, names = self.losses()[before], rf"(rank|peer) {rank}\b" if rank else "rank 0|peer 0|model's process"
        assert re.search(names, line), f"{kind} of rank {rank}: {line}"
        serves_again(self.ranks.server)
        self.formed.append(time.monotonic() - since)
        steps = lambda: self.ranks.server.metric("ark_steps_total")  # noqa: E731
        before = steps()
        until(lambda: self.ranks.server.get("/health").status_code != 200 or steps() > before + 30, "steps")

    def settle(self):
        """What was stopped and not yet noticed is; a stopped keeper would start nothing."""
        time.sleep(3 if self.kinds else 0)
        self.go_on()
        serves_again(self.ranks.server)

    def go_on(self):
        for other in self.ranks.others:
            send(other.rank.pid, signal.SIGCONT)

    def report(self):
        named = [line for line in self.losses() if re.search(r"rank \d|model's process", line)]
        assert named == self.losses(), "every loss is named"

        def seconds(values):
            ordered = sorted(values) or [0]
            return " / ".join(f"{ordered[int(q * (len(ordered) - 1))]:.2f}" for q in (0.5, 0.99, 1))

        return (f"{self.kinds.total()} faults {dict(self.kinds)}; {len(named)} losses, all named; seconds until noticed "
                f"{seconds(self.noticed)}, until all serve again {seconds(self.formed)} (median / p99 / most of {len(self.formed)})")


@pytest.mark.parametrize("size, transport, users", [
    (2, "socket", 1),
    pytest.param(4, "shm", 1, marks=pytest.mark.skipif(not FULL and os.geteuid() == 0, reason="the next has shm, too (ARK_FULL=1)")),
    pytest.param(4, "shm+socket", 2, marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root: two users for two machines"))])
def test_faults_at_any_moment_change_no_token_and_are_named(long_model, undisturbed, tmp_path, size, transport, users):  # noqa: F811
    """Meeting, loading and serving; several in a row, now and then two at once."""
    folder = None
    if transport == "socket" and LIBRARY.exists():
        folder = tmp_path
        for rank in range(1, size):
            (folder / str(rank)).mkdir()
    bodies, expected = (some[1:] for some in undisturbed)
    random.seed(os.environ.get("ARK_SEED", size))
    with (readable(long_model) if users == 2 else contextlib.nullcontext(long_model)) as model, \
            Group(model, size, "--kv-memory", "128M", transport=transport, users=users, faults=folder) as ranks:
        results, clients, done, faults = [], [], threading.Event(), Faults(ranks, folder)

        def client(i):
            while not done.is_set():
                try:
                    results.append((i, Stream(ranks.server, bodies[i]).result()))
                except AssertionError as error:
                    results.append((i, error))

        for i in range(len(bodies)):
            clients.append(threading.Thread(target=client, args=(i,)))
            clients[-1].start()
        try:
            for number in range(FAULTS):
                faults.one(number)
            faults.settle()
        finally:
            done.set()
        for thread in clients:
            thread.join(3 * PATIENCE)
            assert not thread.is_alive()
        # Three losses in a row, before it came any further: by name, as somebody's fault.
        refused = [result for _, result in results if "which is not tried again" in str(result)]
        right = sum(result == expected[i] for i, result in results)
        assert not [(i, result) for i, result in results if result != expected[i] and result not in refused]
        assert right >= len(bodies)
        serves_again(ranks.server)
        assert ranks.server.metric("ark_kv_pages_held") == 0
        assert len(ranks.victims()) == 2 * size - 1, "one of each"
        print(f"{transport}, {size} ranks: {faults.report()}; {right} answers with the right tokens, {len(refused)} given up by name")


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has ended, and another is being started
        pass


@contextlib.contextmanager
def readable(model):
    """A copy of its folder that other users may read. pytest's own folders are closed to them again by each pytest that starts."""
    with tempfile.TemporaryDirectory(prefix="ark-readable-") as folder:
        os.chmod(folder, 0o755)
        for path in model.parent.iterdir():
            shutil.copy(path, folder)
            os.chmod(Path(folder) / path.name, 0o644)
        yield Path(folder) / model.name


def test_rank_0_may_be_brought_back_too(tiny, tiny_model):
    """Its streams end with it; the others wait for the next, which serves."""
    with Group(tiny_model, 2) as ranks:
        old = ranks.victims()
        ranks.server.kill()
        until(lambda: not is_alive(old[0]) and not is_alive(old[2]), "the end of both ranks")
        ranks.server = Rank(tiny_model, "--supervise", environment=group(0, ranks.port, ARK_TRANSPORT="socket"))
        ranks.server.wait_ready()
        assert tokens_of(ranks.server) == tokens_of(tiny)
        assert ranks.others[0].starts == 1


def test_what_no_new_start_mends_ends_the_keeper(tiny_model, tmp_path):
    port, key = free_port(), write_key(tmp_path / "cluster.key", "a key that both ranks have")
    zero = Rank(tiny_model, "--supervise", "--cluster-key-file", key, environment=group(0, port))
    try:
        one = Rank(tiny_model, "--supervise", environment=group(1, port))
        one.ends(USAGE, "it has no cluster key, unlike rank 0")
        lone = Rank(tiny_model, "--supervise", "--cluster-key-file", key, environment=group(1, free_port()))
        [worker] = until(lone.children, "its rank")
        os.kill(worker, signal.SIGKILL)  # as it waits
        until(lambda: "was ended by signal 9; it begins anew" in lone.errors(), "the next")
        lone.signal(signal.SIGTERM)
        assert lone.join() == 128 + signal.SIGTERM
        until(lambda: not any(map(is_alive, [worker, *children_of(lone.pid)])), "the end of its rank")
    finally:
        zero.kill()


def test_who_dies_as_the_others_are_awaited_has_its_place_again(tiny, tiny_model):
    """Rank 0 takes another process for the one that it had welcomed."""
    port = free_port()
    start = lambda rank: Rank(tiny_model, environment=group(rank, port, size=3))  # noqa: E731
    zero, early = start(0), start(1)
    try:
        until(lambda: any("waiting for rank 2 at" in line for line in zero.log), "the meeting of two")
        early.kill()
        ranks = [start(1), start(2)]
        zero.wait_ready()
        assert any("rank 1 has gone before all were here" in line for line in zero.log)
        assert tokens_of(zero) == tokens_of(tiny)
        assert zero.stop() == 0 and [rank.join() for rank in ranks] == [0, 0]
    finally:
        ends_all(zero, early)


@needs_mpi
def test_mpirun_keeps_ranks_that_die(tiny, tiny_model):
    """MPI sees the keepers alone, which do not die."""
    server = MpiServer("--model", TINY / "model.onnx", "--supervise", ranks=3)
    try:
        server.wait_ready()
        until(lambda: len(server.children()) == 3, "three keepers")
        [two] = [pid for pid in server.children() if mpi_rank(pid) == 2]
        assert tokens_of(server) == tokens_of(tiny)
        for _ in range(2):
            [rank] = until(lambda: children_of(two), "the rank")
            os.kill(rank, signal.SIGKILL)
            until(lambda: not is_ready(server), "the loss")
            until(lambda: is_ready(server), "the next group")
            assert tokens_of(server) == tokens_of(tiny)
        assert server.metric("ark_restarts_total") == 2
        server.signal()
        server.join()
    finally:
        server.kill()

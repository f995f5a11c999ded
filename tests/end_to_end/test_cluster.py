"""Ranks that a launcher has started: by hand with a key, and by mpirun. docs/cluster.md quotes the lines that are looked for
here and in test_links.py."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess

import pytest

from ark_server import BIN, BINARY, PATIENCE, Server, children_of, clean_environment, free_port, until
from test_faults import LIBRARY
from test_rank_processes import TINY, other_weights, tokens_of

USAGE, UNAVAILABLE = 64, 69
ucx = pytest.param("ucx", marks=pytest.mark.skipif(not (BIN / "libark_ucx.so").exists(), reason="libucx was not there to build with"))


@pytest.fixture
def key(tmp_path):
    return write_key(tmp_path / "cluster.key", "a key that both ranks have")


def write_key(path, text):
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


def group(rank, port, size=2, address="127.0.0.1", **more):
    """The variables of a StatefulSet or LeaderWorkerSet."""
    return {"ARK_RANK": str(rank), "ARK_WORLD_SIZE": str(size), "ARK_MASTER_ADDR": address, "ARK_MASTER_PORT": str(port)} | more


class Rank(Server):
    """One rank by hand; those but the first say nothing on standard output."""

    def __init__(self, model, *options, environment, **how):
        super().__init__("--model", model, *options, environment=environment, port=0 if environment["ARK_RANK"] == "0" else None,
                         **{"wait": False} | how)

    def ends(self, status, *words):
        assert self.join() == status, self.errors()
        assert all(word in self.log[-1] for word in words) and self.log[-1].startswith("ark-serve: error: "), self.errors()


def ends_all(*ranks):
    for rank in ranks:
        rank.kill()


@pytest.mark.parametrize("transport", ["socket", ucx])
def test_the_same_command_on_every_machine_gives_the_tokens_of_one(tiny, tiny_model, key, transport):
    """Over TCP, with the key; the order in which they come does not matter; they leave in good order."""
    port = free_port()
    options = ("--cluster-key-file", key)
    one = Rank(tiny_model, *options, environment=group(1, port, ARK_TRANSPORT=transport))
    zero = Rank(tiny_model, *options, environment=group(0, port, ARK_TRANSPORT=transport))
    try:
        zero.wait_ready()
        assert any(line.split() == ["ranks", "0,", "1", "on", socket.gethostname() + ",", "by", transport] for line in zero.lines)
        assert zero.children() == [], "no rank of its own, and no supervisor"
        assert tokens_of(zero) == tokens_of(tiny)
        one.signal(signal.SIGTERM)  # pods of a group are told at once: rank 0 drains, the others wait for it
        assert tokens_of(zero) == tokens_of(tiny)
        assert zero.stop() == 0
        assert one.join() == 0
        assert any("rank 1 of 2 has met: 0, 1 on" in line for line in one.log)
    finally:
        ends_all(zero, one)


@pytest.mark.skipif(not LIBRARY.exists(), reason=f"no {LIBRARY}: it is built with the tests")
def test_a_bit_that_is_changed_on_its_way_is_named(long_model, tmp_path):
    """As ranks meet, and as they serve."""
    port, changes = free_port(), tmp_path / "corrupt"
    preload = {"LD_PRELOAD": str(LIBRARY), "ARK_FAULT_FOLDER": str(tmp_path)}

    def start(rank, **more):
        return Rank(long_model, "--kv-memory", "256M", environment=group(rank, port, ARK_TRANSPORT="socket", **more))

    zero, ones = start(0), []
    try:
        changes.touch()
        ones.append(start(1, **preload))
        ones[0].ends(UNAVAILABLE, "what was damaged on its way")
        assert "what is damaged on its way" in zero.errors()
        ones.append(start(1, **preload))
        zero.wait_ready()
        with zero.busy():
            changes.touch()
            zero.ends(UNAVAILABLE, "damaged on its way: its sum", "1")
            assert ones[1].join() == UNAVAILABLE
    finally:
        ends_all(zero, *ones)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: two ranks run as another user, who may not map memory of the others")
def test_ranks_that_share_a_machine_map_its_memory_and_reach_the_others_by_tcp(tiny):
    port = free_port()
    model = TINY / "model.onnx"
    ranks = [Rank(model, environment=group(rank, port, size=4), prepare=become_nobody if rank > 1 else None) for rank in range(4)]
    try:
        ranks[0].wait_ready()
        assert any(line.startswith("ranks ") and line.endswith(", by shm+socket") for line in ranks[0].lines), ranks[0].lines
        assert tokens_of(ranks[0]) == tokens_of(tiny)
        os.kill(ranks[3].pid, signal.SIGKILL)
        for rank in ranks[:3]:
            rank.ends(UNAVAILABLE, "rank 3 is dead: its connection is closed")
    finally:
        ends_all(*ranks)


CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000


def enter_container(pid):
    """In the child that becomes a rank: what it starts is in the namespace of processes, so it waits for the rank as its
    parent."""
    with open(f"/proc/{pid}/ns/mnt") as mounts, open(f"/proc/{pid}/ns/pid") as processes:
        for file, kind in ((mounts, CLONE_NEWNS), (processes, CLONE_NEWPID)):
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), kind):
                raise OSError(ctypes.get_errno(), "setns")
    if child := os.fork():
        os.closerange(0, 256)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root: ranks in a namespace of processes of their own")
def test_sums_are_made_on_each_machine_first(tiny, tiny_model):
    """Two namespaces of processes are two machines: other tokens there are none, but fewer bytes."""
    sent = []
    holder = subprocess.Popen(["unshare", "--pid", "--mount-proc", "--fork", "--kill-child", "sleep", "1000"])
    try:
        [inside] = until(lambda: children_of(holder.pid), "the namespace")
        for machines in (1, 2):
            port = free_port()
            far = lambda: enter_container(inside)  # noqa: E731
            ranks = [Rank(tiny_model, environment=group(rank, port, size=4), prepare=far if rank >= 2 and machines == 2 else None)
                     for rank in range(4)]
            try:
                ranks[0].wait_ready()
                assert tokens_of(ranks[0]) == tokens_of(tiny)
                sent.append(ranks[0].metric("ark_exchanged_bytes_total"))
                [line] = [line for line in ranks[0].lines if line.startswith("ranks ")]
                assert line.endswith(", by shm+socket" if machines == 2 else ", by shm") and (";" in line) == (machines == 2), line
                assert ranks[0].stop() == 0 and [rank.join() for rank in ranks[1:]] == [0, 0, 0]
            finally:
                ends_all(*ranks)
    finally:
        holder.kill()
        holder.wait()
    assert 0 < sent[1] < sent[0], "one message to its own machine and one to the other, not three"


def become_nobody():
    os.setuid(65534)


def test_who_has_no_place_here_is_refused_in_a_line_and_disturbs_nobody(tiny_model, key, tmp_path):
    port = free_port()
    zero = Rank(tiny_model, "--cluster-key-file", key, "--check", environment=group(0, port))
    other = write_key(tmp_path / "other.key", "a key that one rank has alone")
    try:
        until(lambda: is_open(port), "rank 0's port")
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        Rank(tiny_model, "--cluster-key-file", other, environment=group(1, port)).ends(
            USAGE, "rank 1 is refused by rank 0 at 127.0.0.1:", "it has another cluster key than rank 0")
        Rank(tiny_model, environment=group(1, port)).ends(USAGE, "it has no cluster key, unlike rank 0")
        Rank(tiny_model, "--cluster-key-file", key, environment=group(1, port, size=3)).ends(
            USAGE, "rank 0 has ARK_WORLD_SIZE=2, this rank has 3")
        one = Rank(tiny_model, "--cluster-key-file", key, environment=group(1, port))
        assert zero.join() == 0 and one.join() == 0
        told = [line.split(" warning ")[1] for line in zero.log if " warning " in line]
        assert all(line.startswith("rank 0 refuses a connection from 127.0.0.1:") for line in told)
        for why in ("it sends what no rank does", "it has another cluster key", "it has no cluster key",
                    "rank 0 has ARK_WORLD_SIZE=2, this rank has 3"):
            assert sum(why in line for line in told) == 1, zero.errors()
        assert len(told) == 4
    finally:
        zero.kill()


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_without_a_key_nobody_listens_to_other_machines(tiny_model, tmp_path):
    lone = Rank(tiny_model, environment=group(0, 29500, address="192.0.2.1"))
    lone.ends(USAGE, "the meeting place 192.0.2.1:29500 is beyond this machine", "--cluster-key-file FILE")
    open_key = write_key(tmp_path / "open.key", "a key that everybody may read")
    open_key.chmod(0o644)
    Rank(tiny_model, "--cluster-key-file", open_key, environment=group(0, 29500)).ends(USAGE, "everybody on this machine may use it")
    half = group(0, 29500)
    del half["ARK_WORLD_SIZE"]
    Rank(tiny_model, environment=half).ends(USAGE, "ARK_WORLD_SIZE is not set")


def test_options_that_do_not_fit_the_group_are_named(tiny_model):
    Rank(tiny_model, "--tp", 3, environment=group(0, free_port())).ends(USAGE, "--tp 3, but 2 ranks have been started")


def test_another_model_or_one_that_is_missing_is_told_on_both_sides(tiny_model, tmp_path):
    import onnx
    (tmp_path / "other").mkdir()
    onnx.save(other_weights(TINY / "model.onnx"), tmp_path / "other" / "model.onnx")
    port = free_port()
    zero = Rank(tiny_model, environment=group(0, port))
    one = Rank(tmp_path / "other" / "model.onnx", environment=group(1, port))
    for rank in (zero, one):
        rank.ends(UNAVAILABLE, "rank 1 has loaded weights other than rank 0")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    port = free_port()
    zero, one = Rank(broken, environment=group(0, port)), Rank(tiny_model, environment=group(1, port))
    one.ends(UNAVAILABLE, "rank 1: rank 0 cannot load the model: ")
    assert zero.join() == 65, zero.errors()


@pytest.mark.parametrize("transport", ["shm", ucx])
def test_a_rank_that_dies_is_named_by_the_others(tiny_model, transport):
    port = free_port()
    ranks = [Rank(tiny_model, environment=group(rank, port, size=3, ARK_TRANSPORT=transport)) for rank in range(3)]
    try:
        ranks[0].wait_ready()
        os.kill(ranks[2].pid, signal.SIGKILL)
        for rank in ranks[:2]:
            rank.ends(UNAVAILABLE, "rank 2 is dead: its connection is closed: the process has ended or given up")
    finally:
        ends_all(*ranks)


# -- mpirun

MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]
needs_mpi = pytest.mark.skipif(not shutil.which("mpirun") or not (BIN / "libark_mpi.so").exists(),
                               reason="no mpirun, or built without MPI")


class MpiServer(Server):
    def __init__(self, *options, ranks=2):
        self.lines, self.log, self.readers = [], [], []
        command = [*MPIRUN, "-n", str(ranks), BINARY, *map(str, options), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                        stdin=subprocess.DEVNULL, env=clean_environment(), start_new_session=True)
        self._read(self.process.stdout, self.lines)
        self.read_log()


@needs_mpi
def test_mpirun_starts_ranks_and_names_the_dead(tiny, tiny_model):
    server = MpiServer("--model", tiny_model, ranks=3)
    try:
        server.wait_ready()
        assert tokens_of(server) == tokens_of(tiny)
        until(lambda: len(server.children()) == 3, "three ranks")
        [victim] = [pid for pid in server.children() if mpi_rank(pid) == 2]
        os.kill(victim, signal.SIGKILL)
        assert server.join() != 0
        assert any("ark-serve: error: " in line and "rank 2 is dead" in line for line in server.log), server.errors()
    finally:
        server.kill()


def mpi_rank(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return int(dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry)[b"OMPI_COMM_WORLD_RANK"])


@needs_mpi
def test_mpirun_ends_when_its_ranks_have(tiny_model):
    run = subprocess.run([*MPIRUN, "-n", "2", BINARY, "--model", tiny_model, "--check"], capture_output=True, text=True,
                         timeout=2 * PATIENCE, env=clean_environment())
    assert run.returncode == 0 and "checked " in run.stdout, run.stderr
    # The option of one rank alone is not enough, and MPI is not asked where it started nobody else.
    run = subprocess.run([*MPIRUN, "-n", "1", BINARY, "--model", tiny_model, "--check"], capture_output=True, text=True,
                         timeout=2 * PATIENCE, env=clean_environment() | {"ARK_LIBMPI": "/nowhere"})
    assert run.returncode == 0 and "checked " in run.stdout and "\nmeet " not in run.stdout, run.stderr


def test_without_its_library_mpi_is_named():
    run = subprocess.run([BINARY, "--model", TINY, "--check"], capture_output=True, text=True, timeout=PATIENCE,
                         env=clean_environment() | {"OMPI_COMM_WORLD_SIZE": "2", "ARK_LIBMPI": "/nowhere/libark_mpi.so"})
    assert run.returncode == UNAVAILABLE
    assert "libark_mpi.so cannot be loaded" in run.stderr and "ARK_BOOTSTRAP" in run.stderr

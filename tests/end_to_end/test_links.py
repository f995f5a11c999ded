"""Ranks in network namespaces, joined by real links, as good as machines for all that TCP sees: slow and lossy links, and cut
ones, to rank 0 and between two others."""

import contextlib
import ctypes
import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ark_server import free_port, until
from test_cluster import UNAVAILABLE, Rank, ends_all, group, key  # noqa: F401 (a fixture)
from test_rank_processes import tokens_of

CUT = 1, 2  # seconds after which a machine that confirms nothing is named, and dead (docs/cluster.md)
CUT_BESIDE = 2.5  # the same of a link that is not to rank 0
SLACK = 1.5  # of a busy machine
CLONE_NEWNET = 0x40000000


class Link:
    """A namespace joined to ours by a pair of virtual Ethernet ends."""

    def __init__(self):
        number = random.randrange(1, 60_000)
        self.name, self.end = f"ark{number}", f"arkv{number}"
        net = f"198.{18 + number % 2}.{number // 256 % 256}"
        self.here, self.there = f"{net}.1", f"{net}.2"
        self.run("ip", "netns", "add", self.name)
        try:
            self.run("ip", "link", "add", self.end, "type", "veth", "peer", "name", "eth0", "netns", self.name)
            self.run("ip", "addr", "add", f"{self.here}/30", "dev", self.end)
            self.run("ip", "link", "set", self.end, "up")
            for command in (f"addr add {self.there}/30 dev eth0", "link set eth0 up", "link set lo up"):
                self.run("ip", "-n", self.name, *command.split())
        except BaseException:
            self.close()
            raise

    def run(self, *command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")

    def enter(self):
        """In the child that becomes a rank."""
        with open(f"/run/netns/{self.name}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def cut(self):
        self.run("ip", "link", "set", self.end, "down")

    def close(self):
        subprocess.run(["ip", "link", "del", self.end], capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)


@contextlib.contextmanager
def a_link():
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root and iproute2")
    try:
        made = Link()
    except OSError as error:
        pytest.skip(f"no network namespace here: {error}")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def link():
    with a_link() as made:
        yield made


@pytest.fixture
def two_links():
    """Who is at their far ends speak by way of this system, until the returned function is called."""
    forwarding = Path("/proc/sys/net/ipv4/ip_forward")
    with a_link() as first, a_link() as second:
        ways = [(first.there, second.there), (second.there, first.there)]
        before = forwarding.read_text()
        try:
            forwarding.write_text("1")
            for each in first, second:
                each.run("ip", "-n", each.name, "route", "add", "default", "via", each.here)
            yield (first, second), lambda: [first.run("ip", "rule", "add", "from", a, "to", b, "blackhole") for a, b in ways]
        except OSError as error:
            pytest.skip(f"no forwarding here: {error}")
        finally:
            for a, b in ways:
                subprocess.run(["ip", "rule", "del", "from", a, "to", b], capture_output=True)
            forwarding.write_text(before)


def over(link, model, key, *options):
    """Ranks 0 here and 1 over there, and their server. Shared memory would still join them, as the processes are of one
    machine: socket is asked for."""
    port = free_port()
    ranks = [Rank(model, "--cluster-key-file", key, *options, prepare=link.enter if rank else None,
                  environment=group(rank, port, address=link.here, ARK_TRANSPORT="socket")) for rank in (1, 0)]
    try:
        ranks[1].wait_ready()
        return ranks[1], ranks[0]
    except BaseException:
        ends_all(*ranks)
        raise


def test_two_machines_serve_as_one(link, key, tiny, tiny_model):
    """Each finds its address by itself. A slow and lossy link only takes longer."""
    zero, one = over(link, tiny_model, key)
    try:
        wires = [line.split()[3:5] for line in subprocess.run(["ss", "-tnH"], capture_output=True, text=True).stdout.splitlines()
                 if link.there in line]
        assert len(wires) == 4, f"life signs, gathering, decode and bulk go over the link: {wires}"
        assert tokens_of(zero) == tokens_of(tiny)
        try:
            link.run("tc", "qdisc", "add", "dev", link.end, "root", "netem", "delay", "1ms", "1ms", "loss", "1%", "reorder", "10%")
        except OSError:
            pass  # a kernel without netem
        assert tokens_of(zero) == tokens_of(tiny)
        assert zero.stop() == 0 and one.join() == 0
    finally:
        ends_all(zero, one)


def test_a_cut_link_is_named_on_both_sides(link, key, long_model):
    zero, one = over(link, long_model, key, "--kv-memory", "256M")
    try:
        with zero.busy():
            link.cut()
            since = time.monotonic()
            until(lambda: "rank 1's machine confirms nothing" in str(zero.get("/health").json()), "the machine's name")
            assert time.monotonic() - since < CUT[0] + SLACK
            for rank, peer, by_watch in ((zero, 1, "rank 1 is dead: its machine confirms nothing for 1750 ms"),
                                         (one, 0, "rank 0 is dead: its machine confirms nothing for 1750 ms")):
                rank.ends(UNAVAILABLE, "confirms nothing", "step ")
                # The watch comes first, unless the machine holds it up: then it is the wire, a quarter of a second later.
                by_wire = f"peer {peer}: milliseconds in which its system confirms nothing: the wire is cut"
                assert by_watch in rank.log[-1] or by_wire in rank.log[-1], rank.errors()
            assert time.monotonic() - since < CUT[1] + 2 * SLACK
    finally:
        ends_all(zero, one)


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_cut_between_two_others_is_named(two_links, key, tiny, tiny_model, long_model, is_busy):
    """Neither has lost rank 0."""
    links, cut = two_links
    port = free_port()
    ranks = [Rank(long_model if is_busy else tiny_model, "--kv-memory", "256M", "--cluster-key-file", key,
                  prepare=links[rank - 1].enter if rank else None,
                  environment=group(rank, port, size=3, address=links[0].here, ARK_TRANSPORT="socket")) for rank in range(3)]
    try:
        ranks[0].wait_ready()
        if not is_busy:
            assert tokens_of(ranks[0]) == tokens_of(tiny)
        with ranks[0].busy() if is_busy else contextlib.nullcontext():
            cut()
            since = time.monotonic()
            ranks[0].ends(UNAVAILABLE, "the wire is cut")
            assert time.monotonic() - since < CUT_BESIDE + 2 * SLACK
            assert re.search("rank [12], peer [12]: milliseconds in which its system confirms nothing: the wire is cut", ranks[0].log[-1]), ranks[0].errors()
            assert [rank.join() for rank in ranks[1:]] == [UNAVAILABLE] * 2
    finally:
        ends_all(*ranks)

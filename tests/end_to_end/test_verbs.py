"""Transports verbs and verbs-ud over rdma_rxe: a machine of scripts/rdma-vm.sh, started once, runs verbs_guest.sh. Its
switch loses packets, and then a link."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from ark_server import BIN, FIXTURES, ROOT, run_to_end

NO_MACHINE = 125
UNAVAILABLE = 69
FULL = "ARK_FULL" in os.environ
MODEL = FIXTURES / "llama-optimum"
NEEDED = [BIN / "libark_verbs.so", BIN / "dma_test", BIN / "emulator_test", BIN.parent / "libfake_dmabuf.so", BIN / "ark-run",
          BIN / "ark-bench", MODEL]


@pytest.fixture(scope="module")
def stages():
    """{name: (status, output)}"""
    missing = [path.name for path in NEEDED if not path.exists()]
    if missing:
        pytest.skip(f"not built or not here: {', '.join(missing)}")
    # Compiles the kernels of the emulated GPUs, which the machine finds then: its own compiler would be translated.
    warm = subprocess.run([BIN / "emulator_test", "--gtest_filter=GpuRankProcesses.StoreInto*"], capture_output=True, text=True)
    assert warm.returncode == 0, warm.stdout[-4000:]
    script = Path(__file__).with_name("verbs_guest.sh")
    run = subprocess.run([ROOT / "scripts" / "rdma-vm.sh", "--devices", "3", "--seconds", "2400" if FULL else "600",
                          "sh", script, BIN, MODEL, *(["full"] if FULL else [])],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if run.returncode == NO_MACHINE and "@@" not in run.stdout:
        pytest.skip(run.stderr.strip().splitlines()[-1])
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr
    print(run.stdout)
    found = re.findall(r"^@@ begin (\w+)\r?\n(.*?)^@@ end (\d+)", run.stdout, re.M | re.S)
    return {name: (int(status), text) for name, text, status in found}


def passed(stage):
    status, text = stage
    assert status == 0, text[-4000:]
    assert "SKIPPED" not in text
    return int(re.search(r"\[  PASSED  \] (\d+) test", text)[1])


def statistic(stage, name):
    return int(re.search(rf"\b{name} (\d+)", stage[1])[1])


def test_the_suite_passes(stages):
    assert passed(stages["conformance"]) + passed(stages["loss"]) > 40


def test_lost_packets_cost_time_alone(stages):
    assert passed(stages["loss"]) > 10
    assert statistic(stages["losses"], "rcvd_seq_err") > 0, "nothing was lost"


def test_a_receive_is_posted_for_whatever_is_sent(stages):
    for name in ("rcvd_rnr_err", "send_rnr_err", "retry_rnr_exceeded_err"):
        assert statistic(stages["losses"], name) == 0, name


def test_decode_overtakes_bulk_within_the_device(stages):
    assert passed(stages["slow"]) == 2  # verbs and verbs-ud


def test_a_cut_link_is_named(stages):
    assert passed(stages["cut"]) == passed(stages["ud_cut"]) == 1


def test_datagrams_pass_the_suite_with_every_twentieth_lost(stages):
    assert passed(stages["ud_suite"]) >= 2 and passed(stages["ud_loss"]) > 15
    assert int(re.search(r"\(dropped (\d+)", stages["ud_losses"][1])[1]) > 100


def test_lost_datagrams_stall_no_longer_than_time_outs_in_a_row(stages):
    """In virtual time to the microsecond (tests/dma/datagram_test.cc); here threads also wait for a processor."""
    assert passed(stages["ud_stalls"]) == 1
    counted = re.findall(r"again (\d+), gaps (\d+), time-outs (\d+), in a row (\d+), the longest (\d+) us, longest stall (\d+) us",
                         stages["ud_stalls"][1])
    assert len(counted) == 2, stages["ud_stalls"][1]
    for again, gaps, _, in_a_row, time_out, stall in (map(int, one) for one in counted):
        assert stall <= (in_a_row + 1) * max(time_out, 20_000) + 500_000
    assert sum(int(one[0]) for one in counted) > 0 and sum(int(one[1]) for one in counted) > 0, "nothing was sent again"


def test_ranks_over_rdma_generate_what_one_does(stages):
    names = ("alone", "ranks", "four_ranks", "ud_ranks")
    for name in names:
        assert stages[name][0] == 0, stages[name][1]
    # The last line: on a busy machine a warning of slow links comes before it.
    alone, *ranks = (json.loads(stages[name][1].splitlines()[-1])["token_ids"] for name in names)
    assert ranks == [alone] * 3 and len(alone) == 24
    assert statistic(stages["traffic"], "sent_pkts") > 100, "the bytes took another way"


def test_a_device_that_takes_no_dma_buf_costs_the_way_alone(stages):
    assert passed(stages["refused"]) == 1


def test_memory_of_devices_is_read_and_written_by_the_nic(stages):
    """rdma_rxe moves the bytes; a library takes the dma-buf for it, and keeps what comes until it is flushed."""
    assert passed(stages["dmabuf"]) == 1


def test_gpu_ranks_exchange_by_the_nic(stages):
    assert "SKIPPED" not in stages["gpus"][1] and stages["gpus"][0] == 0, stages["gpus"][1][-4000:]


def test_a_device_that_is_not_there_is_named(stages):
    status, text = stages["missing"]
    assert status == UNAVAILABLE
    assert "RDMA device rxe9; there are rxe1, rxe2, rxe3" in text, text


@pytest.mark.skipif(not FULL, reason="measures for a while, as test_bench_links.py does over others (ARK_FULL=1)")
def test_the_bench_has_its_rows(stages):
    for name, transport in (("bench", "verbs"), ("ud_bench", "verbs-ud")):
        rows = json.loads(stages[name][1])["rows"]
        assert [(row["transport"], row["link"], row["bytes"]) for row in rows] == [(transport, "posted", 4), (transport, "posted", 65536)]


@pytest.mark.skipif(os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"), reason="RDMA is here")
def test_without_a_device_it_is_refused_and_says_why(tiny_model):
    run = run_to_end("--model", tiny_model, "--tp", 2, "--processes", "--check", "--transport", "verbs")
    assert run.returncode == UNAVAILABLE
    assert "rank 0: no RDMA device here" in run.stderr.splitlines()[-1], run.stderr

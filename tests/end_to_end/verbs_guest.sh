#!/bin/sh
# What test_verbs.py runs in a machine with devices rxe1 to rxe3: stages, whose output lies between lines that begin with @@.
# usage: verbs_guest.sh FOLDER_OF_BINARIES MODEL [full]
bin=$1 model=$2 full=$3
export ARK_VERBS_DEVICE=rxe1,rxe2,rxe3 ARK_TRANSPORT=verbs
# Suite and bench look for UCX, too, which makes libibverbs keep registered memory from children: not with huge pages.
# Over rdma_rxe UCX 1.13 aborts where an endpoint closes early (docs/dma.md).
export UCX_IB_FORK_INIT=n UCX_TLS=tcp,self

stage() {
  begun=$(cut -d. -f1 /proc/uptime)
  echo "@@ begin $1"
  shift
  "$@" 2>&1
  echo "@@ end $? after $(($(cut -d. -f1 /proc/uptime) - begun)) s"
}
suite() { "$bin/dma_test" --gtest_color=no --gtest_filter="$1"; }
generate() { "$bin/ark-run" "$model" --prompt-ids 5,9,2,44 --max-tokens 24 --ignore-eos --temperature 1 --seed 3 --json "$@"; }
generate_by() { ARK_TRANSPORT=$1 generate --tp 2 --processes; }
statistics() { rdma statistic show link rxe1/1; }

echo 16 >/proc/sys/vm/nr_hugepages
stage alone generate --tp 1
stage ranks generate --tp 2 --processes
stage four_ranks generate --tp 4 --processes
stage traffic statistics
stage missing "$bin/ark-run" "$model" --verbs-device rxe1,rxe9 --prompt-ids 5 --max-tokens 1 --tp 2 --processes
if [ "$full" ]; then stage bench "$bin/ark-bench" dma --transport verbs --sizes 4,65536 --time 20 --ranks 2 --json; fi
# How an end is noticed does not depend on what carries a pair: mixed ones meet, add and lose a rank as they are set up, and
# of ends of ranks that serve a kill stands for all but with test.sh --full.
ends=:*TheOthersEnd*:*AStopped*:*OverSharedMemory/verbs_*
if [ "$full" ]; then ends=:*TheOthersEnd*/shm_*; fi
# Links that lose what they carry: made up beside what the switch loses below, where there is time (test.sh --full).
lossy=${full:+:*verbs_lossy*}
# What runs below where packets are lost runs where none are with test.sh --full alone.
twice=:Dma/Conf*/verbs_direct:Dma/All*/verbs_direct
if [ "$full" ]; then twice=; fi
stage conformance suite "*verbs_direct*$lossy:Transports.*:*Verbs.*Leaves*/verbs:*Verbs.*Longer*/verbs:-*Killed*/shm_*:*Dies*/shm_*$ends$twice"
stage refused suite "VerbsMemory.*TakesNoDmaBuf*"
stage dmabuf env LD_PRELOAD="$bin/../libfake_dmabuf.so" "$bin/dma_test" --gtest_color=no --gtest_filter="VerbsMemory.OfDevices*"
stage gpus env LD_PRELOAD="$bin/../libfake_dmabuf.so" "$bin/emulator_test" --gtest_color=no --gtest_filter="GpuRankProcesses.*ByANic*"
tc qdisc add dev n1 root netem rate 100mbit || exit 125
stage slow env ARK_TEST_SLOW_LINK=1 "$bin/dma_test" --gtest_color=no --gtest_filter="*Verbs.*Overtakes*"
tc qdisc del dev n1 root
# Datagrams: what goes beyond the suite; the suite, a stream and ranks as processes, with every twentieth lost.
stage ud_suite suite "${full:+Dma*/verbs_ud_*:*two_machines_verbs_ud_direct:}*Verbs.*/verbs_ud:-*Overtakes*:*ACut*:*RandomPro*"
for port in p1 p2 p3; do tc qdisc add dev $port root netem loss 5% || exit 125; done
stage ud_loss suite "Dma/Conf*/verbs_ud_direct:Dma/All*/verbs_ud_direct"
stage ud_stalls suite "Datagrams.*"
stage ud_ranks generate_by verbs-ud
stage ud_losses tc -s qdisc show dev p1
for port in p1 p2 p3; do tc qdisc del dev $port root; done
export ARK_TEST_CUT="tc qdisc replace dev p2 root netem loss 100%"  # the port stays up
stage ud_cut suite "*Verbs.ACut*/verbs_ud"
tc qdisc del dev p2 root
if [ "$full" ]; then stage ud_bench "$bin/ark-bench" dma --transport verbs-ud --sizes 4,65536 --time 20 --ranks 2 --json; fi
# rdma_rxe counts each loss within a message among the attempts that end a queue pair; pieces are of 128 packets.
for port in p1 p2 p3; do tc qdisc add dev $port root netem loss 0.3% || exit 125; done
stage loss suite "Dma*/verbs_direct${full:+:*two_machines_verbs_direct}:-*Processes*"
stage losses statistics
stage cut suite "*Verbs.ACut*/verbs"

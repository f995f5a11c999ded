#include "dma/verbs/queues.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/random.h"

namespace ark::dma {
namespace {

// 4.096 us * 2^14 = 67 ms for an acknowledgement, at least: a cut is told after half a second, on devices that wait
// longer after two. 7 attempts would be the most, but rdma_rxe takes that for "for ever".
constexpr uint8_t kAckTimeout = 14, kAttempts = 6;
constexpr uint8_t kHops = 64;

[[noreturn]] void fail(const std::string& what, const char* why) {
  throw Error(Code::kUnavailable, "transport verbs: " + what + ": " + why);
}

QueuePair make_queue_pair(const VerbsParts& parts, uint32_t& most_inline) {
  int error = 0;
  for (const uint32_t wanted : {220u, 96u, 32u, 0u}) {  // devices do not tell how much they take inline
    ibv_qp_init_attr attributes = {};
    attributes.send_cq = attributes.recv_cq = parts.completions.get();
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {parts.depth, parts.depth, 1, 1, wanted};
    QueuePair pair(ibv_create_qp(parts.port->domain.get(), &attributes));
    error = errno;
    if (pair == nullptr) continue;
    most_inline = attributes.cap.max_inline_data;
    ibv_qp_attr initial = {};
    initial.qp_state = IBV_QPS_INIT;
    initial.port_num = parts.port->number;
    initial.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    error = ibv_modify_qp(pair.get(), &initial,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error == 0) return pair;
  }
  fail(parts.port->name + " makes no queue pair", std::strerror(error));
}

std::string path(const VerbsParts& parts, const VerbsLink& link) {
  const auto link_number = &link - parts.links.data();
  return "rank " + std::to_string(link_number / kPriorities) + " at " + text(link.gid) + " from " +
         parts.port->name;
}

}  // namespace

ibv_ah_attr way_to(const VerbsPort& from, const VerbsAddress& there) {
  ibv_ah_attr way = {};
  way.is_global = 1;
  std::copy(there.gid.begin(), there.gid.end(), way.grh.dgid.raw);
  way.grh.sgid_index = from.gid_index;
  way.grh.hop_limit = kHops;
  way.dlid = there.lid;
  way.port_num = from.number;
  return way;
}

VerbsHello make_queues(VerbsParts& parts, const WireMap& map, int ranks) {
  const VerbsPort& port = *parts.port;
  const size_t links = link_index(ranks, Priority::kDecode);
  // A link has at most `depth` sends and `depth` receives outstanding, each of which may complete.
  parts.depth = std::min({VerbsHello::kMostDepth, static_cast<uint32_t>(port.limits.max_qp_wr),
                          static_cast<uint32_t>(static_cast<size_t>(port.limits.max_cqe) / (2 * links))});
  if (parts.depth < VerbsHello::kLeastDepth)
    fail(port.name, ("has too short queues for " + std::to_string(ranks) + " ranks").c_str());
  parts.completions.reset(
      ibv_create_cq(port.context.get(), static_cast<int>(parts.depth * 2 * links), nullptr, nullptr, 0));
  if (parts.completions == nullptr) fail(port.name + " makes no completion queue", std::strerror(errno));

  VerbsHello hello;
  std::copy(std::begin(port.gid.raw), std::end(port.gid.raw), hello.at.gid.begin());
  hello.at.lid = port.port.lid;
  hello.at.mtu = static_cast<uint8_t>(port.port.active_mtu);
  hello.depth = parts.depth;
  hello.queues.resize(links);
  parts.links.resize(links);
  for (size_t i = 0; i < links; ++i) {
    if (!map.carries_to(static_cast<int>(i / kPriorities))) continue;
    VerbsLink& link = parts.links[i];
    link.pair = make_queue_pair(parts, link.most_inline);
    // Before anybody knows of the queue pair.
    for (uint32_t receive = 0; receive < parts.depth; ++receive) {
      ibv_recv_wr work = {}, *refused = nullptr;
      work.wr_id = receive_name(i);
      if (const int error = ibv_post_recv(link.pair.get(), &work, &refused))
        fail(port.name + " takes no receive", std::strerror(error));
    }
    // Random, so that no packet of a former connection fits.
    hello.queues[i] = {link.pair->qp_num, static_cast<uint32_t>(random_word()) & 0xffffff};
  }
  return hello;
}

void connect_queues(VerbsParts& parts, int rank, const VerbsHello& ours, int peer, const VerbsHello& theirs) {
  for (const Priority priority : {Priority::kDecode, Priority::kBulk}) {
    const size_t here = link_index(peer, priority), there = link_index(rank, priority);
    VerbsLink& link = parts.links[here];
    std::copy(theirs.at.gid.begin(), theirs.at.gid.end(), link.gid.raw);
    link.their_depth = theirs.depth;
    link.told_key = VerbsKey::of(theirs.told_key).key;
    link.told_at = VerbsKey::of(theirs.told_key).address + there * sizeof(uint32_t);

    ibv_qp_attr ready = {};
    ready.qp_state = IBV_QPS_RTR;
    ready.path_mtu = static_cast<ibv_mtu>(std::min(theirs.at.mtu, ours.at.mtu));
    ready.dest_qp_num = theirs.queues[there].number;
    ready.rq_psn = theirs.queues[there].packet;
    ready.ah_attr = way_to(*parts.port, theirs.at);
    int error = ibv_modify_qp(link.pair.get(), &ready,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    ibv_qp_attr sending = {};
    sending.qp_state = IBV_QPS_RTS;
    sending.timeout = kAckTimeout;
    sending.retry_cnt = kAttempts;
    sending.rnr_retry = 0;  // a receive is posted for whatever is sent
    sending.sq_psn = ours.queues[here].packet;
    if (error == 0)
      error = ibv_modify_qp(link.pair.get(), &sending,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (error != 0) fail("cannot connect to " + path(parts, link), std::strerror(error));
  }
}

void prove_queues(VerbsParts& parts, Deadline deadline) {
  std::vector<const VerbsLink*> silent;
  for (VerbsLink& link : parts.links) {
    if (link.pair == nullptr) continue;
    ibv_send_wr work = {}, *refused = nullptr;
    work.wr_id = silent.size();
    work.opcode = IBV_WR_RDMA_WRITE;
    work.send_flags = IBV_SEND_SIGNALED;
    work.wr.rdma.remote_addr = link.told_at;
    work.wr.rdma.rkey = link.told_key;
    if (const int error = ibv_post_send(link.pair.get(), &work, &refused))
      fail("cannot send to " + path(parts, link), std::strerror(error));
    silent.push_back(&link);
  }
  for (size_t missing = silent.size(); missing > 0;) {
    ibv_wc ended = {};
    const int count = ibv_poll_cq(parts.completions.get(), 1, &ended);
    if (count == 0 && !deadline.passed()) {
      detail::blind_sleep(100'000);
      continue;
    }
    const auto late = std::find_if(silent.begin(), silent.end(), [](auto* link) { return link != nullptr; });
    const VerbsLink*& link = count > 0 ? silent[ended.wr_id] : *late;
    if (count <= 0 || ended.status != IBV_WC_SUCCESS)
      fail("cannot reach " + path(parts, *link) + " (--verbs-device and --verbs-gid choose the way)",
           count > 0 ? ibv_wc_status_str(ended.status) : "no answer in time");
    link = nullptr;
    --missing;
  }
}

}  // namespace ark::dma

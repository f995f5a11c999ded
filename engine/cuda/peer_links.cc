#include "engine/cuda/peer_links.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "dma/blob.h"
#include "dma/hand_round.h"
#include "engine/cuda/rank_parts.h"
#include "engine/cuda/rank_shares.h"

namespace ark::cuda {
namespace {

// Ranks may pack their weights for long; who dies meanwhile is noticed by the bootstrap.
constexpr std::chrono::minutes kPatience{60};
constexpr uint64_t kLine = 64, kBoxAlignment = 256;

// What `from` writes into a block that has told `nonce`.
std::array<uint64_t, kLine / 8> trial_of(uint64_t nonce, int from) {
  std::array<uint64_t, kLine / 8> words{};
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = nonce + (static_cast<uint64_t>(from) * words.size() + i + 1) * 0x9e3779b97f4a7c15;
  return words;
}

struct Told {
  uint64_t bytes = 0, nonce = 0;
  std::string fabric, why_none;
};

std::string to_blob(const Told& told) {
  return dma::BlobWriter().number(told.bytes).number(told.nonce).text(told.fabric).text(told.why_none).take();
}

Told told_by(int rank, const std::string& bytes) {
  dma::BlobReader blob(bytes, "rank " + std::to_string(rank) + ": its block of GPU memory");
  Told told;
  told.bytes = blob.number<uint64_t>();
  told.nonce = blob.number<uint64_t>();
  told.fabric = blob.text();
  told.why_none = blob.text();
  blob.end();
  return told;
}

std::string one_line(const Error& error) { return escaped(error.what(), 300); }

}  // namespace

// A block: for each rank a line that it tries out; for each rank and kind of channel the counters that it raises; for
// each kind the inboxes of all ranks, whose own rank's places are unused; all ranks' parts of sums; and sums.
struct PeerLinks::Layout {
  uint64_t ranks = 0, kinds = 0;
  std::vector<uint64_t> boxes, box_bytes;  // by kind: where they begin, bytes of one
  uint64_t parts = 0, part_bytes = 0;      // where parts of sums begin, bytes of a rank's
  uint64_t shares = 0;                     // where sums begin
  uint64_t bytes = 0;

  uint64_t trial(int rank) const { return static_cast<uint64_t>(rank) * kLine; }
  uint64_t counter(int rank, uint32_t kind, dma::RouteEnd end) const {
    return (ranks + (static_cast<uint64_t>(rank) * kinds + kind) * 2 + static_cast<uint64_t>(end)) * kLine;
  }
  uint64_t inbox(int rank, uint32_t kind) const {
    return boxes[kind] + static_cast<uint64_t>(rank) * box_bytes[kind];
  }
};

PeerLinks::Layout PeerLinks::layout() const {
  Layout l{.ranks = static_cast<uint64_t>(group_.size()), .kinds = kinds_};
  l.bytes = l.ranks * (1 + l.kinds * 2) * kLine;
  const int peer = group_.rank() == 0 ? 1 : 0;  // kinds are the same between all ranks
  for (uint32_t kind = 0; kind < kinds_; ++kind) {
    const dma::Sender sender = group_.sender(peer, kind);
    l.boxes.push_back((l.bytes + kBoxAlignment - 1) / kBoxAlignment * kBoxAlignment);
    l.box_bytes.push_back(sender.slots * sender.slot_bytes);
    l.bytes = l.boxes.back() + l.ranks * l.box_bytes.back();
  }
  l.part_bytes = part_bytes_;
  l.parts = (l.bytes + kBoxAlignment - 1) / kBoxAlignment * kBoxAlignment;
  l.shares = (l.parts + l.ranks * l.part_bytes + kBoxAlignment - 1) / kBoxAlignment * kBoxAlignment;
  l.bytes = l.shares + share_bytes_;
  return l;
}

PeerLinks::PeerLinks(Gpu& gpu, const Program& program, dma::Group& group, bool wanted, const RankWays& ways)
    : gpu_(gpu), program_(program), group_(group), peers_(static_cast<std::size_t>(group.size())) {
  nonce_ = random_word();
  const Appended appended(program);
  part_bytes_ = plan_rank_parts(program, appended, ways.part_rows).bytes();
  share_bytes_ = plan_rank_shares(program, MergedSends(program), appended, ways.shares_from).bytes();
  for (std::size_t c = 0; c < program.channels.size(); ++c)
    kinds_ = std::max(kinds_, dma_channel_of(program, static_cast<int32_t>(c)) + 1);
  BlockHandle handle;
  try {
    if (!wanted) throw Error(Code::kUnsupported, kHostLinksAskedFor);
    allocate(handle);
  } catch (const Error& error) {
    why_none_ = one_line(error);
    own_ = {};
    handle = {};
  }
  meet(handle);
}

// A round of all ranks: a death has a better name than the round that it ends.
template <class Round>
auto PeerLinks::by_name(const Round& round) {
  try {
    return round();
  } catch (const Error&) {
    if (const std::string why = group_.trouble(); !why.empty()) throw Error(Code::kUnavailable, why);
    throw;
  }
}

void PeerLinks::meet(const BlockHandle& handle) {
  const std::vector<std::string> told =
      gather(to_blob({.bytes = own_.bytes, .nonce = nonce_, .fabric = handle.fabric, .why_none = why_none_}));
  attach(told, handle);
  try_out();
  settle();
}

std::vector<std::string> PeerLinks::gather(const std::string& blob) {
  return by_name([&] { return group_.bootstrap().all_gather(blob, dma::Deadline::after(kPatience)); });
}

void PeerLinks::allocate(BlockHandle& handle) {
  const Layout l = layout();
  for (uint32_t kind = 0; kind < kinds_; ++kind) {
    if (group_.sender(group_.rank() == 0 ? 1 : 0, kind).slot_bytes > UINT32_MAX)
      throw Error(Code::kUnsupported, "messages of 4 GiB and more");
  }
  own_ = gpu_.allocate_shared(l.bytes, "inboxes of rank " + std::to_string(group_.rank()), handle);
  gpu_.clear(own_.address, l.bytes);
  const uint64_t first = group_.sender(group_.rank() == 0 ? 1 : 0, 0).first_count;
  std::vector<uint64_t> counters(l.ranks * l.kinds * 2 * (kLine / 8));
  for (std::size_t i = 0; i < counters.size(); i += kLine / 8) counters[i] = first;
  gpu_.upload(own_.address + l.counter(0, 0, dma::RouteEnd::kArrived), std::as_bytes(std::span(counters)));
  if (l.part_bytes > 0) gpu_.fill(own_.address + l.parts, l.ranks * l.part_bytes, std::byte{0xff});
}

// Maps the peers' blocks, and writes into each what its owner can expect of this rank.
void PeerLinks::attach(const std::vector<std::string>& told, const BlockHandle& own) {
  std::vector<dma::Handed> handed = by_name(
      [&] { return dma::hand_round(group_.bootstrap(), own.file.number, dma::Deadline::after(kPatience)); });
  const Layout l = layout();
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank()) continue;
    const Told theirs = told_by(peer, told[peer]);
    Peer& to = peers_[peer];
    if (!theirs.why_none.empty() || !why_none_.empty()) {
      to.why_not = !why_none_.empty() ? "rank " + std::to_string(group_.rank()) + ": " + why_none_
                                      : "rank " + std::to_string(peer) + ": " + theirs.why_none;
      continue;
    }
    if (theirs.bytes != own_.bytes) {
      to.why_not = "blocks of ranks " + std::to_string(peer) + " and " + std::to_string(group_.rank()) +
                   " differ in size";
      continue;
    }
    if (!handed[peer].descriptor && theirs.fabric.empty()) {
      to.why_not = "rank " + std::to_string(group_.rank()) + " gets no descriptor of rank " +
                   std::to_string(peer) + ": " + handed[peer].why_not;
      continue;
    }
    try {
      to.block = gpu_.open_shared({std::move(handed[peer].descriptor), theirs.fabric}, theirs.bytes);
      const auto trial = trial_of(theirs.nonce, group_.rank());
      gpu_.upload(to.block.address + l.trial(group_.rank()), std::as_bytes(std::span(trial)));
    } catch (const Error& error) {
      to = {{}, one_line(error)};
    }
  }
}

// All have written: looks for what those who could have. There are machines that map a peer's memory and lose what is
// stored there.
void PeerLinks::try_out() {
  dma::BlobWriter reached;
  for (const Peer& peer : peers_) reached.text(peer.why_not);
  const std::vector<std::string> all = gather(reached.take());
  const Layout l = layout();
  for (int peer = 0; peer < group_.size(); ++peer) {
    Peer& from = peers_[peer];
    if (peer == group_.rank() || !from.why_not.empty()) continue;
    dma::BlobReader blob(all[peer], "rank " + std::to_string(peer) + ": what it reaches");
    std::string why;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const std::string_view text = blob.text();
      if (rank == group_.rank()) why = text;
    }
    blob.end();
    if (why.empty()) {
      std::array<uint64_t, kLine / 8> seen{};
      try {
        gpu_.download(std::as_writable_bytes(std::span(seen)), own_.address + l.trial(peer));
        if (seen != trial_of(nonce_, peer))
          why = "what GPUs store into each other's memory is lost between ranks " + std::to_string(peer) +
                " and " + std::to_string(group_.rank());
      } catch (const Error& error) {
        why = one_line(error);
      }
    }
    if (!why.empty()) from = {{}, why};
  }
}

// A pair takes this way only if both can. By the way all hear of the pairs that a NIC serves, as ends of them know.
void PeerLinks::settle() {
  dma::BlobWriter settled;
  for (int peer = 0; peer < group_.size(); ++peer) {
    std::optional<std::string> why_staged;
    if (peer != group_.rank()) why_staged = group_.endpoint().why_staged(peer);
    settled.text(peers_[peer].why_not).number<uint8_t>(why_staged && why_staged->empty());
    settled.text(why_staged.value_or(""));
  }
  const std::vector<std::string> all = gather(settled.take());
  std::vector<std::vector<std::string>> why(all.size());
  std::vector<std::vector<std::pair<bool, std::string>>> nic(all.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    dma::BlobReader blob(all[rank], "rank " + std::to_string(rank) + ": the ways that it takes");
    for (std::size_t peer = 0; peer < all.size(); ++peer) {
      why[rank].emplace_back(blob.text());
      const bool by_nic = blob.number<uint8_t>() != 0;
      nic[rank].emplace_back(by_nic, blob.text());
    }
    blob.end();
  }
  for (int b = 0; b < group_.size(); ++b) {
    for (int a = 0; a < b; ++a) {
      const auto& [by_nic, why_staged] = nic[a][b];  // both ends say the same
      ways_.push_back({a, b, why[a][b].empty() ? why[b][a] : why[a][b], by_nic, why_staged});
    }
  }
  for (const PairWay& way : ways_) {
    if (!way.why_not.empty() && (way.a == group_.rank() || way.b == group_.rank()))
      peers_[way.a == group_.rank() ? way.b : way.a].block = {};
  }
  if (std::none_of(peers_.begin(), peers_.end(),
                   [](const Peer& peer) { return peer.block.owner != nullptr; }))
    own_ = {};
}

ChannelPlace PeerLinks::place(int32_t number) const {
  const Channel& channel = program_.channels[number];
  const uint32_t kind = dma_channel_of(program_, number);
  const dma::Sender sender = group_.sender(channel.peer, kind);
  const Layout l = layout();
  const int own = group_.rank(), peer = channel.peer;
  const uint64_t here = own_.address, there = peers_[peer].block.address;
  const auto arrived = dma::RouteEnd::kArrived, credit = dma::RouteEnd::kCredit;
  ChannelPlace place;
  place.link = LinkKind::kMapped;
  place.slot_bytes = sender.slot_bytes;
  place.slot_count = sender.slots;
  place.first_count = place.first = sender.first_count;
  // The peer's place in each block: what it stores into.
  place.slots = channel.outgoing ? there + l.inbox(own, kind) : here + l.inbox(peer, kind);
  place.raised = there + l.counter(own, kind, channel.outgoing ? arrived : credit);
  place.awaited = here + l.counter(peer, kind, channel.outgoing ? credit : arrived);
  return place;
}

bool PeerLinks::reaches_all() const {
  return !ways_.empty() && std::ranges::all_of(ways_, [](const PairWay& way) { return way.why_not.empty(); });
}
uint64_t PeerLinks::parts() const { return own_.address + layout().parts; }
uint64_t PeerLinks::parts_to(int rank) const {
  const Layout l = layout();
  const uint64_t block = rank == group_.rank() ? own_.address : peers_[rank].block.address;
  return block + l.parts + static_cast<uint64_t>(group_.rank()) * l.part_bytes;
}
uint64_t PeerLinks::shares(int rank) const {
  return (rank == group_.rank() ? own_.address : peers_[rank].block.address) + layout().shares;
}
bool PeerLinks::agree(const std::string& text) {
  const std::vector<std::string> all = gather(text);
  return !text.empty() && std::ranges::count(all, text) == std::ssize(all);
}

std::string text_of(const std::vector<PairWay>& ways) {
  // By way, the nearest first, and why no nearer one.
  std::map<std::pair<int, std::string>, std::string> pairs;
  for (const PairWay& way : ways) {
    const bool is_staged = !way.why_not.empty() && !way.by_nic;
    std::string why = way.why_not;
    if (is_staged && !way.why_not_by_nic.empty()) why += "; by a NIC: " + way.why_not_by_nic;
    std::string& list = pairs[{why.empty() ? 0 : is_staged ? 2 : 1, why}];
    list += (list.empty() ? "" : ", ") + std::to_string(way.a) + "-" + std::to_string(way.b);
  }
  constexpr const char* kNames[] = {
      "GPU to GPU: ", "by a NIC that reads and writes GPU memory: ", "through memory of the host: "};
  std::string text;
  for (const auto& [way, list] : pairs)
    text += (text.empty() ? "" : "; ") + (kNames[way.first] + list) +
            (way.second.empty() ? "" : " (" + way.second + ")");
  return text;
}

}  // namespace ark::cuda

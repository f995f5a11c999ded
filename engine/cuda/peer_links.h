// Channels whose other end is another GPU's memory, of this process or another: each rank's inboxes and counters lie in
// a block of its own GPU, which the peers' GPUs store into. For the loop they are as links through mapped memory of the
// host (engine/cuda/links.h), which stays for pairs of ranks whose GPUs do not reach each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dma/group.h"
#include "engine/cuda/gpu.h"
#include "engine/cuda/make_image.h"

namespace ark::cuda {

// Which way the messages of two ranks take, in both directions.
struct PairWay {
  int a = 0, b = 0;     // a < b
  std::string why_not;  // why not by stores into each other's GPU memory; empty: that way
  // Else: a NIC carries them from one GPU's memory to the other's, or why it does not (empty: it is not between them).
  bool by_nic = false;
  std::string why_not_by_nic = {};
};
inline constexpr const char* kHostLinksAskedFor = "ARK_GPU_LINKS=host asks for it";
// "GPU to GPU: 0-1; by a NIC that reads and writes GPU memory: 1-3 (WHY); through memory of the host: 1-2 (WHY)".
std::string text_of(const std::vector<PairWay>& ways);

class PeerLinks {
 public:
  // Collective: each rank of the group calls it, on a thread of its own, inside Gate::Work of a Gpu that no other rank
  // of the group waits for. `wanted` may differ, sizes in `ways` not. What a GPU refuses, or does not carry as a trial
  // shows, is a pair's why_not; throws Error(kUnavailable) where a rank dies. `gpu` and `group` outlive this.
  PeerLinks(Gpu& gpu, const Program& program, dma::Group& group, bool wanted, const RankWays& ways = {});

  // Of a channel between this rank and `peer`, both ends alike.
  bool reaches(int peer) const { return peers_[peer].block.owner != nullptr; }
  // Where the end of `program`'s channel lies that this rank has. Of a peer that it reaches.
  ChannelPlace place(int32_t channel) const;
  // Whether all pairs of the group take this way.
  bool reaches_all() const;
  // Parts of sums over ranks (rank_parts.h): this rank's memory of them, and where its part goes in `rank`'s. If it
  // reaches all. They start as absent words.
  uint64_t parts() const;
  uint64_t parts_to(int rank) const;
  // Of sums over ranks (rank_shares.h): `rank`'s memory of them, the own one's too. They start as zeros.
  uint64_t shares(int rank) const;
  // Collective: whether all ranks say the same, and not nothing.
  bool agree(const std::string& text);
  // Of all pairs of the group; equal on all ranks.
  const std::vector<PairWay>& ways() const { return ways_; }

 private:
  struct Peer {
    SharedBlock block;    // as this GPU sees it
    std::string why_not;  // it cannot be reached from here
  };
  struct Layout;
  Layout layout() const;
  void allocate(BlockHandle& handle);
  void meet(const BlockHandle& handle);
  void attach(const std::vector<std::string>& told, const BlockHandle& own);
  void try_out();
  void settle();
  std::vector<std::string> gather(const std::string& blob);
  template <class Round>
  auto by_name(const Round& round);

  Gpu& gpu_;
  const Program& program_;
  dma::Group& group_;
  uint32_t kinds_ = 0;  // of channels between two ranks
  uint64_t nonce_ = 0, part_bytes_ = 0, share_bytes_ = 0;
  std::string why_none_;  // no block of its own
  SharedBlock own_;
  std::vector<Peer> peers_;  // by rank
  std::vector<PairWay> ways_;
};

}  // namespace ark::cuda

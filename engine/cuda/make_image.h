// Program + memory -> the tables of engine/cuda/image.h.
//
// A rank's memory on the device is the weights (a copy of its WeightStore's arena) and one arena for all
// else, planned here. The owner allocates both, clears the arena and uploads tables() to its start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "engine/cuda/dependencies.h"
#include "engine/cuda/image.h"
#include "engine/cuda/lamport_plan.h"
#include "engine/cuda/merged_sends.h"
#include "engine/cuda/product_tiles.h"
#include "engine/cuda/rank_shares.h"
#include "engine/cuda/variants.h"
#include "engine/program/unroll.h"
#include "engine/run/executor.h"

namespace ark::cuda {

// Where an end of a channel lies, as the device sees it. Ranks of one launch: connect(); others: HostLinks.
struct ChannelPlace {
  LinkKind link = LinkKind::kDevice;
  uint64_t slots = 0;  // slot 0: sender: the peer's inbox (posted: own outbox); receiver: own inbox
  uint64_t slot_bytes = 0, slot_count = 0;
  uint64_t raised = 0;       // the counter that this end raises: the peer's arrivals or credits; not posted
  uint64_t awaited = 0;      // the counter that this end waits for: credits or arrivals
  uint64_t relay = 0;        // Wait::relay; starts like the counter
  uint64_t first_count = 0;  // where it started
  uint64_t first = 0;        // Message::first
  // Posted links: the ring of requests, the first word of a request without commit bit and length, and the
  // offsets of slot 0 in source and target region.
  uint64_t queue = 0, head = 0, source = 0, target = 0;
};

struct RankPlaces {
  uint64_t weights = 0;                // copy of the WeightStore's arena
  uint64_t arena = 0;                  // RankImage::arena_bytes() bytes
  std::vector<ChannelPlace> channels;  // by program channel
  // Of parts of sums over ranks, if there are any: this rank's memory of them; and by rank, in its memory, where this
  // rank's part goes.
  uint64_t parts = 0;
  std::vector<uint64_t> parts_to;
  std::vector<uint64_t> shares;  // of sums, if ranks have any: by rank, in its memory
};

// What ranks of an image do in each other's memory, which all must; and what each does for itself.
struct RankWays {
  bool tells = false;       // parts of sums in steps of up to 32 rows, by words (rank_parts.h)
  bool shares = false;      // sums of steps of many rows (rank_shares.h)
  int32_t part_rows = 0;    // RankParts::rows, at most; 0: chosen by cost
  int64_t shares_from = 0;  // about RankShares::from; 0: chosen by cost
  int32_t told_rows = 0;    // RankTables::told_rows, at most, from kFewRows on; 0: chosen by cost
};

class RankImage {
 public:
  // `program`: which one of `variants`. `groups`: into how many tiles each matrix product's rows of weights
  // are split; 0: chosen by cost. `tiles`: what the code was compiled for. Throws Error(kUnsupported) naming the
  // node that does not fit the tables.
  RankImage(const RankSetup& setup, const ExecutorOptions& options, const VariantSet& variants,
            std::size_t program, int32_t groups, const TileShape& tiles, const RankWays& ways);

  uint64_t arena_bytes() const { return arena_bytes_; }
  const Program& program() const { return *setup_.program; }
  // LoopParameters::leaving_rows, of a ring of so many stages: none if a product may have more rows than a step has
  // tokens, by which the ring is chosen.
  int32_t leaving_rows(int32_t stages) const {
    return leaves_scratch_ ? cuda::leaving_rows(streams_, stages) : 0;
  }
  // Rows of the steps whose products may take exact wide tiles that need stages of the ring, at least; INT32_MAX if
  // none do.
  int32_t wide_from() const { return wide_from_; }
  // Of an item of attention in a step of so many tokens, whose longest sequence has so many, at most.
  int32_t item_tokens(int32_t step_tokens, int32_t longest) const;
  // A channel's own inbox and the counter that its peer raises (links of the host: its relay), as offsets
  // into the arena.
  uint64_t inbox_offset(int32_t channel) const { return inboxes_[channel]; }
  uint64_t counter_offset(int32_t channel) const {
    return channel_counters_ + static_cast<uint64_t>(channel) * kLineBytes;
  }
  // Part of the arena, whose bytes start as ones: lamport.h's kAbsent.
  Range absent_words() const {
    return {static_cast<int64_t>(lamport_rows_), static_cast<int64_t>(parts_ + parts_bytes())};
  }
  // Where parts of sums over ranks lie, of ranks without a group: by rank, rank_parts().bytes() each.
  uint64_t parts_offset() const { return parts_; }
  const RankParts& rank_parts() const { return rank_parts_; }
  // Where sums over ranks lie whose shares these have added up, of ranks without a group: rank_shares().bytes().
  uint64_t shares_offset() const { return shares_; }
  const RankShares& rank_shares() const { return rank_shares_; }
  // Of RingTickets, for posted links.
  uint64_t tickets_offset() const { return tickets_; }
  // What the arena starts with.
  std::vector<std::byte> tables(const RankPlaces& places) const;
  // The rank as LoopParameters::ranks has it.
  RankTables rank_tables(const RankPlaces& places) const;

 private:
  friend class InstanceFiller;
  // A product whose tiles share outputs waits for the one that used its room before, so that a few of them go on side
  // by side.
  static constexpr std::size_t kPartialRooms = 4;
  void plan_memory(uint64_t instances);
  void plan_attention();
  void choose_told(OnDevice device);
  LamportPlan plan_told(int32_t rows, OnDevice device) const;
  bool pays(const LamportPlan& plan) const;
  SymbolValues sizes_of(int32_t tokens) const;
  void plan_schedule();
  const Appended& appended() const { return variants_.appended(number_); }
  // Whether others do what the phase says.
  bool is_gone(PhaseId phase) const { return appended().is_done(phase) || sends_.sent_by(phase) != kNone; }
  // Whether an instance does nothing in steps that tell.
  bool is_skipped(std::size_t instance) const { return lamport_.floats > 0 && lamport_.left_out[instance]; }
  // Of instance number `instance` of all. Returns the one that must be complete before, or -1.
  int32_t plan_stream(std::span<const ark::Instance> all, int32_t instance);
  // `wide_rows`: of its wide tiles; 0: it has none.
  void plan_groups(Stream& s, BufferId x, bool is_taken_up, int32_t wide_rows);
  void place_few(std::span<const ark::Instance> all);
  void place_beside(Stream& s, std::span<const ark::Instance> all, int32_t instance) const;
  // With its addresses; what the phase says is left open.
  Stream stream_at(std::size_t number, const RankPlaces& places) const;
  void plan_heads(int32_t variant, int64_t heads, int64_t kv_heads);
  // Query tokens of an item, at most; behind plan_heads() of the variant.
  void plan_items(int32_t variant, const Buffer& keys, const Buffer& values);
  uint64_t take(uint64_t bytes);
  uint64_t parts_bytes() const {
    return setup_.group ? 0 : rank_parts_.bytes() * static_cast<uint64_t>(setup_.program->ranks);
  }

  const RankSetup setup_;
  const ExecutorOptions options_;
  const VariantSet& variants_;
  const std::size_t number_;
  const int32_t groups_;
  const TileShape tiles_;
  const WeightLayout weights_;
  const MergedSends sends_;
  RankTables rank_{};                         // addresses: offsets into the arena
  std::vector<uint64_t> buffers_;             // offsets of act, page and io buffers; others ~0
  std::vector<uint64_t> inboxes_;             // by channel
  std::vector<Stream> streams_;               // by matrix product of a step; borders: index into borders_;
                                              // partials, arrivals: offsets into their parts
  std::vector<int32_t> stream_instances_;     // by stream: its instance
  std::vector<int32_t> takers_;               // by instance: takers()
  std::map<int32_t, std::size_t> taken_up_;   // by a norm's instance: the stream whose sums it takes up
  std::vector<std::vector<int32_t>> needed_;  // by instance: dependencies()
  std::vector<int32_t> borders_;              // pieces of all matrix products
  // Variant, rows and bytes of a unit of weights -> index into borders_.
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> border_at_;
  std::vector<int32_t> heads_;           // per attention variant: first query head of each KV head, heads
  std::map<int32_t, int32_t> heads_at_;  // variant -> index into heads_
  LamportPlan lamport_;                  // of steps of not many rows
  const int32_t told_rows_;              // of these, at most, whether they pay or not; 0: as many as pay
  RankParts rank_parts_;                 // of these
  RankShares rank_shares_;               // of steps of many rows
  // By instance: the processor that takes tile 0; products begin behind the one before.
  std::vector<int32_t> bases_;
  int32_t next_base_ = 0, instance_count_ = 0, skipped_count_ = 0;
  // In steps of kFewRows tokens no product has more rows.
  bool leaves_scratch_ = true;
  int32_t wide_from_ = INT32_MAX;
  uint64_t partial_bytes_ = 0, arrival_words_ = 0;
  uint64_t channel_counters_ = 0, counters_ = 0, borders_offset_ = 0, heads_offset_ = 0, aux_ = 0;
  uint64_t tickets_ = 0;
  uint64_t lamport_state_ = 0, lamport_rows_ = 0, parts_ = 0, shares_ = 0;
  uint64_t partials_ = 0, arrivals_ = 0, attention_partials_ = 0, attention_arrivals_ = 0;
  uint64_t table_bytes_ = 0, arena_bytes_ = 0;
};

}  // namespace ark::cuda

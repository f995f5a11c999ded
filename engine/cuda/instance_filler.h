// Fills the per-instance tables of a rank: operands, sizes, waits, messages.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "engine/cuda/make_image.h"
#include "engine/cuda/phase_operands.h"
#include "engine/program/unroll.h"

namespace ark::cuda {

class InstanceFiller {
 public:
  InstanceFiller(const RankImage& image, const RankPlaces& places);
  void run();

  // Those of steps that tell: where some do nothing then, whose counters `skipped` has.
  std::vector<Instance> instances, few_instances;
  std::vector<u64> skipped;
  std::vector<Wait> waits;
  std::vector<Message> messages;
  std::vector<Size> aux;        // [instances][kAuxSizes]
  std::vector<Stream> streams;  // of the instances that are matrix products

 private:
  void fill(std::size_t number, Instance& to);
  void fill_quiet();
  void fill_few();
  void fill_waits(std::size_t number, Instance& to);
  void fill_messages(Instance& to);
  void fill_operands(std::size_t number, Instance& to);
  void fill_appended(Instance& to);
  PhaseOperands fill_taken_up(std::size_t instance, Instance& to);
  void fill_shared(std::size_t stream, Instance& to);
  void fill_rank_sum(std::size_t instance, Instance& to);

  uint64_t address(BufferId buffer) const;
  uint64_t lamport_place(int64_t floats) const;
  void fill_sums(std::size_t stream, Instance& to) const;
  Wait wait_for(std::size_t instance) const;

  const RankImage& image_;
  const RankPlaces& places_;
  const Program& program_;
  const std::vector<ark::Instance> schedule_;
  std::vector<uint32_t> messages_;            // by channel: of a step
  std::vector<uint32_t> ordinals_;            // by channel: so far
  std::size_t stream_ = 0;                    // of the next matrix product
  std::map<int32_t, std::size_t> rank_sums_;  // by norm: the sum before it that it takes up
  // Of the instance being filled.
  const Phase* phase_ = nullptr;
  std::optional<PhaseOperands> operands_;
};

}  // namespace ark::cuda

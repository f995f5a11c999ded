// Fills the per-instance tables of a rank: operands, sizes, waits, messages.
#pragma once

#include <string>
#include <vector>

#include "engine/cuda/make_image.h"
#include "engine/program/unroll.h"

namespace ark::cuda {

class InstanceFiller {
 public:
  InstanceFiller(const RankImage& image, const RankPlaces& places);
  void run();

  std::vector<Instance> instances;
  std::vector<Wait> waits;
  std::vector<Message> messages;
  std::vector<Size> aux;             // [instances][kAuxSizes]
  std::vector<Size> rows_of_stream;  // by stream

 private:
  struct Operands {
    std::vector<BufferId> ids;  // kNone: absent
    const Buffer* get(std::size_t i) const;
    const Program* program;
  };
  void fill(std::size_t number, Instance& to);
  void fill_waits(std::size_t number, Instance& to);
  void fill_messages(Instance& to);
  void fill_sizes(const Variant& variant, std::size_t number, Instance& to);
  void fill_attention(int32_t variant, Instance& to);
  void fill_pointwise(std::size_t number, Instance& to);
  void fill_reduce(Instance& to);
  void fill_concat(const Variant& variant, Instance& to);
  void fill_copy(const Variant& variant, Instance& to);

  uint64_t address(BufferId buffer) const;
  const Buffer& buffer(std::size_t operand) const;
  Size size(ValId val) const;
  Size dim(std::size_t operand, std::size_t axis) const;  // axis from the end if >= rank: see dim_back
  Size last_dim(std::size_t operand) const;
  // Sizes whose product is the product of the dims [first, last) of an operand, into to[0..3].
  void product(std::size_t operand, std::size_t first, std::size_t last, Size* to) const;
  // The same as one size; refuses where there is none.
  Size one_size(std::size_t operand, std::size_t first, std::size_t last, const char* what) const;
  Wait phase_wait(PhaseId phase, int64_t instance) const;
  [[noreturn]] void refuse(const std::string& why) const;

  const RankImage& image_;
  const RankPlaces& places_;
  const Program& program_;
  const std::vector<ark::Instance> schedule_;
  std::vector<int32_t> trips_;      // by phase
  std::vector<uint32_t> messages_;  // by channel: of a step
  std::vector<uint32_t> ordinals_;  // by channel: so far
  int32_t last_attention_ = -1;     // instance
  std::size_t stream_ = 0;          // of the next matrix product
  // Of the instance being filled.
  const Phase* phase_ = nullptr;
  int32_t trip_ = 0;
  std::vector<BufferId> ids_;
};

}  // namespace ark::cuda

// Several sequences of one model, awaited together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "server/session/generation.h"

namespace ark::session {

// Owned by one thread.
class Batch {
 public:
  explicit Batch(Model& model) : model_(model) {}
  void submit(schedule::GenerateRequest request, const TextOptions& options);

  // Calls `take(index, piece)` for what comes, until all are done: then true. Asks `give_up` between waits; false
  // when it says so. Throws what Generation::advance throws.
  bool run(const std::function<bool()>& give_up, const std::function<void(std::size_t, Piece)>& take);

  void mark_sent(std::chrono::nanoseconds blocked);  // of all

  const Generation& at(std::size_t index) const { return *sequences_[index]; }
  std::size_t size() const { return sequences_.size(); }
  int64_t generated() const;  // tokens of all sequences

 private:
  Model& model_;
  std::vector<std::unique_ptr<Generation>> sequences_;
};

// The seed of sequence `index` of a request: reproducible if one is given, else random.
uint64_t seed_of(const std::optional<uint64_t>& seed, std::size_t index);

}  // namespace ark::session

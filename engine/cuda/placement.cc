#include "engine/cuda/placement.h"

#include <algorithm>

#include "base/index.h"

namespace ark::cuda {
namespace {

// Of one that is found, the tiles that are looked at: a step of one token has the first one alone, so that it weighs
// most.
constexpr int64_t kLookedAt = 64;
double weight_of_tile(int64_t tile) { return 1.0 / static_cast<double>(1 + tile); }

// What a processor costs that has a tile of an instance behind, for which it would be late; of one that is needed,
// where it is hardly later than what others have to tell it; of another one just before, at whose side this one could
// run. And processor 0, which opens and closes steps. Fitted: replays of Llama-1B and GPT-2 in batches of 1 to 32 are
// shortest.
constexpr double kBehind = 4, kNeeded = 1, kBeside = 8, kBorders = 1;

class Placer {
 public:
  Placer(std::span<Placed> all, const std::vector<std::vector<int32_t>>& needed, int32_t processors)
      : all_(all), needed_(needed), processors_(processors), takers_(all.size()), is_found_(all.size()) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (const int32_t n : needed[i]) takers_[at(n)].push_back(i);
    }
  }

  void run() {
    int32_t before = kNone;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].base == Placed::kNothing) continue;
      if (all_[i].base == kNone) all_[i].base = best(i, before), is_found_[i] = true;
      before = static_cast<int32_t>(i);
    }
  }

 private:
  int32_t best(std::size_t i, int32_t before) const {
    std::vector<double> cost(at(processors_));
    cost[0] += kBorders;
    for (const std::size_t j : takers_[i]) add(j, kBehind, cost);
    for (const int32_t n : needed_[i]) add(at(n), kNeeded, cost);
    if (before != kNone && std::ranges::count(needed_[i], before) == 0) add(at(before), kBeside, cost);
    int32_t found = 0;
    double least = 0;
    for (int32_t base = 0; base < processors_; ++base) {
      double all = 0;
      for (int64_t t = 0; t < std::min<int64_t>(kLookedAt, processors_); ++t)
        all += weight_of_tile(t) * cost[at((base + t) % processors_)];
      if (base == 0 || all < least) least = all, found = base;
    }
    return found;
  }

  // For processors that have tiles of instance `i`.
  void add(std::size_t i, double weight, std::vector<double>& cost) const {
    if (all_[i].base < 0) return;
    for (const int64_t tiles : all_[i].tiles) {
      const int64_t count = is_found_[i] ? std::min<int64_t>(kLookedAt, processors_ / 2) : tiles;
      if (count >= processors_) continue;  // all have one
      for (int64_t t = 0; t < count; ++t) cost[at((all_[i].base + t) % processors_)] += weight / 2;
    }
  }

  const std::span<Placed> all_;
  const std::vector<std::vector<int32_t>>& needed_;
  const int32_t processors_;
  std::vector<std::vector<std::size_t>> takers_;  // by instance: who needs it
  std::vector<bool> is_found_;                    // by instance: whether its base was
};

}  // namespace

void place(std::span<Placed> all, const std::vector<std::vector<int32_t>>& needed, int32_t processors) {
  Placer(all, needed, processors).run();
}

}  // namespace ark::cuda

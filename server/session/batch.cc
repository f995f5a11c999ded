#include "server/session/batch.h"

#include "base/random.h"

namespace ark::session {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 50ms;  // between two looks at whether to give up

// splitmix64 (Steele, Lea, Flood 2014): one well-mixed word per input.
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

void Batch::submit(schedule::GenerateRequest request, const TextOptions& options) {
  sequences_.push_back(std::make_unique<Generation>(model_, std::move(request), options));
}

bool Batch::run(const std::function<bool()>& give_up, const std::function<void(std::size_t, Piece)>& take) {
  for (;;) {
    // Only the first that still runs is waited for; the others get their tokens in the same steps.
    bool first = true;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      if (sequences_[i]->done()) continue;
      Piece piece = sequences_[i]->advance(first ? kPatience : 0ms);
      first = false;
      if (sequences_[i]->done() || !piece.ids.empty() || !piece.text.empty() || !piece.prompt.empty())
        take(i, std::move(piece));
    }
    if (first) return true;
    if (give_up()) return false;
  }
}

void Batch::mark_sent(std::chrono::nanoseconds blocked) {
  for (const auto& sequence : sequences_) sequence->mark_sent(blocked);
}

int64_t Batch::generated() const {
  int64_t sum = 0;
  for (const auto& sequence : sequences_) sum += sequence->generated();
  return sum;
}

uint64_t seed_of(const std::optional<uint64_t>& seed, std::size_t index) {
  if (seed) return index == 0 ? *seed : mixed(*seed ^ mixed(index));
  return random_word();
}

}  // namespace ark::session

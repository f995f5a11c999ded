#include "dma/preflight.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "dma/blob.h"
#include "dma/message.h"

namespace ark::dma {
namespace {

constexpr uint64_t kLong = 64 << 10;
constexpr int64_t kAllNs = 400'000'000, kPairNs = 50'000'000;  // that measuring may take: all pairs, one
constexpr int kPings = 32, kBursts = 4, kBurst = 16;
constexpr size_t kMostListed = 8, kFewest = 3;  // pairs by name; of which one may be far behind the others
constexpr double kFar = 4, kFarUs = 50;

// What a message asks its receiver to do, in its first byte.
enum class Ask : uint8_t { kAnswer, kNothing, kEnd };

std::string named(int a, int b) {
  return "ranks " + std::to_string(std::min(a, b)) + " and " + std::to_string(std::max(a, b));
}

// One rank's part in the trial of one pair.
class Trial {
 public:
  Trial(Group& group, int peer, uint32_t channel, Deadline deadline)
      : group_(group),
        peer_(peer),
        sender_(group.sender(peer, channel)),
        receiver_(group.receiver(peer, channel)),
        context_{&group.abort(), deadline, {}, nullptr},
        bytes_(kLong) {
    fill(bytes_, group.rank());
  }

  Pair lead(int64_t budget) {
    send(Ask::kAnswer, kLong);  // both are here, and bytes arrive as they are
    expect_pattern();
    Pair pair{group_.rank(), peer_, std::string(group_.transport(peer_)), 0, 0};
    const int64_t began = steady_ns();
    int64_t least = INT64_MAX;
    for (int i = 0; i < kPings && (i == 0 || steady_ns() - began < budget / 2); ++i) {
      const int64_t from = steady_ns();
      send(Ask::kAnswer, 8);
      take();
      least = std::min(least, steady_ns() - from);
    }
    pair.latency_us = static_cast<double>(least) / 2e3;
    for (int i = 0; i < kBursts && (i == 0 || steady_ns() - began < budget); ++i) {
      const int64_t from = steady_ns();
      for (int n = 1; n <= kBurst; ++n) send(n < kBurst ? Ask::kNothing : Ask::kAnswer, kLong);
      take();
      pair.gigabytes_per_s = std::max(pair.gigabytes_per_s, static_cast<double>(kBurst * kLong) /
                                                                static_cast<double>(steady_ns() - from));
    }
    send(Ask::kEnd, 8);
    return pair;
  }

  void follow() {
    expect_pattern();
    send(Ask::kNothing, kLong);
    for (Ask ask = Ask::kAnswer; ask != Ask::kEnd;) {
      ask = take();
      if (ask == Ask::kAnswer) send(Ask::kNothing, 8);
    }
  }

 private:
  // No two neighbours alike, nor two ranks.
  static void fill(std::span<std::byte> bytes, int rank) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 256 + rank * 7);
  }
  void send(Ask ask, size_t bytes) {
    bytes_[0] = static_cast<std::byte>(ask);
    check(sender_.send(std::span(bytes_).first(bytes), context_));
  }
  Ask take() {
    std::span<const std::byte> message;
    check(receiver_.receive(message, context_));
    if (message.empty()) fail("an empty message came");
    const auto ask = static_cast<Ask>(message[0]);
    check(receiver_.release(context_));
    return ask;
  }
  void expect_pattern() {
    std::span<const std::byte> message;
    check(receiver_.receive(message, context_));
    std::vector<std::byte> pattern(kLong);
    fill(pattern, peer_);
    if (message.size() != kLong || !std::ranges::equal(message.subspan(1), std::span(pattern).subspan(1)))
      fail("what rank " + std::to_string(group_.rank()) + " received is not what was sent");
    check(receiver_.release(context_));
  }
  void check(const Fault& fault) {
    if (!fault) return;
    if (const std::string trouble = group_.trouble(); !trouble.empty())
      throw Error(Code::kUnavailable, trouble);
    fail(fault.text());
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(Code::kUnavailable, named(group_.rank(), peer_) + " do not reach each other by " +
                                        std::string(group_.transport(peer_)) + ": " + why);
  }

  Group& group_;
  const int peer_;
  MessageSender sender_;
  MessageReceiver receiver_;
  const WaitContext context_;
  std::vector<std::byte> bytes_;
};

// With whom a rank is paired in each round of a tournament of `players`, an even number.
int partner(int rank, int round, int players) {
  const int fixed = players - 1;
  if (rank == fixed) return round;
  return rank == round ? fixed : ((2 * round - rank) % fixed + fixed) % fixed;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", value < 0.095 ? 3 : value < 9.95 ? 1 : 0, value);
  return text;
}

std::string range_of(std::span<const Pair* const> pairs, double Pair::*figure, const char* unit) {
  const auto [least, most] = std::ranges::minmax(pairs, {}, [&](const Pair* pair) { return pair->*figure; });
  const std::string from = number(least->*figure), to = number(most->*figure);
  return (from == to ? from : from + " to " + to) + " " + unit;
}

double median(std::span<const Pair* const> pairs, double Pair::*figure) {
  std::vector<double> all;
  for (const Pair* pair : pairs) all.push_back(pair->*figure);
  std::ranges::nth_element(all, all.begin() + std::ssize(all) / 2);
  return all[all.size() / 2];
}

// By what carries them, in the order of their first pairs.
std::vector<std::vector<const Pair*>> by_transport(std::span<const Pair> pairs) {
  std::vector<std::vector<const Pair*>> all;
  for (const Pair& pair : pairs) {
    const auto same =
        std::ranges::find_if(all, [&](const auto& group) { return group[0]->transport == pair.transport; });
    (same == all.end() ? all.emplace_back() : *same).push_back(&pair);
  }
  return all;
}

}  // namespace

ChannelSpec preflight_channel(Priority priority) {
  return {.name = "preflight", .priority = priority, .slots = 2, .slot_bytes = message_slot_bytes(kLong)};
}

std::vector<Pair> preflight(Group& group, uint32_t channel, Deadline deadline) {
  const int size = group.size(), players = size + size % 2, rounds = players - 1;
  const int64_t budget = std::min(kPairNs, kAllNs / std::max(1, rounds));
  BlobWriter own;
  for (int round = 0; round < rounds; ++round) {
    const int peer = partner(group.rank(), round, players);
    if (peer >= size) continue;
    Trial trial(group, peer, channel, deadline);
    if (peer < group.rank()) {
      trial.follow();
      continue;
    }
    const Pair pair = trial.lead(budget);
    own.number(peer).text(pair.transport);
    own.number(static_cast<int64_t>(pair.latency_us * 1e3));
    own.number(static_cast<int64_t>(pair.gigabytes_per_s * 1e6));
  }
  std::vector<Pair> pairs;
  const std::vector<std::string> blobs = group.bootstrap().all_gather(own.take(), deadline);
  for (int rank = 0; rank < size; ++rank) {
    BlobReader blob(blobs[rank], "rank " + std::to_string(rank) + ": its pairs");
    for (int higher = rank + 1; higher < size; ++higher) {
      Pair pair{rank, blob.number<int>(), escaped(blob.text(), 32), 0, 0};
      pair.latency_us = static_cast<double>(blob.number<int64_t>()) / 1e3;
      pair.gigabytes_per_s = static_cast<double>(blob.number<int64_t>()) / 1e6;
      if (pair.high <= rank || pair.high >= size) blob.malformed("name no ranks");
      pairs.push_back(std::move(pair));
    }
    blob.end();
  }
  std::ranges::sort(pairs, {}, [](const Pair& pair) { return std::pair(pair.low, pair.high); });
  return pairs;
}

std::string text_of(std::span<const Pair> pairs) {
  std::string text;
  for (const std::vector<const Pair*>& all : by_transport(pairs)) {
    text += (text.empty() ? "by " : "; by ") + all[0]->transport + " ";
    for (size_t i = 0; i < all.size() && all.size() <= kMostListed; ++i)
      text += (i == 0 ? "" : ", ") + std::to_string(all[i]->low) + "-" + std::to_string(all[i]->high);
    if (all.size() > kMostListed) text += std::to_string(all.size()) + " pairs";
    text +=
        ": " + range_of(all, &Pair::latency_us, "us") + ", " + range_of(all, &Pair::gigabytes_per_s, "GB/s");
  }
  return text;
}

std::vector<std::string> outliers(std::span<const Pair> pairs) {
  std::vector<std::string> lines;
  for (const std::vector<const Pair*>& all : by_transport(pairs)) {
    if (all.size() < kFewest) continue;
    const double usual_us = median(all, &Pair::latency_us), usual = median(all, &Pair::gigabytes_per_s);
    for (const Pair* pair : all) {
      if (pair->latency_us <= kFar * usual_us + kFarUs && pair->gigabytes_per_s * kFar >= usual) continue;
      lines.push_back(named(pair->low, pair->high) + " are slow to reach each other by " + pair->transport +
                      ": " + number(pair->latency_us) + " us and " + number(pair->gigabytes_per_s) +
                      " GB/s, where " + number(usual_us) + " us and " + number(usual) +
                      " GB/s are usual; look at the link between them, or at who else is busy there");
    }
  }
  return lines;
}

}  // namespace ark::dma

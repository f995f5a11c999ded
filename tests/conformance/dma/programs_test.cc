// Random programs over every transport: messages of any size in parts, over channels of any number of slots between all
// ranks, sent and received in any order that slots allow. ARK_FULL=1: ten thousand of them over each.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/conformance/dma/backend.h"
#include "tests/fixtures.h"

namespace ark::dma::test {
namespace {

constexpr uint64_t kUnit = 4;  // bytes that lengths and offsets are multiples of on posted links

struct Event {
  bool sends;
  int from, to;
  uint32_t channel;
  uint64_t message;
  std::vector<uint64_t> parts;  // where they end in the slot, ascending
};

struct Plan {
  int ranks;
  EndpointSpec spec;
  std::vector<std::vector<Event>> programs;  // in an order in which nothing waits for what comes later
};

uint64_t below(std::mt19937& random, uint64_t n) { return random() % n; }

// What has been sent and received over one channel from one rank to another.
struct Progress {
  uint64_t sent = 0, received = 0;
  std::vector<std::vector<uint64_t>> parts = {};  // of each message that was sent
};

Plan random_plan(uint32_t seed, int programs) {
  std::mt19937 random(seed);
  Plan plan{2 + static_cast<int>(below(random, 3)), {}, {}};
  for (uint64_t i = 0, n = 1 + below(random, 3); i < n; ++i)
    plan.spec.channels.push_back({.name = "channel " + std::to_string(i),
                                  .priority = below(random, 2) ? Priority::kBulk : Priority::kDecode,
                                  .slots = 1 + static_cast<uint32_t>(below(random, 5)),
                                  .slot_bytes = 64 * (1 + below(random, 20))});
  const uint64_t wraps[] = {0, UINT64_MAX - below(random, 100), UINT32_MAX - below(random, 100)};
  plan.spec.first_count = wraps[below(random, 3)];
  const auto ranks = static_cast<std::size_t>(plan.ranks), channels = plan.spec.channels.size();
  std::vector<Progress> all(ranks * ranks * channels);
  for (int p = 0; p < programs; ++p) {
    std::vector<Event>& program = plan.programs.emplace_back();
    const uint64_t length = 1 + below(random, 60);
    for (uint64_t step = 0; step < length; ++step) {
      const std::size_t which = below(random, all.size());
      const auto channel = static_cast<uint32_t>(which % channels);
      const int from = static_cast<int>(which / channels % ranks),
                to = static_cast<int>(which / channels / ranks);
      if (from == to) continue;
      Progress& progress = all[which];
      const ChannelSpec& spec = plan.spec.channels[channel];
      const bool is_full = progress.sent - progress.received == spec.slots;
      if (!is_full && (progress.sent == progress.received || below(random, 2))) {
        std::vector<uint64_t> parts(1 + below(random, 3));
        for (uint64_t& end : parts) end = below(random, spec.slot_bytes / kUnit + 1) * kUnit;
        std::sort(parts.begin(), parts.end());
        program.push_back({true, from, to, channel, progress.sent++, parts});
        progress.parts.push_back(std::move(parts));
      } else {
        const uint64_t message = progress.received++;
        program.push_back({false, from, to, channel, message, progress.parts[message]});
      }
    }
  }
  return plan;
}

uint32_t word_of(const Event& event, uint64_t at) {
  return static_cast<uint32_t>((event.message * 31 + event.channel * 7 + static_cast<uint64_t>(event.from)) *
                                   2654435761u +
                               at * 40503u);
}

// What rank does with its part of one program. `arrivals`: of all channels to this rank so far.
class Player {
 public:
  Player(Group& group, const Plan& plan, const WaitContext& context)
      : group_(group),
        context_(context),
        arrivals_(static_cast<std::size_t>(plan.ranks) * plan.spec.channels.size()),
        channels_(plan.spec.channels.size()) {}

  Fault play(const std::vector<Event>& program) {
    for (const Event& event : program) {
      Fault fault;
      if (event.sends && event.from == group_.rank()) fault = send(event);
      if (!event.sends && event.to == group_.rank()) fault = receive(event);
      if (fault) return fault;
    }
    return {};
  }

 private:
  Fault send(const Event& event) {
    const Sender to = group_.sender(event.to, event.channel);
    if (Fault fault = to.acquire(event.message, context_)) return fault;
    std::byte* const slot = to.slot(event.message);
    uint64_t begin = 0;
    for (const uint64_t end : event.parts) {
      for (uint64_t at = begin; at < end; at += kUnit) {
        const uint32_t word = word_of(event, at);
        std::memcpy(slot + at, &word, sizeof word);
      }
      if (Fault fault = to.commit(event.message, begin, end - begin, context_)) return fault;
      begin = end;
    }
    return {};
  }

  Fault receive(const Event& event) {
    const Receiver from = group_.receiver(event.from, event.channel);
    uint64_t& arrivals = arrivals_[static_cast<std::size_t>(event.from) * channels_ + event.channel];
    arrivals += event.parts.size();
    if (Fault fault = from.wait(arrivals, context_)) return fault;
    const std::byte* const slot = from.slot(event.message);
    for (uint64_t at = 0; at < event.parts.back(); at += kUnit) {
      uint32_t word;
      std::memcpy(&word, slot + at, sizeof word);
      EXPECT_EQ(word, word_of(event, at))
          << "byte " << at << " of message " << event.message << " from rank " << event.from;
      if (word != word_of(event, at)) break;
    }
    return from.release(context_);
  }

  Group& group_;
  const WaitContext& context_;
  std::vector<uint64_t> arrivals_;
  std::size_t channels_;
};

TEST_P(Conformance, RandomProgramsGiveWhatWasSent) {
  constexpr int kTogether = 20;  // programs of one group, which goes on where the one before ended
  for (int i = 0, n = ark::test::rounds(2, 500); i < n && !HasFailure(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(i));
    const Plan plan = random_plan(static_cast<uint32_t>(i), kTogether);
    auto groups = make_groups(plan.ranks, plan.spec);
    run_ranks(groups, [&](Group& group, const WaitContext& context) -> Fault {
      Player player(group, plan, context);
      for (const auto& program : plan.programs)
        if (Fault fault = player.play(program)) return fault;
      return {};
    });
  }
}

}  // namespace
}  // namespace ark::dma::test

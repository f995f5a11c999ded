// Sums on arrival over every transport, with faults and without: whoever adds, equal bytes, and all processors of a
// rank agree on who did.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>

#include "dma/reduce_on_arrival.h"
#include "tests/conformance/dma/backend.h"

namespace ark::dma::test {
namespace {

constexpr int kAdders = 2;             // of a rank; each sends and adds its half
constexpr uint64_t kSumsEach = 3;      // a round: an odd number, so that slots change places
constexpr uint64_t kMostFloats = 300;  // floats
constexpr uint64_t kSumRounds = 12;

uint64_t floats_of(uint64_t number) { return number % 7 == 3 ? 0 : 1 + number * 37 % kMostFloats; }

float term(int rank, uint64_t number, uint64_t i) {
  return 1.0f / static_cast<float>(1 + rank * 31 + static_cast<int>(number % 100) * 7 + static_cast<int>(i));
}

// (0 + 1) + (2 + 3), and so on: the upper half is never the larger one.
float tree(const float* const* parts, int first, int last, uint64_t i) {
  if (last - first == 1) return parts[first][i];
  const int middle = first + (last - first + 1) / 2;
  return tree(parts, first, middle, i) + tree(parts, middle, last, i);
}

void add_tree(const void*, const float* const* parts, int count, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] = tree(parts, 0, count, static_cast<uint64_t>(i));
}

float expected(int ranks, uint64_t number, uint64_t i) {
  std::vector<float> values;
  for (int rank = 0; rank < ranks; ++rank) values.push_back(term(rank, number, i));
  while (values.size() > 1) {  // of 2, 3 and 4 parts: neighbours, level by level
    std::vector<float> next;
    for (size_t v = 0; v < values.size(); v += 2)
      next.push_back(v + 1 < values.size() ? values[v] + values[v + 1] : values[v]);
    values = next;
  }
  return values[0];
}

// One rank that makes the sums, as programs do.
class Summing {
 public:
  Summing(Group& group, SumsBy by, Adder adder = {add_tree, nullptr}) : group_(group) {
    const int last = group.size() - 1 == group.rank() ? group.rank() - 1 : group.size() - 1;
    std::vector<ArrivalSums::Sum> sums(kSumsEach);
    for (uint64_t s = 0; s < kSumsEach; ++s) {
      for (int rank = 0; rank < group.size(); ++rank) {
        if (rank == group.rank()) {
          const Sender to = group.sender(last, 0);
          sums[s].parts.push_back(
              ArrivalSums::Part::of(to, group.endpoint().pump().taken(to.route), s, kSumsEach, kAdders));
          continue;
        }
        sums[s].parts.push_back(ArrivalSums::Part::of(group.receiver(rank, 0), s, kSumsEach, kAdders));
        sums[s].counts_arrivals = sums[s].counts_arrivals && group.endpoint().counts_arrivals(rank);
      }
    }
    sums_ = std::make_unique<ArrivalSums>(std::move(sums), adder, by);
    group.endpoint().pump().look_after(sums_.get());
  }
  ~Summing() { group_.endpoint().pump().look_after(nullptr); }

  // One processor, all rounds.
  Fault run(int processor, const WaitContext& context) {
    Foresight foresight(kSumsEach);
    for (uint64_t round = 0; round < kSumRounds; ++round) {
      if (Fault fault = begin(round, processor, context)) return fault;
      for (uint64_t s = 0; s < kSumsEach; ++s)
        if (Fault fault = exchange(round, s, processor, context, foresight)) return fault;
      through_.raise();
    }
    return {};
  }

  // By number of the sum: who made it, as each processor has seen it.
  std::vector<int> by_pump[kAdders];
  std::vector<float> result;

 private:
  Fault begin(uint64_t round, int processor, const WaitContext& context) {
    const auto number = static_cast<uint32_t>(round);
    if (processor != 0)
      return wait_reached(opened_, number + 1, {.what = "leader", .processor = processor}, context);
    if (Fault fault = wait_reached(through_, number * kAdders, {.what = "processors"}, context)) return fault;
    for (uint64_t s = 0; s < kSumsEach; ++s)
      sums_->open(s, round, static_cast<int64_t>(floats_of(round * kSumsEach + s)));
    result.resize((round + 1) * kSumsEach * kMostFloats);
    for (auto& by : by_pump) by.resize((round + 1) * kSumsEach);
    opened_.raise();
    return {};
  }

  Fault exchange(uint64_t round, uint64_t s, int processor, const WaitContext& context,
                 Foresight& foresight) {
    const uint64_t number = round * kSumsEach + s, floats = floats_of(number);
    const uint64_t begin = floats * static_cast<uint64_t>(processor) / kAdders,
                   end = floats * static_cast<uint64_t>(processor + 1) / kAdders;
    // Nobody contributes to a message before all have to the last one.
    if (Fault fault =
            wait_reached(sent_, static_cast<uint32_t>(number * kAdders), {.what = "phase"}, context))
      return fault;
    float mine[kMostFloats];
    for (uint64_t i = 0; i < floats; ++i) mine[i] = term(group_.rank(), number, i);
    for (int peer = 0; peer < group_.size(); ++peer) {
      if (peer == group_.rank()) continue;
      const Sender to = group_.sender(peer, 0);
      if (Fault fault = to.acquire(number, context, kAdders)) return fault;
      const uint64_t from = begin * sizeof(float), bytes = (end - begin) * sizeof(float);
      std::memcpy(to.slot(number) + from, mine + begin, bytes);
      if (Fault fault = to.commit(number, from, bytes, context)) return fault;
    }
    sent_.raise();
    if (!sums_->awaits_arrivals(s, round)) {
      for (int peer = 0; peer < group_.size(); ++peer) {
        if (peer == group_.rank()) continue;
        if (Fault fault = group_.receiver(peer, 0).wait((number + 1) * kAdders, context)) return fault;
      }
    }
    const WaitPoint at{.what = "message", .rank = group_.rank(), .processor = processor};
    if (Fault fault = sums_->await(s, round, at, context, foresight, s)) return fault;
    const auto* sum = reinterpret_cast<const float*>(sums_->in_place(s, round));
    by_pump[processor][number] = sum != nullptr;
    const float* parts[8];
    for (int rank = 0; rank < group_.size(); ++rank)
      parts[rank] = rank == group_.rank()
                        ? mine
                        : reinterpret_cast<const float*>(group_.receiver(rank, 0).slot(number));
    for (uint64_t i = begin; i < end; ++i)
      result[number * kMostFloats + i] = sum ? sum[i] : tree(parts, 0, group_.size(), i);
    for (int peer = 0; peer < group_.size(); ++peer) {
      if (peer == group_.rank()) continue;
      if (Fault fault = group_.receiver(peer, 0).release(context)) return fault;
    }
    return {};
  }

  Group& group_;
  std::unique_ptr<ArrivalSums> sums_;
  Counter32 opened_, through_, sent_;
};

class ArrivalSumsConformance : public Conformance {
 protected:
  std::vector<std::unique_ptr<Group>> make(int ranks) const {
    EndpointSpec spec;
    spec.channels = {{.name = "all-reduce", .slots = 2, .slot_bytes = kMostFloats * sizeof(float)}};
    return make_groups(ranks, spec);
  }
  static Fault run_all(Summing& summing, const WaitContext& context) {
    Fault faults[kAdders];
    {
      std::vector<std::jthread> threads;
      for (int p = 0; p < kAdders; ++p) threads.emplace_back([&, p] { faults[p] = summing.run(p, context); });
    }
    return faults[0] ? faults[0] : faults[1];
  }
};

TEST_P(ArrivalSumsConformance, WhoeverAddsGivesEqualBytes) {
  for (const int ranks : {2, 3, 4})
    for (const SumsBy by : {SumsBy::kDepth, SumsBy::kProcessors, SumsBy::kPump, SumsBy::kMixed}) {
      SCOPED_TRACE("ranks " + std::to_string(ranks) + " by " + std::to_string(static_cast<int>(by)));
      auto groups = make(ranks);
      std::vector<std::unique_ptr<Summing>> all;
      for (auto& group : groups) all.push_back(std::make_unique<Summing>(*group, by));
      run_ranks(groups, [&](Group& group, const WaitContext& context) {
        return run_all(*all[group.rank()], context);
      });
      for (const auto& rank : all) {
        ASSERT_EQ(rank->by_pump[0].size(), kSumRounds * kSumsEach);
        EXPECT_EQ(rank->by_pump[0], rank->by_pump[1]);
        const auto by_pump = std::count(rank->by_pump[0].begin(), rank->by_pump[0].end(), 1);
        if (by == SumsBy::kProcessors) {
          EXPECT_EQ(by_pump, 0);
        } else if (by == SumsBy::kPump) {
          EXPECT_EQ(by_pump, kSumRounds * kSumsEach);
        } else if (by == SumsBy::kMixed) {
          EXPECT_GT(by_pump, 0);
          EXPECT_LT(by_pump, kSumRounds * kSumsEach);
        }
        for (uint64_t number = 0; number < kSumRounds * kSumsEach; ++number)
          for (uint64_t i = 0; i < floats_of(number); ++i) {
            const float sum = expected(ranks, number, i);
            ASSERT_EQ(std::memcmp(&rank->result[number * kMostFloats + i], &sum, sizeof sum), 0)
                << number << " " << i;
          }
      }
      if (HasFailure()) return;
    }
}

// A pump is in the middle of a sum when all ends: it finishes, and only then are the sums given up.
TEST_P(ArrivalSumsConformance, AnAbortEndsWaitsAndNoSumThatHasBegun) {
  struct Gate {
    std::atomic<bool> entered{false}, opened{false}, has_left{false};
  };
  for (const SumsBy by : {SumsBy::kPump, SumsBy::kMixed}) {
    auto groups = make(3);
    Gate gate;
    const Adder slow{[](const void* context, const float* const*, int, float*, int64_t) {
                       Gate& gate = *static_cast<Gate*>(const_cast<void*>(context));
                       gate.entered = true;
                       while (!gate.opened) detail::blind_sleep(100'000);
                       gate.has_left = true;
                     },
                     &gate};
    std::vector<std::unique_ptr<Summing>> all;
    for (auto& group : groups)
      all.push_back(group->rank() == 0 ? std::make_unique<Summing>(*group, by, slow)
                                       : std::make_unique<Summing>(*group, by));
    Fault faults[3];
    {
      std::vector<std::jthread> threads;
      for (auto& group : groups)
        threads.emplace_back(
            [&, &group = *group] { faults[group.rank()] = run_all(*all[group.rank()], context_of(group)); });
      const Deadline deadline = soon();
      while (!gate.entered && !deadline.passed()) detail::blind_sleep(100'000);
      EXPECT_TRUE(gate.entered);
      for (auto& group : groups) group->abort().raise(AbortReason::kFault, 1);
    }
    for (const Fault& fault : faults) EXPECT_EQ(fault.kind, FaultKind::kAborted) << fault.text();
    EXPECT_FALSE(gate.has_left);
    std::jthread opens([&] {
      detail::blind_sleep(20'000'000);
      gate.opened = true;
    });
    all[0].reset();
    EXPECT_TRUE(gate.has_left) << "sums went while the pump was adding";
  }
}

std::vector<Backend> posted_backends() {
  std::vector<Backend> all = all_backends();
  std::erase_if(all, [](const Backend& backend) { return !backend.posted; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Dma, ArrivalSumsConformance, ::testing::ValuesIn(posted_backends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ark::dma::test

// How the engine uses channels, in small: one-shot all-reduce of tensor-parallel ranks, many steps, with
// inboxes double-buffered by step. Every rank adds in rank order, so all get equal bytes.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/conformance/dma/backend.h"

namespace ark::dma::test {
namespace {

class AllReduceConformance : public Conformance {};

constexpr int kRanks = 4;
constexpr int kProcessors = 2;    // per rank; each sends and adds its half
constexpr uint64_t kCount = 300;  // floats; halves of 150
constexpr uint64_t kSteps = 60;
constexpr uint64_t kPart = kCount / kProcessors;

float partial(int rank, uint64_t step, uint64_t i) {
  return 1.0f / static_cast<float>(1 + rank * 31 + static_cast<int>(step) * 7 + static_cast<int>(i));
}

// One processor of one rank: sends its part of the rank's partial sums to all, adds those of all.
Fault processor_steps(Group& group, int processor, Counter32& sent, std::vector<float>& sums,
                      const WaitContext& context) {
  const uint64_t first = processor * kPart, offset = first * sizeof(float);
  for (uint64_t step = 0; step < kSteps; ++step) {
    // The rank's own phase counter: nobody sends this step before all have sent the last one.
    const auto all_sent = static_cast<uint32_t>(step * kProcessors);
    if (Fault fault = wait_reached(sent, all_sent, {.what = "phase", .processor = processor}, context)) {
      return fault;
    }
    float mine[kPart];
    for (uint64_t i = 0; i < kPart; ++i) mine[i] = partial(group.rank(), step, first + i);
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == group.rank()) continue;
      const Sender to = group.sender(peer, 0);
      if (Fault fault = to.acquire(step, context, kProcessors)) return fault;
      std::memcpy(to.slot(step) + offset, mine, sizeof mine);
      if (Fault fault = to.commit(step, offset, sizeof mine, context)) return fault;
    }
    sent.raise();
    float* sum = &sums[step * kCount + first];
    std::fill(sum, sum + kPart, 0.0f);
    for (int rank = 0; rank < kRanks; ++rank) {
      float theirs[kPart];
      if (rank == group.rank()) {
        std::memcpy(theirs, mine, sizeof mine);
      } else {
        const Receiver from = group.receiver(rank, 0);
        if (Fault fault = from.wait((step + 1) * kProcessors, context)) return fault;
        std::memcpy(theirs, from.slot(step) + offset, sizeof theirs);
        if (Fault fault = from.release(context)) return fault;
      }
      for (uint64_t i = 0; i < kPart; ++i) sum[i] += theirs[i];
    }
  }
  return {};
}

TEST_P(AllReduceConformance, OneShotGivesEqualBytesOnAllRanks) {
  EndpointSpec spec;
  spec.channels = {{.name = "all-reduce", .slots = 2, .slot_bytes = kCount * sizeof(float)}};
  auto groups = make_groups(kRanks, spec);
  std::vector<std::vector<float>> sums(kRanks, std::vector<float>(kSteps * kCount));
  run_ranks(groups, [&](Group& group, const WaitContext& context) -> Fault {
    Fault faults[kProcessors];
    Counter32 sent;
    {
      std::vector<std::jthread> processors;
      for (int processor = 0; processor < kProcessors; ++processor) {
        processors.emplace_back([&, processor] {
          faults[processor] = processor_steps(group, processor, sent, sums[group.rank()], context);
        });
      }
    }
    return faults[0] ? faults[0] : faults[1];
  });
  std::vector<float> expected(kSteps * kCount);
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (uint64_t i = 0; i < kCount; ++i) {
      float sum = 0;
      for (int rank = 0; rank < kRanks; ++rank) sum += partial(rank, step, i);
      expected[step * kCount + i] = sum;
    }
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(std::memcmp(sums[rank].data(), expected.data(), expected.size() * sizeof(float)), 0) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Dma, AllReduceConformance, ::testing::ValuesIn(all_backends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ark::dma::test

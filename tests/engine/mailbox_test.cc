#include "engine/run/mailbox.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/error.h"

namespace ark::test {
namespace {

RunnerLimits limits() {
  return {.max_tokens = 8,
          .max_rows = 4,
          .max_slots = 4,
          .max_length = 64,
          .page_size = 4,
          .pages = 32,
          .vocabulary = 10};
}

StepDescriptor step_of(int32_t tag) {
  StepDescriptor step;
  step.tokens = {tag, kFeedbackToken, 3};
  step.sequences = {{0, 0, 2, 5}, {1, 2, 1, 0}};
  step.page_deltas = {{1, 2, 3}};
  step.page_copies = {{4, 5}};
  StepRow row;
  row.token = 2;
  row.slot = 1;
  row.sampling.seed = 0x123456789abcdef0;
  row.bias_count = 2;
  row.mask_words = 1;
  step.rows = {row};
  step.masks = {5};
  step.bias = {{7, 1.5f}, {8, -2.f}};
  return step;
}

TEST(Mailbox, RecordHoldsTheWholeDescriptor) {
  const StepCapacity capacity = StepCapacity::of(limits());
  Mailbox mailbox(capacity, 1);
  const StepDescriptor step = step_of(9);
  write_record(step, 1, capacity, mailbox.free_slot());
  mailbox.publish();
  const StepRecord& record = mailbox.record(1);
  EXPECT_EQ(record.step, 1u);
  EXPECT_LE(record.bytes, record_bytes(capacity));
  const auto equal = [](auto span, const auto& vector) {
    return span.size() == vector.size() && std::memcmp(span.data(), vector.data(), span.size_bytes()) == 0;
  };
  EXPECT_TRUE(equal(array_of<int32_t>(record, StepArray::kTokens), step.tokens));
  EXPECT_TRUE(equal(array_of<StepSequence>(record, StepArray::kSequences), step.sequences));
  EXPECT_TRUE(equal(array_of<PageDelta>(record, StepArray::kPageDeltas), step.page_deltas));
  EXPECT_TRUE(equal(array_of<PageCopy>(record, StepArray::kPageCopies), step.page_copies));
  EXPECT_TRUE(equal(array_of<StepRow>(record, StepArray::kRows), step.rows));
  const auto bias = array_of<BiasEntry>(record, StepArray::kBias);
  ASSERT_EQ(bias.size(), 2u);
  EXPECT_EQ(bias[1].token, 8);
  EXPECT_EQ(bias[1].value, -2.f);
  EXPECT_TRUE(equal(array_of<uint32_t>(record, StepArray::kMasks), step.masks));
}

TEST(Mailbox, RefusesMoreThanItHolds) {
  const StepCapacity capacity = StepCapacity::of(limits());
  Mailbox mailbox(capacity, 1);
  StepDescriptor step = step_of(1);
  step.tokens.resize(9);
  EXPECT_THROW(write_record(step, 1, capacity, mailbox.free_slot()), Error);
  for (uint64_t n = 1; n <= Mailbox::kDepth; ++n) {
    write_record(step_of(1), n, capacity, mailbox.free_slot());
    mailbox.publish();
  }
  EXPECT_THROW(mailbox.free_slot(), Error) << "the fifth step would overwrite the first";
  mailbox.done_counter(0).raise();
  EXPECT_NO_THROW(mailbox.free_slot());
}

// Host and loop as threads, thousands of steps through four slots: what arrives is what was posted, in order,
// and the result that comes back is the one of the same step.
TEST(Mailbox, HostAndLoopExchangeStepsAndResults) {
  const StepCapacity capacity = StepCapacity::of(limits());
  Mailbox mailbox(capacity, 1);
  constexpr uint64_t kSteps = 5000;
  std::jthread loop([&] {
    for (uint64_t n = 1; n <= kSteps; ++n) {
      ASSERT_FALSE(dma::wait_reached(mailbox.posted_counter(), n, {}, {}));
      const StepRecord& record = mailbox.record(n);
      RowRecord& row = mailbox.result_rows(n)[0];
      row = {};
      row.token = array_of<int32_t>(record, StepArray::kTokens)[0] + 1;
      row.has_logits = 1;
      for (int i = 0; i < capacity.vocabulary; ++i) mailbox.result_logits(n, 0)[i] = static_cast<float>(n);
      mailbox.done_counter(0).raise();
    }
  });
  uint64_t read = 0;
  const auto read_one = [&] {
    ASSERT_FALSE(mailbox.wait_done(++read, {}));
    const StepResult result = mailbox.read_result(read);
    ASSERT_EQ(result.rows[0].token, static_cast<int32_t>(read * 3 % 1000) + 1);
    ASSERT_EQ(result.rows[0].logits.back(), static_cast<float>(read));
  };
  for (uint64_t n = 1; n <= kSteps; ++n) {
    if (n > 3) read_one();
    write_record(step_of(static_cast<int32_t>(n * 3 % 1000)), n, capacity, mailbox.free_slot());
    mailbox.publish();
  }
  while (read < kSteps) read_one();
}

}  // namespace
}  // namespace ark::test

#include "engine/cpu/host_side.h"

#include <algorithm>
#include <cstring>

#include "engine/run/step_check.h"

namespace ark {
namespace {

constexpr std::chrono::milliseconds kLastWord{100};  // for loops whose waits have been ended

}  // namespace

void CpuExecutor::prepare(std::vector<RankSetup> ranks, const ExecutorOptions& options) {
  ARK_CHECK(ranks_.empty() && !ranks.empty(), "an executor is prepared once, with at least one rank");
  options_ = options;
  setups_ = std::move(ranks);
  capacity_ = StepCapacity::of(options.limits);
  mailbox_ = std::make_unique<Mailbox>(capacity_, static_cast<int>(setups_.size()));
  spin_ = dma::SpinPolicy::adapted(processors_here(*setups_[0].program, options));
  for (const RankSetup& setup : setups_) {
    flags_.push_back(setup.group ? &setup.group->abort() : &own_flag_);
  }
  for (std::size_t r = 0; r < setups_.size(); ++r) {
    ranks_.push_back(std::make_unique<Rank>(setups_[r], options_, *mailbox_, static_cast<int>(r)));
  }
  on_prepared();
}

uint64_t CpuExecutor::post(const StepDescriptor& step) {
  throw_if_failed();
  check_step(step, options_.limits, options_.max_items);
  write_record(step, mailbox_->posted() + 1, capacity_, mailbox_->free_slot());
  return publish();
}

uint64_t CpuExecutor::post_plain(const PlainStep& step) {
  throw_if_failed();
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    for (const Val& val : rank->program().vals) {
      const int64_t value = val.e.evaluate(step.symbols);
      if (value > val.max) {
        throw Error(Code::kInvalidArgument, "size " + escaped(val.e.str()) + " = " + std::to_string(value) +
                                                " is above the limit " + std::to_string(val.max) +
                                                " that the program was compiled for");
      }
    }
  }
  StepRecord record;
  record.step = mailbox_->posted() + 1;
  record.bytes = sizeof record;
  const std::span<std::byte> slot = mailbox_->free_slot();
  std::memcpy(slot.data(), &record, sizeof record);
  mailbox_->plain(record.step) = &step;
  return publish();
}

uint64_t CpuExecutor::post_record(std::span<const std::byte> bytes) {
  throw_if_failed();
  mailbox_->copy_record(bytes);
  return publish();
}

void CpuExecutor::read_cached(const CachePlace& place, std::span<float> to) {
  const KvPages pages = ranks_.at(place.rank)->kv_pages(place.pages);
  load_kv(pages.codec, pages.place(place.page, place.head, place.at), to.data(), std::ssize(to));
}

void CpuExecutor::write_cached(const CachePlace& place, std::span<const float> from) {
  const KvPages pages = ranks_.at(place.rank)->kv_pages(place.pages);
  store_kv(pages.codec, pages.place(place.page, place.head, place.at), from.data(), std::ssize(from));
}

int64_t CpuExecutor::page_bytes() const {
  int64_t bytes = 0;
  for (const std::unique_ptr<Rank>& rank : ranks_) bytes += rank->page_bytes();
  return bytes;
}

void CpuExecutor::read_page(int32_t page, std::span<std::byte> to) const {
  ARK_CHECK(std::ssize(to) == page_bytes(), "a page of another size");
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    rank->read_page(page, to.data());
    to = to.subspan(static_cast<std::size_t>(rank->page_bytes()));
  }
}

void CpuExecutor::write_page(int32_t page, std::span<const int32_t> tokens, std::span<const std::byte> from) {
  ARK_CHECK(std::ssize(from) == page_bytes(), "a page of another size");
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    rank->write_page(page, tokens, from.data());
    from = from.subspan(static_cast<std::size_t>(rank->page_bytes()));
  }
}

uint64_t CpuExecutor::publish() {
  mailbox_->publish();
  on_post();
  return mailbox_->posted();
}

std::optional<StepResult> CpuExecutor::poll(std::chrono::microseconds timeout) {
  throw_if_failed();
  if (polled_ == mailbox_->posted()) return std::nullopt;
  if (dma::Fault fault = await_step(polled_ + 1, timeout)) {
    throw_if_failed();
    if (fault.kind == dma::FaultKind::kDeadline) return std::nullopt;
    fail(*ranks_[0], fault);
    throw_if_failed();
  }
  StepResult result = mailbox_->read_result(++polled_);
  result.cost = cost_of_step(polled_);
  return result;
}

void CpuExecutor::abort(const std::string& why) { fail(why, dma::AbortReason::kShutdown); }

void CpuExecutor::fail(const std::string& why, dma::AbortReason reason, Code code, bool is_vague) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty() || (is_vague_ && !is_vague)) {
      failure_ = why.empty() ? "aborted" : why;
      failure_code_ = code;
      is_vague_ = is_vague;
    }
  }
  failed_.notify_all();
  for (dma::AbortFlag* flag : flags_) flag->raise(reason);
}

void CpuExecutor::fail(const Rank& rank, const dma::Fault& fault) {
  std::string why = fault.text();
  if (fault.at.phase >= 0) why += " in " + escaped(rank.program().phases[fault.at.phase].name);
  const auto reader =
      static_cast<int>(std::ranges::find(ranks_, &rank, &std::unique_ptr<Rank>::get) - ranks_.begin());
  const uint64_t step = mailbox_->done_count(reader) + 1;
  if (step <= mailbox_->posted_counter().load()) why = "step " + std::to_string(step) + ", " + why;
  // A peer's death, or what the pump gave up at, explains the waits that it ended.
  for (const RankSetup& setup : setups_) {
    if (!setup.group) continue;
    const dma::Fault given_up = setup.group->fault();
    const std::string cause = !setup.group->death().empty() ? setup.group->death()
                              : given_up                    ? given_up.text()
                                                            : "";
    if (!cause.empty()) why = cause + " (" + why + ")";
  }
  fail(why, dma::AbortReason::kFault, Code::kUnavailable, fault.at.phase < 0);
}

void CpuExecutor::throw_if_failed() {
  for (const RankSetup& setup : setups_) {
    if (setup.group && setup.group->abort().raised() && setup.group->dead_rank() >= 0) {
      await_failure();
      const char* when = polled_ < mailbox_->posted() ? " (in step " : " (before step ";
      fail(setup.group->death() + when + std::to_string(polled_ + 1) + ")", dma::AbortReason::kDeadRank);
    }
  }
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw Error(failure_code_, failure_);
}

// A death ends the loops' waits within a slice of their sleep; what they waited for in which step says more than the
// death alone.
void CpuExecutor::await_failure() {
  std::unique_lock lock(mutex_);
  if (polled_ < mailbox_->posted())
    failed_.wait_for(lock, kLastWord, [&] { return !failure_.empty() && !is_vague_; });
}

dma::WaitContext CpuExecutor::step_context(std::size_t rank) const {
  return {flags_[rank], dma::Deadline::after(options_.step_deadline), spin_};
}

}  // namespace ark

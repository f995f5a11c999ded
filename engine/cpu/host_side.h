// The host's half of the CPU executors: posting, polling, and one place for what went wrong.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/cpu/rank.h"
#include "engine/run/executor.h"

namespace ark {

class CpuExecutor : public HostExecutor {
 public:
  void prepare(std::vector<RankSetup> ranks, const ExecutorOptions& options) override;
  uint64_t post(const StepDescriptor& step) override;
  uint64_t post_plain(const PlainStep& step) override;
  std::span<const std::byte> posted_record() const override { return mailbox_->posted_record(); }
  uint64_t post_record(std::span<const std::byte> record) override;
  std::optional<StepResult> poll(std::chrono::microseconds timeout) override;
  void abort(const std::string& why) override;
  void read_cached(const CachePlace& place, std::span<float> to) override;
  void write_cached(const CachePlace& place, std::span<const float> from) override;
  int64_t page_bytes() const override;
  void read_page(int32_t page, std::span<std::byte> to) const override;
  void write_page(int32_t page, std::span<const int32_t> tokens, std::span<const std::byte> from) override;

 protected:
  // A step has been published.
  virtual void on_post() = 0;
  // Returns when step n is done (no fault), or why it is not: kDeadline after `timeout`.
  virtual dma::Fault await_step(uint64_t n, std::chrono::microseconds timeout) = 0;
  // After prepare().
  virtual void on_prepared() {}
  // Of step n, which is done and not yet polled; of each once, in order.
  virtual StepCost cost_of_step(uint64_t /*n*/) { return {}; }

  dma::AbortFlag& abort_flag(std::size_t rank) { return *flags_[rank]; }
  // Of the first rank of this process; null where the program has one rank.
  const dma::Group* group() const { return setups_[0].group; }
  // Keeps the first reason, and before one that is vague (of a wait outside all phases) the first that is not; ends all
  // waits. Any thread.
  void fail(const std::string& why, dma::AbortReason reason, Code code = Code::kUnavailable,
            bool is_vague = false);
  void fail(const Rank& rank, const dma::Fault& fault);
  // Throws Error(kUnavailable) if something has failed.
  void throw_if_failed();
  // For waits inside a step.
  dma::WaitContext step_context(std::size_t rank) const;

  ExecutorOptions options_;
  std::unique_ptr<Mailbox> mailbox_;
  std::vector<std::unique_ptr<Rank>> ranks_;

 private:
  uint64_t publish();
  void await_failure();

  std::vector<RankSetup> setups_;
  std::vector<dma::AbortFlag*> flags_;  // of the groups, or own_flag_
  dma::AbortFlag own_flag_;
  dma::SpinPolicy spin_;
  StepCapacity capacity_;
  uint64_t polled_ = 0;  // steps handed to the caller
  std::mutex mutex_;     // guards failure_ and its code
  std::condition_variable failed_;
  std::string failure_;
  bool is_vague_ = false;
  Code failure_code_ = Code::kUnavailable;
};

}  // namespace ark

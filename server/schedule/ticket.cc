#include "server/schedule/ticket.h"

namespace ark::schedule {
namespace {

const char* outcome_of(Finish how) {
  switch (how) {
    case Finish::kRunning:
      return "running";
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kFailed:
      return "failed";
  }
  return "";
}

}  // namespace

Ticket::Ticket(const GenerateRequest& request, RecordSink sink, Clock::time_point arrival)
    : times_{.queued = arrival},
      record_(std::make_shared<Record>(request.origin, static_cast<int32_t>(request.prompt.size()),
                                       times_.queued)),
      sink_(std::move(sink)) {}

Ticket::~Ticket() {
  if (!sink_) return;
  record_->close(outcome_of(state_), times_.scheduled, times_.cached_tokens, times_.preemptions);
  if (sent_ != Clock::time_point{}) record_->sent(sent_, blocked_);
  sink_(std::move(record_));
}

void Ticket::mark_sent(std::chrono::nanoseconds blocked) {
  std::lock_guard lock(mutex_);
  sent_ = Clock::now();
  blocked_ = blocked;
}

Finish Ticket::wait(std::vector<TokenEvent>& into, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return !events_.empty() || state_ != Finish::kRunning; });
  into.insert(into.end(), std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
  events_.clear();
  return state_;
}

Error Ticket::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void Ticket::push(TokenEvent event) {
  {
    std::lock_guard lock(mutex_);
    if (!event.is_prompt && times_.first_token == Clock::time_point{}) times_.first_token = Clock::now();
    events_.push_back(std::move(event));
  }
  changed_.notify_one();
}

void Ticket::finish(Finish how, Error error) {
  {
    std::lock_guard lock(mutex_);
    if (state_ != Finish::kRunning) return;
    state_ = how;
    error_ = std::move(error);
    times_.finished = Clock::now();
  }
  changed_.notify_all();
}

Ticket::Times Ticket::times() const {
  std::lock_guard lock(mutex_);
  return times_;
}
void Ticket::mark_scheduled() {
  std::lock_guard lock(mutex_);
  if (times_.scheduled == Clock::time_point{}) times_.scheduled = Clock::now();
}
void Ticket::mark_preempted() {
  std::lock_guard lock(mutex_);
  ++times_.preemptions;
}
void Ticket::mark_cached(int32_t tokens) {
  std::lock_guard lock(mutex_);
  times_.cached_tokens = tokens;
}
void Ticket::mark_drafts(int32_t right, int32_t wrong) {
  std::lock_guard lock(mutex_);
  times_.drafts_right += right;
  times_.drafts_wrong += wrong;
}

}  // namespace ark::schedule

#include "server/api/generation.h"

#include <algorithm>

namespace ark::api {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 50ms;  // between looks at the client's socket

double seconds(schedule::Ticket::Clock::time_point from, schedule::Ticket::Clock::time_point to) {
  return std::max(0.0, std::chrono::duration<double>(to - from).count());
}

}  // namespace

Generation::Generation(Model& model, schedule::GenerateRequest request, const TextOptions& options)
    : model_(model),
      options_(options),
      end_ids_(request.end_ids),
      prompt_tokens_(static_cast<int32_t>(request.prompt.size())),
      min_tokens_(request.min_tokens),
      want_scores_(request.top_logprobs >= 0),
      stops_(options.stop, options.include_stop) {
  if (const text::Tokenizer* tokenizer = model.tokenizer_or_null())
    detokenizer_.emplace(*tokenizer, options.skip_special);
  ticket_ = model.scheduler->submit(std::move(request));
}

Generation::~Generation() {
  if (done_) return;
  ticket_->cancel();
  ++model_.metrics.cancelled;
}

Piece Generation::advance(std::chrono::milliseconds timeout) {
  Piece piece;
  if (done_) return piece;
  std::vector<schedule::TokenEvent> events;
  const schedule::Finish state = ticket_->wait(events, timeout);
  if (state == schedule::Finish::kFailed || state == schedule::Finish::kCancelled) {
    done_ = true;
    ++model_.metrics.failed;
    http::HttpError failed(503, "the request cannot be finished: " + ticket_->error(), "",
                           "service_unavailable");
    failed.headers.emplace_back("Retry-After", "5");
    throw failed;
  }
  const int32_t before = generated_;
  for (schedule::TokenEvent& event : events) {
    if (done_) break;  // sampled after a stop string
    take(std::move(event), piece);
  }
  measure(static_cast<std::size_t>(generated_ - before));
  if (!done_ && state != schedule::Finish::kRunning) {
    if (detokenizer_) emit(detokenizer_->flush(), piece);
    if (!done_) {
      const std::string rest = stops_.flush();
      emitted_ += rest.size();
      piece.text += rest;
      finish(state == schedule::Finish::kStop);
    }
  }
  release(done_ && !stops_.stopped(), piece);
  return piece;
}

void Generation::take(schedule::TokenEvent event, Piece& piece) {
  if (event.is_prompt) {
    piece.prompt.push_back(std::move(event));
    return;
  }
  ++generated_;
  logprob_sum_ += event.logprob;
  piece.ids.push_back(event.token);
  const bool ends =
      generated_ >= min_tokens_ && std::find(end_ids_.begin(), end_ids_.end(), event.token) != end_ids_.end();
  const auto& eos = model_.served.end_ids;
  if (ends && std::find(eos.begin(), eos.end(), event.token) == eos.end()) stop_reason_ = event.token;
  const bool silent = !detokenizer_ || (ends && !options_.include_stop);
  const std::string text = silent ? std::string() : detokenizer_->push(event.token);
  const std::size_t begin = decoded_;
  decoded_ += text.size();
  if (want_scores_) held_.push_back({event.token, event.logprob, std::move(event.top), begin, decoded_});
  emit(text, piece);
}

void Generation::emit(std::string text, Piece& piece) {
  if (text.empty()) return;
  if (generated_ >= min_tokens_) text = stops_.push(text);  // before that, stop strings do not count
  emitted_ += text.size();
  piece.text += text;
  if (!stops_.stopped()) return;
  stop_reason_ = *stops_.matched();
  ticket_->cancel();
  finish(true);
}

void Generation::release(bool all, Piece& piece) {
  std::size_t count = 0;
  while (count < held_.size() &&
         (all || held_[count].end <= emitted_ || (done_ && held_[count].begin < emitted_)))
    ++count;
  piece.scores.insert(piece.scores.end(), std::make_move_iterator(held_.begin()),
                      std::make_move_iterator(held_.begin() + static_cast<std::ptrdiff_t>(count)));
  held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
}

void Generation::finish(bool stopped) {
  done_ = true;
  stopped_ = stopped;
  ModelMetrics& metrics = model_.metrics;
  ++(stopped ? metrics.stop : metrics.length);
  const schedule::Ticket::Times times = ticket_->times();
  metrics.end_to_end.observe(seconds(times.queued, schedule::Ticket::Clock::now()));
  if (times.scheduled != schedule::Ticket::Clock::time_point{})
    metrics.queue.observe(seconds(times.queued, times.scheduled));
  if (generated_ > 0) metrics.first_token.observe(seconds(times.queued, times.first_token));
}

// Several tokens that were found at once share the time since the one before them.
void Generation::measure(std::size_t tokens) {
  if (tokens == 0) return;
  const auto now = schedule::Ticket::Clock::now();
  if (last_token_ != schedule::Ticket::Clock::time_point{})
    model_.metrics.inter_token.observe(seconds(last_token_, now) / static_cast<double>(tokens),
                                       static_cast<int64_t>(tokens));
  last_token_ = now;
}

void Batch::submit(schedule::GenerateRequest request, const TextOptions& options) {
  sequences_.push_back(std::make_unique<Generation>(model_, std::move(request), options));
}

void Batch::run(const std::function<bool()>& client_gone,
                const std::function<void(std::size_t, Piece)>& take) {
  for (;;) {
    bool first =
        true;  // only the first that still runs is waited for; the others get their tokens in the same steps
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      if (sequences_[i]->done()) continue;
      Piece piece = sequences_[i]->advance(first ? kPatience : 0ms);
      first = false;
      if (sequences_[i]->done() || !piece.ids.empty() || !piece.text.empty() || !piece.prompt.empty())
        take(i, std::move(piece));
    }
    if (first) return;
    if (client_gone()) throw http::HttpError(http::kClientClosedRequest, "the client closed the connection");
  }
}

int64_t Batch::generated() const {
  int64_t sum = 0;
  for (const auto& sequence : sequences_) sum += sequence->generated();
  return sum;
}

}  // namespace ark::api

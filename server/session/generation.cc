#include "server/session/generation.h"

#include <algorithm>
#include <span>

#include "base/error.h"

namespace ark::session {
namespace {

double seconds(schedule::Ticket::Clock::time_point from, schedule::Ticket::Clock::time_point to) {
  return std::max(0.0, std::chrono::duration<double>(to - from).count());
}

}  // namespace

Generation::Generation(Model& model, schedule::GenerateRequest request, const TextOptions& options)
    : model_(model),
      options_(options),
      end_ids_(request.end_ids),
      min_tokens_(request.min_tokens),
      want_scores_(request.top_logprobs >= 0),
      stops_(options.stop, options.include_stop) {
  if (const text::Tokenizer* tokenizer = model.tokenizer()) {
    // A text of a given form is one by itself, where decoders drop a first space: so its masks take it (text/grammar).
    std::span<const int32_t> before;
    if (options.goes_on && !request.constrain) before = request.prompt;
    detokenizer_.emplace(*tokenizer, options.skip_special, before);
  }
  ticket_ = model.scheduler->submit(std::move(request));
}

Generation::~Generation() {
  if (done_) return;
  ticket_->cancel();
  ++model_.statistics.cancelled;
}

Piece Generation::advance(std::chrono::milliseconds timeout) {
  Piece piece;
  if (done_) return piece;
  std::vector<schedule::TokenEvent> events;
  const schedule::Finish state = ticket_->wait(events, timeout);
  if (state == schedule::Finish::kFailed || state == schedule::Finish::kCancelled) {
    done_ = true;
    ++model_.statistics.failed;
    const Error why = ticket_->error();
    throw Error(why.code(), std::string("the request cannot be finished: ") + why.what());
  }
  const int32_t before = generated_;
  for (schedule::TokenEvent& event : events) {
    if (done_) break;  // sampled after a stop string
    take(std::move(event), piece);
  }
  measure(generated_ - before);
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
  std::string text;
  std::size_t begin = decoded_;
  if (detokenizer_ && ends && !options_.include_stop) {
    text = detokenizer_->flush();
    detokenizer_.reset();
    begin += text.size();
  } else if (detokenizer_) {
    text = detokenizer_->push(event.token);
    begin += detokenizer_->own_begin();
  }
  decoded_ += text.size();
  if (want_scores_) held_.push_back({event.token, event.logprob, std::move(event.top), begin, decoded_});
  emit(std::move(text), piece);
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
  const auto last = held_.begin() + static_cast<std::ptrdiff_t>(count);
  piece.scores.insert(piece.scores.end(), std::make_move_iterator(held_.begin()),
                      std::make_move_iterator(last));
  held_.erase(held_.begin(), last);
}

void Generation::finish(bool stopped) {
  done_ = true;
  stopped_ = stopped;
  Statistics& statistics = model_.statistics;
  ++(stopped ? statistics.stop : statistics.length);
  const schedule::Ticket::Times times = ticket_->times();
  statistics.end_to_end.observe(seconds(times.queued, schedule::Ticket::Clock::now()));
  if (times.scheduled != schedule::Ticket::Clock::time_point{})
    statistics.queue.observe(seconds(times.queued, times.scheduled));
  if (generated_ > 0) statistics.first_token.observe(seconds(times.queued, times.first_token));
}

// Several tokens that were found at once share the time since the one before them.
void Generation::measure(int64_t tokens) {
  if (tokens == 0) return;
  const auto now = schedule::Ticket::Clock::now();
  if (last_token_ != schedule::Ticket::Clock::time_point{})
    model_.statistics.inter_token.observe(seconds(last_token_, now) / static_cast<double>(tokens), tokens);
  last_token_ = now;
}

}  // namespace ark::session

#include "server/schedule/drafter.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace ark::schedule {
namespace {

using namespace std::chrono_literals;

constexpr double kLearnAgreement = 0.02;  // weight of a guess in `agreement`
constexpr int32_t kForget = 64;           // times that it is passed over, after which one price is forgotten
constexpr std::size_t kFewTokens = 8;     // of a question: more tell what reading costs

double seconds_since(Pace::Clock::time_point start) {
  return std::chrono::duration<double>(Pace::Clock::now() - start).count();
}

}  // namespace

Drafter::Drafter(StepRunner& runner)
    : runner_(runner), limits_(runner.limits()), slots_(static_cast<std::size_t>(limits_.max_slots)) {
  for (int32_t page = limits_.pages; page-- > 0;) free_pages_.push_back(page);
}

Drafter::Prices Drafter::prices() const {
  return {guess_seconds_.empty() ? 0 : guess_seconds_.median(),
          read_seconds_.empty() ? 0 : read_seconds_.median()};
}

int32_t Drafter::unread(int32_t slot, std::span<const int32_t> text) const {
  if (slot >= limits_.max_slots) return 0;
  const std::vector<int32_t>& held = slots_[slot].held;
  const auto same = std::ranges::mismatch(held, text).in1 - held.begin();
  return static_cast<int32_t>(text.size()) - static_cast<int32_t>(same);
}

void Drafter::passed_over(double likely) {
  if (++passed_over_ % kForget == 0) guess_seconds_.add(likely);
}

void Drafter::learn(int32_t right, int32_t wrong) {
  for (; right > 0; --right) agreement_ += kLearnAgreement * (1 - agreement_);
  for (; wrong > 0; --wrong) agreement_ -= kLearnAgreement * agreement_;
}

void Drafter::answer(std::span<Question> questions) {
  if (has_failed_) return;
  try {
    answer_or_throw(questions);
  } catch (const std::exception&) {
    // Nobody's answer depends on it.
    has_failed_ = true;
    log_line(LogLevel::kWarning, "the draft model is lost; nothing more is drafted by it",
             {{"why", std::string(current_error().what())}});
    for (Question& question : questions) question.guesses.clear();
  }
}

void Drafter::answer_or_throw(std::span<Question> questions) {
  ++calls_;
  passed_over_ = 0;
  for (const Question& question : questions)
    if (question.slot < limits_.max_slots) slots_[question.slot].used = calls_;
  std::vector<Asked> asked = read(questions);
  std::erase_if(asked, [](const Asked& a) { return a.question->guesses.empty(); });
  go_on(std::move(asked));
}

// Where none is free, those of who has not been asked about for longest.
bool Drafter::take_pages(Slot& slot, int32_t tokens) {
  while (static_cast<int32_t>(slot.pages.size()) * limits_.page_size < tokens) {
    if (free_pages_.empty()) {
      const auto oldest = std::ranges::min_element(
          slots_, {}, [](const Slot& s) { return s.pages.empty() ? UINT64_MAX : s.used; });
      if (oldest->pages.empty() || oldest->used == calls_) return false;
      free_pages_ = std::move(oldest->pages);
      *oldest = {};
    }
    slot.pages.push_back(free_pages_.back());
    free_pages_.pop_back();
  }
  return true;
}

std::vector<Drafter::Asked> Drafter::read(std::span<Question> questions) {
  const auto start = Pace::Clock::now();
  StepDescriptor step;
  std::vector<Asked> asked;
  for (Question& question : questions) {
    const auto size = static_cast<int32_t>(question.text.size());
    if (question.most <= 0 || question.slot >= limits_.max_slots || size + question.most > limits_.max_length)
      continue;
    Slot& slot = slots_[question.slot];
    // The last token is read again, if need be: what follows it is asked.
    slot.held.resize(
        static_cast<std::size_t>(std::min(size - unread(question.slot, question.text), size - 1)));
    const auto held = static_cast<int32_t>(slot.held.size());
    const auto first = static_cast<int32_t>(step.tokens.size());
    const int32_t count = std::min(size - held, limits_.max_tokens - first);
    const auto unread = question.text.subspan(slot.held.size(), static_cast<std::size_t>(std::max(0, count)));
    const bool is_known = std::ranges::all_of(unread, [&](int32_t t) { return limits_.is_embedded(t); });
    if (unread.empty() || !is_known || !take_pages(slot, size + question.most)) continue;
    for (std::size_t& i = slot.pages_known; i < slot.pages.size(); ++i)
      step.page_deltas.push_back({question.slot, static_cast<int32_t>(i), slot.pages[i]});
    step.sequences.push_back({question.slot, first, count, held});
    step.tokens.insert(step.tokens.end(), unread.begin(), unread.end());
    slot.held.insert(slot.held.end(), unread.begin(), unread.end());
    if (held + count < size || static_cast<int32_t>(step.rows.size()) == limits_.max_rows) continue;
    StepRow row;
    row.token = first + count - 1;
    row.slot = question.slot;
    row.sampling = question.sampling;
    step.rows.push_back(row);
    asked.push_back({&question, &slot});
  }
  if (step.tokens.empty()) return {};
  runner_.post(step);
  take(asked, wait());
  if (step.tokens.size() <= kFewTokens * asked.size()) {
    if (calls_ > 1) guess_seconds_.add(seconds_since(start));  // the first one finds nothing in any cache
  } else {
    read_seconds_.add(seconds_since(start) / static_cast<double>(step.tokens.size()));
  }
  return asked;
}

void Drafter::go_on(std::vector<Asked> asked) {
  const auto start = Pace::Clock::now();
  std::vector<std::vector<Asked>> flights;  // in order
  std::size_t done = 0;
  const auto land = [&] { take(flights[done++], wait()); };
  for (int32_t guesses = 1;; ++guesses) {
    std::erase_if(asked, [&](const Asked& a) { return a.question->most <= guesses; });
    if (asked.empty()) break;
    if (static_cast<int32_t>(flights.size() - done) == limits_.depth) land();
    StepDescriptor step;
    for (const Asked& a : asked) {
      const auto first = static_cast<int32_t>(step.tokens.size());
      step.sequences.push_back(
          {a.question->slot, first, 1, static_cast<int32_t>(a.question->text.size()) + guesses - 1});
      step.tokens.push_back(kFeedbackToken);
      StepRow row;
      row.token = first;
      row.slot = a.question->slot;
      row.sampling = a.question->sampling;
      step.rows.push_back(row);
    }
    runner_.post(step);
    flights.push_back(asked);
  }
  while (done < flights.size()) land();
  if (done > 0) guess_seconds_.add(seconds_since(start) / static_cast<double>(done));
  // The last guess of each is not read.
  for (const std::vector<Asked>& flight : flights)
    for (const Asked& a : flight)
      if (a.slot->held.size() + 1 < a.question->text.size() + a.question->guesses.size())
        a.slot->held.push_back(a.question->guesses[a.slot->held.size() - a.question->text.size()]);
}

StepResult Drafter::wait() {
  for (;;) {
    if (auto result = runner_.poll(50ms)) return std::move(*result);
    if (const std::string why = runner_.failure(); !why.empty()) throw Error(Code::kUnavailable, why);
  }
}

// No guess follows one that failed.
void Drafter::take(const std::vector<Asked>& asked, const StepResult& result) {
  for (std::size_t i = 0; i < asked.size(); ++i) {
    Question& question = *asked[i].question;
    const RowResult& row = result.rows[i];
    if (row.error || row.token < 0)
      question.most = static_cast<int32_t>(question.guesses.size());
    else if (static_cast<int32_t>(question.guesses.size()) < question.most)
      question.guesses.push_back(row.token);
  }
}

}  // namespace ark::schedule

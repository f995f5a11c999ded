#include "server/text/regex.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <new>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "base/per_thread.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

constexpr std::size_t kMaxPattern = 8 * 1024;  // bytes; published ones have some hundred
// What lookarounds and runs of one character cost is not counted by PCRE2: they may read the rest of a text at every
// start. So a call tries few starts, fewer with a longer pattern, and is charged for its time.
constexpr std::size_t kPatternBytesPerCall = 4096;
constexpr std::chrono::nanoseconds kTimePerUnit{100};
constexpr std::chrono::milliseconds kMetered{1};  // shorter times are not worth asking the thread's own clock
// Backtracking steps per match: a match that needs more than the first limit is tried again with one that is
// larger by a factor, for which it pays.
constexpr std::uint32_t kFirstMatchLimit = 1000, kMatchLimitFactor = 8, kMatchLimit = 20'000'000;
constexpr std::uint32_t kStepsPerUnit = 16;
constexpr std::uint32_t kHeapLimit = 64 * 1024;  // KiB per match
constexpr std::size_t kJitStackStart = 32 * 1024, kJitStackMax = 1024 * 1024;

std::string pcre2_message(int error) {
  PCRE2_UCHAR buffer[160];
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

std::string translated(std::string_view oniguruma, const std::string& what) {
  try {
    return to_pcre2(oniguruma);
  } catch (const Error& error) {
    throw Error(error.code(), what + ": " + error.what());
  }
}

}  // namespace

// What a thread needs to match; PCRE2 wants these not shared between threads.
struct Regex::Scratch {
  template <auto release>
  struct Freed {
    template <typename T>
    void operator()(T* owned) const {
      release(owned);
    }
  };

  Scratch() {
    if (!context || !data) throw std::bad_alloc();
    pcre2_set_heap_limit(context.get(), kHeapLimit);
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  void start() { looked = std::chrono::steady_clock::now(), charged = {}; }
  // Charges the processor's time since the last charge: a machine that sleeps is not a text's fault.
  void charge_time(Budget& budget) {
    const auto now = std::chrono::steady_clock::now();
    if (now - looked < kMetered) return;
    looked = now;
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    const std::chrono::nanoseconds used =
        std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
    const std::chrono::nanoseconds before = std::exchange(charged, used);
    if (before.count() != 0) budget.charge(static_cast<std::size_t>((used - before) / kTimePerUnit));
  }

  std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>> context{
      pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_jit_stack, Freed<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)};
  std::chrono::steady_clock::time_point looked{};
  std::chrono::nanoseconds charged{};
};

struct Regex::Code {
  explicit Code(pcre2_code* code) : compiled(code) {}
  ~Code() { pcre2_code_free(compiled); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* compiled;
};

Regex::Regex(std::string_view oniguruma, std::string_view what) : what_(what) {
  if (oniguruma.size() > kMaxPattern)
    throw Error(ark::Code::kBadModel, what_ + ": the pattern has " + std::to_string(oniguruma.size()) +
                                          " bytes, the limit is " + std::to_string(kMaxPattern));
  const std::string pattern = translated(oniguruma, what_);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_code* compiled = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT, &error,
      &offset, context);
  pcre2_compile_context_free(context);
  if (!compiled)
    throw Error(ark::Code::kBadModel,
                what_ + ": pattern " + escaped(oniguruma) + " does not compile: " + pcre2_message(error));
  code_ = std::make_unique<Code>(compiled);
  starts_ = 1 + kPatternBytesPerCall / (pattern.size() + 1);
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);  // without JIT the interpreter does the same, slower
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

// Moves `from` on to where the last call looked.
int Regex::match(std::string_view text, std::size_t& from, Budget& budget, Scratch& scratch) const {
  while (true) {
    std::size_t last = std::min(from + starts_ - 1, text.size());
    while (last > from && last < text.size() && is_continuation(text[last])) --last;
    pcre2_set_offset_limit(scratch.context.get(), last);
    const int result = try_at(text, from, budget, scratch);
    scratch.charge_time(budget);
    if (result != PCRE2_ERROR_NOMATCH || last >= text.size()) return result;
    from = last + utf8_sequence_length(static_cast<unsigned char>(text[last]));
  }
}

int Regex::try_at(std::string_view text, std::size_t from, Budget& budget, const Scratch& scratch) const {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (std::uint32_t limit = kFirstMatchLimit;; limit *= kMatchLimitFactor) {
    pcre2_set_match_limit(scratch.context.get(), limit);
    int result = pcre2_match(code_->compiled, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                             scratch.data.get(), scratch.context.get());
    if (result == PCRE2_ERROR_JIT_STACKLIMIT)
      result = pcre2_match(code_->compiled, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                           scratch.data.get(), scratch.context.get());
    if (result != PCRE2_ERROR_MATCHLIMIT || limit >= kMatchLimit) return result;
    budget.charge(limit / kStepsPerUnit);
  }
}

std::vector<Span> Regex::find_all(std::string_view text, Budget& budget) const {
  static PerThread<Scratch> scratches;
  Scratch& scratch = scratches.get();
  scratch.start();
  budget.charge_reading(text.size());
  std::vector<Span> spans;
  std::size_t from = 0;
  while (from <= text.size()) {
    const int result = match(text, from, budget, scratch);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      throw Error(
          ark::Code::kInvalidArgument,
          what_ + ": the text cannot be split within the pattern's limits (" + pcre2_message(result) + ")");
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(scratch.data.get());
    const Span span{found[0], found[1]};
    budget.charge_bytes(3 * sizeof span);  // in a list that grows
    // An empty match right behind the last one is not taken; the search goes on one character later.
    if (span.begin == span.end && !spans.empty() && spans.back().end == span.end) {
      from = span.end +
             (span.end < text.size() ? utf8_sequence_length(static_cast<unsigned char>(text[span.end])) : 1);
      continue;
    }
    spans.push_back(span);
    from = span.end;
  }
  return spans;
}

}  // namespace ark::text

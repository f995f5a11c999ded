#include "server/tools/simulation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "server/json.h"
#include "server/schedule/admit.h"
#include "server/schedule/turns.h"

namespace ark {
namespace {

using Clock = schedule::Turns::Clock;

constexpr double kLeast = 1e-6, kGrowth = 1.005;  // of a distribution's buckets
constexpr int32_t kMostTokens = 1 << 20;          // of a traced request

Clock::time_point time_of(double seconds) {
  // Zero means "never" in many places.
  return Clock::time_point(std::chrono::seconds(1) + std::chrono::nanoseconds(std::llround(seconds * 1e9)));
}

// Steps that take as long as the table says, one after the other.
class TimedRunner : public StepRunner {
 public:
  TimedRunner(const MeasuredModel& model, Distribution& between_tokens)
      : limits_(model.limits),
        times_(model.decodes, model.prompts),
        between_tokens_(between_tokens),
        last_token_(static_cast<std::size_t>(model.limits.max_slots)) {
    limits_.vocabulary = INT32_MAX;  // tokens are numbers of ours
    limits_.embedded = 0;
  }

  Clock::time_point now{};  // set before each post

  const RunnerLimits& limits() const override { return limits_; }
  uint64_t post(const StepDescriptor& step) override {
    const auto time = std::chrono::nanoseconds(std::llround(times_.seconds(step) * 1e9));
    busy_until_ = std::max(now, busy_until_) + time;
    Posted posted{busy_until_, {}, step.rows.size()};
    for (const StepRow& row : step.rows)
      if (row.flags & kWantToken) posted.rows.emplace_back(row.slot, is_first(step, row));
    queue_.push_back(std::move(posted));
    return ++posted_;
  }
  // The end of the oldest step, and what it gives. Tokens are none that others have.
  std::pair<Clock::time_point, StepResult> next() {
    const Posted step = std::move(queue_.front());
    queue_.pop_front();
    for (const auto& [slot, is_first] : step.rows) {
      Clock::time_point& last = last_token_[static_cast<std::size_t>(slot)];
      if (!is_first) between_tokens_.add(std::chrono::duration<double>(step.end - last).count());
      last = step.end;
    }
    StepResult result{++done_};
    for (std::size_t i = 0; i < step.results; ++i) {
      token_ = token_ == INT32_MAX - 1 ? 1 << 30 : token_ + 1;
      result.rows.push_back({.token = token_});
    }
    return {step.end, std::move(result)};
  }
  std::optional<StepResult> poll(std::chrono::microseconds) override { return std::nullopt; }
  void abort(const std::string&) override {}

 private:
  struct Posted {
    Clock::time_point end;
    std::vector<std::pair<int32_t, bool>> rows;  // slots that get a token, and whether it is their first
    std::size_t results;
  };
  static bool is_first(const StepDescriptor& step, const StepRow& row) {
    for (const StepSequence& s : step.sequences)
      if (s.slot == row.slot) return s.kv_length + row.token - s.first == row.prompt_length - 1;
    return false;
  }

  RunnerLimits limits_;
  const StepTimes times_;
  Distribution& between_tokens_;
  std::vector<Clock::time_point> last_token_;  // by slot
  std::deque<Posted> queue_;
  Clock::time_point busy_until_{};
  uint64_t posted_ = 0, done_ = 0;
  int32_t token_ = 1 << 30;
};

// Tokens that only those of its group share.
std::vector<int32_t> prompt_of(const TracedRequest& request, std::size_t number) {
  std::vector<int32_t> tokens(static_cast<std::size_t>(request.prompt));
  const auto mixed = [](uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9E3779B97F4A7C15u + b;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    return static_cast<int32_t>((x ^ (x >> 27)) & ((1 << 30) - 1));
  };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool is_shared = request.group >= 0 && static_cast<int32_t>(i) < request.shared;
    tokens[i] = mixed(is_shared ? static_cast<uint64_t>(request.group) : (uint64_t{1} << 32) + number, i);
  }
  return tokens;
}

template <typename T>
T field(const Json& line, const char* name, double low, double high, std::optional<T> standard,
        const std::string& where) {
  const auto found = line.find(name);
  if (found == line.end() && standard) return *standard;
  const bool is_right = found != line.end() && found->is_number() &&
                        (!std::is_integral_v<T> || found->is_number_integer()) &&
                        found->template get<double>() >= low && found->template get<double>() <= high;
  if (!is_right)
    throw Error(Code::kUsage, where + ": " + name + " is no number from " +
                                  std::to_string(std::llround(low)) + " to " +
                                  std::to_string(std::llround(high)));
  return found->template get<T>();
}

}  // namespace

std::vector<TracedRequest> read_trace(const std::string& text, const std::string& file) {
  std::vector<TracedRequest> trace;
  std::size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string where = file + " line " + std::to_string(number);
    const Json json = parse_json_or_discard(line);
    if (!json.is_object()) throw Error(Code::kUsage, where + ": is no JSON object");
    TracedRequest r;
    r.at = field<double>(json, "at", 0, 1e7, {}, where);
    r.prompt = field<int32_t>(json, "prompt_tokens", 1, kMostTokens, {}, where);
    r.output = field<int32_t>(json, "output_tokens", 1, kMostTokens, {}, where);
    r.group = field<int32_t>(json, "group", -1, INT32_MAX, -1, where);
    r.shared = field<int32_t>(json, "shared_tokens", 0, kMostTokens, 0, where);
    r.client = field<uint32_t>(json, "client", 0, UINT32_MAX, 0u, where);
    if (!trace.empty() && r.at < trace.back().at)
      throw Error(Code::kUsage, where + ": comes before the line before");
    trace.push_back(r);
  }
  if (trace.empty()) throw Error(Code::kUsage, file + ": holds no requests");
  return trace;
}

void Distribution::add(double seconds) {
  const double place = std::log(std::max(seconds, kLeast) / kLeast) / std::log(kGrowth);
  ++buckets_[std::min(static_cast<std::size_t>(place), buckets_.size() - 1)];
  ++count_;
  sum_ += seconds;
}

double Distribution::percentile(double p) const {
  const auto rank = static_cast<int64_t>(std::ceil(p / 100 * static_cast<double>(count_)));
  int64_t seen = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i)
    if ((seen += buckets_[i]) >= std::max<int64_t>(1, rank))
      return kLeast * std::pow(kGrowth, static_cast<double>(i) + 0.5);
  return 0;
}

Simulated simulate(const std::vector<TracedRequest>& trace, const MeasuredModel& model,
                   const schedule::SchedulerOptions& options, const Goals& goals) {
  Simulated result;
  result.goals = goals;
  schedule::SchedulerOptions own = options;
  own.max_drafts = 0;  // which tokens would come is not known
  TimedRunner runner(model, result.between_tokens);
  schedule::SchedulerState state(runner.limits(), own);
  schedule::Turns turns(runner, state, [] {});
  Clock::time_point now = time_of(trace.front().at), last = now;
  result.requests.resize(trace.size());
  const auto note = [&](std::size_t i, const schedule::Record& record) {
    const auto& [first, whole] = result.requests[i] = {static_cast<double>(record.first_ns()) * 1e-9,
                                                       static_cast<double>(record.total_ns()) * 1e-9};
    result.first_token.add(first);
    result.whole.add(whole);
    result.shares.add(record.total);
    const bool is_late = goals.first > 0 && first > goals.first;
    const bool is_slow = goals.next > 0 && static_cast<double>(record.pause_ns) * 1e-9 > goals.next;
    result.late += is_late, result.slow += is_slow, result.good += !is_late && !is_slow;
    last = std::max(last, record.finished);
  };
  const auto come = [&](std::size_t i) {
    schedule::GenerateRequest request;
    request.prompt = prompt_of(trace[i], i);
    request.max_tokens = trace[i].output;
    request.client = trace[i].client;
    try {
      schedule::check(request, state.limits);
    } catch (const Error&) {
      ++result.refused;
      return;
    }
    if (static_cast<int64_t>(state.waiting.size()) >= state.options.max_queue)
      ++result.refused;
    else
      turns.admit(schedule::make_sequence(
          std::move(request), [&note, i](const auto& record) { note(i, *record); }, time_of(trace[i].at)));
  };
  // As the scheduler's thread goes: what came while a step was computed is seen when that is done.
  for (std::size_t next = 0;;) {
    for (; next < trace.size() && time_of(trace[next].at) <= now; ++next) come(next);
    turns.settle(now);
    runner.now = now;
    turns.post_steps([&] { return now; });
    if (!state.flights.empty()) {
      auto [end, step] = runner.next();
      now = std::max(now, end);
      turns.take_results(std::move(step), now);
      turns.retire_finished();
    } else if (state.held_until > now) {
      now = next < trace.size() ? std::min(state.held_until, time_of(trace[next].at)) : state.held_until;
    } else if (next < trace.size()) {
      now = std::max(now, time_of(trace[next].at));
    } else {
      break;
    }
  }
  result.stats = state.counts;
  result.seconds = std::chrono::duration<double>(last - time_of(trace.front().at)).count();
  return result;
}

Json to_json(const Simulated& s) {
  const double seconds = std::max(s.seconds, 1e-9);
  Json json = {{"duration", s.seconds},
               {"completed", s.whole.count()},
               {"failed", s.refused},
               {"request_throughput", static_cast<double>(s.whole.count()) / seconds},
               {"output_throughput", static_cast<double>(s.stats.generated_tokens) / seconds},
               {"total_input_tokens", s.stats.prefix_queries},
               {"cached_input_tokens", s.stats.prefix_hits},
               {"total_output_tokens", s.stats.generated_tokens},
               {"steps", s.stats.steps},
               {"preemptions", s.stats.preemptions}};
  for (const auto& [name, values] : {std::pair("ttft", &s.first_token), std::pair("itl", &s.between_tokens),
                                     std::pair("e2el", &s.whole)}) {
    const std::string end = std::string("_") + name + "_ms";
    json["mean" + end] = values->mean() * 1e3;
    json["median" + end] = values->percentile(50) * 1e3;
    for (const int p : {90, 99}) json["p" + std::to_string(p) + end] = values->percentile(p) * 1e3;
    json["max" + end] = values->percentile(100) * 1e3;
  }
  if (s.goals.first > 0 || s.goals.next > 0) {
    json["request_goodput"] = static_cast<double>(s.good) / seconds;
    json["late_requests"] = s.late;
    json["slow_requests"] = s.slow;
  }
  Json causes = Json::object();
  for (std::size_t i = 0; i < schedule::kCauses; ++i)
    if (s.shares.ns[i] > 0)
      causes[text_of(static_cast<schedule::Cause>(i)).name] =
          static_cast<double>(s.shares.ns[i]) / static_cast<double>(s.shares.sum());
  json["causes"] = std::move(causes);
  return json;
}

}  // namespace ark

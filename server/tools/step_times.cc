#include "server/tools/step_times.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <string>

#include "base/error.h"
#include "server/json.h"

namespace ark {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kMost = 1 << 20;  // tokens, sequences and pages of a file

double middle_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Tokens that are looked at by `tokens` of one sequence (causal), or by one of each of as many.
double looks(const TimedStep& step, bool causal) {
  const double tokens = step.tokens;
  return tokens * (step.before + (causal ? tokens / 2 : 1));
}

int32_t count_of(const Json& from, const std::string& name, const std::string& file) {
  const auto at = from.find(name);
  if (at == from.end() || !at->is_number_integer() || at->get<int64_t>() < 1 || at->get<int64_t>() > kMost)
    throw Error(Code::kUsage, file + ": limits." + name + " is no number from 1 to " + std::to_string(kMost));
  return at->get<int32_t>();
}

std::vector<TimedStep> steps_of(const Json& from, const char* name, const std::string& file) {
  const auto fail = [&] {
    throw Error(Code::kUsage,
                file + ": " + name + " is no list of [tokens, before, milliseconds], all of them positive");
  };
  const auto found = from.find(name);
  if (found == from.end() || !found->is_array() || found->empty()) fail();
  std::vector<TimedStep> steps;
  for (const Json& row : *found) {
    if (!row.is_array() || row.size() != 3 || !row[0].is_number_integer() || !row[1].is_number_integer() ||
        !row[2].is_number())
      fail();
    const auto tokens = row[0].get<int64_t>(), before = row[1].get<int64_t>();
    const double ms = row[2].get<double>();
    if (tokens < 1 || tokens > kMost || before < 0 || before > kMost || !(ms > 0 && ms < 1e9)) fail();
    steps.push_back({static_cast<int32_t>(tokens), static_cast<int32_t>(before), ms / 1e3});
  }
  return steps;
}

class Stopwatch {
 public:
  explicit Stopwatch(StepRunner& runner) : runner_(runner), limits_(runner.limits()) {}

  // Adds the seconds of some steps that go out as a server's do.
  void run(int32_t sequences, int32_t tokens, int32_t before, std::vector<double>& seconds) {
    constexpr int32_t kRounds = 4;  // the first has nothing before it
    const StepDescriptor step = step_of(sequences, tokens, before);
    runner_.post(step);
    Clock::time_point last = Clock::now();
    for (int32_t i = 0; i < kRounds; ++i) {
      if (limits_.depth > 1) runner_.post(step);
      wait();
      if (limits_.depth == 1) runner_.post(step);
      const Clock::time_point now = Clock::now();
      if (i > 0) seconds.push_back(std::chrono::duration<double>(now - last).count());
      last = now;
    }
    wait();
  }
  // Keys and values of the slots [first, last), so that those which are looked at are there.
  void fill(int32_t first, int32_t last, int32_t length) {
    const int32_t pages = (length + limits_.page_size - 1) / limits_.page_size;
    for (int32_t slot = first; slot < last; ++slot)
      for (int32_t at = 0; at < length; at += limits_.max_tokens) {
        StepDescriptor step;
        add(step, slot, std::min(limits_.max_tokens, length - at), at);
        for (int32_t page = 0; at == 0 && page < pages; ++page)
          step.page_deltas.push_back({slot, page, next_page_++});
        runner_.post(step);
        wait();
      }
  }

 private:
  StepDescriptor step_of(int32_t sequences, int32_t tokens, int32_t before) {
    StepDescriptor step;
    for (int32_t slot = 0; slot < sequences; ++slot) {
      add(step, slot, tokens, before);
      StepRow row;
      row.slot = slot;
      row.token = static_cast<int32_t>(step.tokens.size()) - 1;
      row.flags = kWantToken;
      row.sampling.temperature = 0;
      step.rows.push_back(row);
    }
    return step;
  }
  void add(StepDescriptor& step, int32_t slot, int32_t count, int32_t before) {
    step.sequences.push_back({slot, static_cast<int32_t>(step.tokens.size()), count, before});
    for (int32_t i = 0; i < count; ++i) step.tokens.push_back((before + i) * 7919 % limits_.vocabulary);
  }
  void wait() {
    while (!runner_.poll(std::chrono::seconds(1))) {
    }
  }

  StepRunner& runner_;
  const RunnerLimits limits_;
  int32_t next_page_ = 0;
};

}  // namespace

StepTimes::Curve::Curve(const std::vector<TimedStep>& steps, bool causal) {
  std::map<int32_t, std::vector<TimedStep>> by_tokens;
  for (const TimedStep& step : steps) by_tokens[step.tokens].push_back(step);
  std::vector<double> slopes;
  for (auto& [tokens, same] : by_tokens) {
    std::ranges::stable_sort(same, {}, &TimedStep::before);
    const TimedStep &least = same.front(), &most = same.back();
    if (most.before > least.before)
      slopes.push_back((most.seconds - least.seconds) / (looks(most, causal) - looks(least, causal)));
  }
  look = std::max(0.0, middle_of(slopes));
  for (const auto& [tokens, same] : by_tokens)
    points.emplace_back(tokens,
                        std::max(same[0].seconds - look * looks(same[0], causal), 0.1 * same[0].seconds));
}

double StepTimes::Curve::at(double tokens) const {
  if (points.size() == 1 || tokens <= points[0].first) return points[0].second;
  auto next = std::ranges::upper_bound(points, tokens, {}, &std::pair<double, double>::first);
  if (next == points.end()) --next;
  const auto& [x0, y0] = *(next - 1);
  const auto& [x1, y1] = *next;
  return std::max(y0 + (y1 - y0) * (tokens - x0) / (x1 - x0), points[0].second);
}

StepTimes::StepTimes(const std::vector<TimedStep>& decodes, const std::vector<TimedStep>& prompts)
    : decodes_(decodes, false), prompts_(prompts, true) {}

double StepTimes::seconds(const StepDescriptor& step) const {
  double streams = 0, all = 0, attention = 0;
  for (const StepSequence& s : step.sequences) {
    const TimedStep part{s.count, s.kv_length, 0};
    const bool is_stream = s.count == 1;
    all += s.count;
    streams += is_stream;
    attention += is_stream ? decodes_.look * looks(part, false) : prompts_.look * looks(part, true);
  }
  if (streams == all) return decodes_.at(streams) + attention;
  const double rows = streams > 0 ? std::max(0.0, decodes_.at(streams) - prompts_.at(streams)) : 0;
  return prompts_.at(all) + rows + attention;
}

Json to_json(const MeasuredModel& model) {
  const auto rows = [](const std::vector<TimedStep>& steps) {
    Json all = Json::array();
    for (const TimedStep& s : steps) all.push_back({s.tokens, s.before, std::round(s.seconds * 1e7) / 1e4});
    return all;
  };
  const RunnerLimits& l = model.limits;
  return {{"limits",
           {{"max_tokens", l.max_tokens},
            {"max_sequences", l.max_slots},
            {"max_length", l.max_length},
            {"page_size", l.page_size},
            {"pages", l.pages}}},
          {"decode", rows(model.decodes)},
          {"prompt", rows(model.prompts)}};
}

MeasuredModel measured_model(const Json& json, const std::string& file) {
  if (!json.is_object() || !json.contains("limits") || !json["limits"].is_object())
    throw Error(Code::kUsage, file + ": is no object with limits, decode and prompt");
  const Json& limits = json["limits"];
  MeasuredModel model;
  RunnerLimits& l = model.limits;
  l.max_tokens = count_of(limits, "max_tokens", file);
  l.max_slots = count_of(limits, "max_sequences", file);
  l.max_length = count_of(limits, "max_length", file);
  l.page_size = count_of(limits, "page_size", file);
  l.pages = count_of(limits, "pages", file);
  l.max_rows = l.max_slots;
  model.decodes = steps_of(json, "decode", file);
  model.prompts = steps_of(json, "prompt", file);
  return model;
}

MeasuredModel measure_steps(StepRunner& runner) {
  MeasuredModel model;
  model.limits = runner.limits();
  const RunnerLimits& l = model.limits;
  // A few have a past, from which it is known what looking at it takes.
  constexpr int32_t kFew = 4, kPast = 1024;
  const int32_t few = std::min(kFew, l.max_slots);
  const int32_t room = std::min(l.max_length, l.pages / l.max_slots * l.page_size);
  const int32_t past = std::min(kPast, room) / l.page_size * l.page_size;
  if (past < 4)
    throw Error(Code::kUsage, "a model with room for " + std::to_string(room) + " tokens each is too small");
  Stopwatch watch(runner);
  watch.fill(0, few, past);
  watch.fill(few, l.max_slots, l.page_size);
  const auto twice = [](int32_t n, int32_t most) { return n < most ? std::min(2 * n, most) : n + 1; };
  const int32_t streams = std::min(l.max_slots, l.max_tokens), chunk = std::min(l.max_tokens, past);
  for (int32_t n = 1; n <= streams; n = twice(n, streams)) {
    model.decodes.push_back({n, 1});
    if (n <= few) model.decodes.push_back({n, past - 1});
  }
  for (int32_t n = 2; n <= chunk; n = twice(n, chunk)) {
    model.prompts.push_back({n, 0});
    if (n <= past / 2) model.prompts.push_back({n, past - n});
  }
  // A machine has bad seconds: all are measured in turn, so that these fall on no step alone.
  constexpr int32_t kTurns = 3;
  std::vector<std::vector<double>> decodes(model.decodes.size()), prompts(model.prompts.size());
  for (int32_t turn = 0; turn < kTurns; ++turn) {
    for (std::size_t i = 0; i < decodes.size(); ++i)
      watch.run(model.decodes[i].tokens, 1, model.decodes[i].before, decodes[i]);
    for (std::size_t i = 0; i < prompts.size(); ++i)
      watch.run(1, model.prompts[i].tokens, model.prompts[i].before, prompts[i]);
  }
  for (std::size_t i = 0; i < decodes.size(); ++i)
    model.decodes[i].seconds = middle_of(std::move(decodes[i]));
  for (std::size_t i = 0; i < prompts.size(); ++i)
    model.prompts[i].seconds = middle_of(std::move(prompts[i]));
  return model;
}

}  // namespace ark

#include "server/load/stage_log.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace ark {
namespace {

// In their order; the last two are of models that are served plain, and of groups that others have started.
constexpr const char* kStages[] = {"parse", "infer", "passes", "recognise", "partition", "lower",
                                   "pack",  "warm",  "ready",  "load",      "meet"};

}  // namespace

void StageLog::done(std::string_view stage, std::string_view detail) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  if (const auto at = std::ranges::find(kStages, stage); at < std::end(kStages) - 3) current_ = at[1];
  beside(stage, seconds, detail);
  if (watch_) watch_();
}

void StageLog::beside(std::string_view name, double seconds, std::string_view detail) const {
  char time[64];
  std::snprintf(time, sizeof time, "%-12.32s %8.3f s", std::string(name).c_str(), seconds);
  print_(detail.empty() ? std::string(time) : time + ("  " + std::string(detail)));
}

void StageLog::enter(std::string_view stage) {
  if (const auto at = std::ranges::find(kStages, stage); at != std::end(kStages)) current_ = *at;
}

void StageLog::fact(std::string_view name, std::string_view text) {
  if (name == "plain") enter("load");
  char label[48];
  std::snprintf(label, sizeof label, "%-12.32s ", std::string(name).c_str());
  print_(label + std::string(text));
}

}  // namespace ark

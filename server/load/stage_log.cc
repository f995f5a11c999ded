#include "server/load/stage_log.h"

#include <cstdio>
#include <iterator>

namespace ark {
namespace {

constexpr const char* kStages[] = {"text",      "parse", "infer", "passes", "recognise",
                                   "partition", "lower", "pack",  "warm",   "ready"};

}  // namespace

void StageLog::done(std::string_view stage, std::string_view detail) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  for (std::size_t i = 0; i + 1 < std::size(kStages); ++i)
    if (stage == kStages[i]) current_ = kStages[i + 1];
  char time[64];
  std::snprintf(time, sizeof time, "%-12.32s %8.3f s", std::string(stage).c_str(), seconds);
  print_(detail.empty() ? std::string(time) : time + ("  " + std::string(detail)));
}

void StageLog::fact(std::string_view name, std::string_view text) {
  if (name == "plain") current_ = "load";
  char label[48];
  std::snprintf(label, sizeof label, "%-12.32s ", std::string(name).c_str());
  print_(label + std::string(text));
}

}  // namespace ark

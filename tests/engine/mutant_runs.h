// What becomes of mutants of models: each is refused by name or runs. Never a signal, an internal error, two seconds,
// or 300 MB.
//   ARK_MUTANTS=N       how many (a few by default)
//   ARK_MUTANT_SEED=S   of the run; each mutant depends on S and its number only
//   ARK_MUTANT=I        only number I, and what happens to it
//   ARK_MUTANT_LOG=F    file that names the mutant that runs, for what crashes
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "base/error.h"
#include "tests/engine/model_mutants.h"
#include "tests/fixtures.h"

namespace ark::test {

inline int64_t setting(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  return text && *text ? std::atoll(text) : fallback;
}

inline double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Megabytes of this process by /proc: "VmRSS:" now, "VmHWM:" the most since the last forget_peak().
inline double megabytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == key) return status >> word, std::stod(word) / 1024;
  return 0;
}
inline void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// One mutant: made of the random numbers, which is then named by `say`, and loaded and run, which throws where it is
// refused.
using MakeAndRun = std::function<void(std::mt19937_64& random, const std::function<void(std::string)>& say)>;

inline void expect_named_or_run(int64_t usual, const MakeAndRun& make_and_run) {
  const int64_t seed = setting("ARK_MUTANT_SEED", 1), only = setting("ARK_MUTANT", -1);
  const int64_t first = only < 0 ? 0 : only, count = only < 0 ? setting("ARK_MUTANTS", usual) : 1;
  const double slack = is_sanitized() ? 20 : 2;  // of time; tests are not optimised
  std::map<std::string, int> ends;
  double slowest = 0, largest = 0;
  for (int64_t i = first; i < first + count; ++i) {
    std::seed_seq sequence{seed, i};
    uint32_t words[2];
    sequence.generate(words, words + 2);
    std::mt19937_64 random(static_cast<uint64_t>(words[0]) << 32 | words[1]);
    std::string label = "mutant " + std::to_string(i) + " of seed " + std::to_string(seed);
    const double start = processor_seconds(), before = megabytes("VmRSS:");
    forget_peak();
    std::string end = "run";
    try {
      make_and_run(random, [&](const std::string& what) {
        label += ", " + what;
        if (only >= 0) std::fprintf(stderr, "%s\n", label.c_str());
        if (const char* file = std::getenv("ARK_MUTANT_LOG")) std::ofstream(file) << label << "\n";
      });
    } catch (const Error& e) {
      end = e.code() == Code::kBadModel      ? "bad model"
            : e.code() == Code::kUnsupported ? "unsupported"
                                             : "run-time error";
      EXPECT_TRUE(is_named(e)) << label << ": " << e.what();
      if (only >= 0) std::fprintf(stderr, "%s: %s\n", end.c_str(), e.what());
    } catch (const std::exception& e) {
      ADD_FAILURE() << label << ": " << e.what();
    }
    ++ends[end];
    const double seconds = processor_seconds() - start, grown = megabytes("VmHWM:") - before;
    EXPECT_LT(seconds, 2 * slack) << label;
    if (!is_sanitized()) {
      EXPECT_LT(grown, 300) << label;
    }
    slowest = std::max(slowest, seconds), largest = std::max(largest, grown);
  }
  for (const auto& [end, n] : ends) std::printf("%s: %d\n", end.c_str(), n);
  std::printf("slowest %.2f s of processor time, most memory %.0f MB\n", slowest, largest);
}

}  // namespace ark::test

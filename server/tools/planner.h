// From a model and one rank of it, measured here, to what a step takes on any number of ranks (plan_model.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/ir/decoder.h"
#include "engine/compile.h"
#include "engine/run/runner.h"
#include "server/config.h"
#include "server/load/stage_log.h"
#include "server/tools/plan_model.h"

namespace ark {

// As options give it; 0: measured.
struct GivenLink {
  double latency_us = 0, gap_us = 0, gigabytes = 0;
};

struct PlanOptions {
  static constexpr int32_t kMost = 1024;  // ranks
  ServeOptions load;
  int32_t ranks = kMost, machine_ranks = 8;
  int32_t threads = 1, cores = 1;  // of a rank; of a machine
  int32_t batch = 1, context = 128, repeats = 20;
  GivenLink inside, between;

  // Of a runner of so many ranks.
  ServeOptions loading(int32_t tp) const;
};

// Milliseconds of decode steps; `sent`, if it is not null: of the last.
std::vector<double> decode_times(StepRunner& runner, const PlanOptions& options, SentBytes* sent = nullptr);

// The time that one in ten of these does not reach: what a step takes where nobody else wants the processors.
double undisturbed(std::vector<double> times);

class Planner {
 public:
  static constexpr int32_t kEvents = 8;  // ranks, at the most, whose events are reckoned one by one

  // Throws Error(kUsage) if some ranks would have nothing to compute, Error(kUnsupported) if the model has no plan.
  Planner(const PlanOptions& options, StageLog& log);
  // A rank, links and memory; what is given is not measured.
  void measure(StageLog& log);

  struct Row {
    int32_t ranks = 1;
    StepPlan plan;
    double seconds = 0;                // with what the host adds
    std::optional<double> formula;     // the same by the formula, where `plan` is by events
    int64_t weights = 0, inboxes = 0;  // bytes of rank 0
  };
  Row row(int32_t ranks, int32_t machine_ranks) const;

  // One, two, four and so on, as far as one machine goes, then as many machines, and what was asked for.
  std::vector<int32_t> numbers() const;
  const CutLimits& limits() const { return limits_; }  // at as many ranks as were asked for
  // Of a machine with so many ranks: who waits sleeps sooner where processors are short.
  const LinkRates& inside(int32_t machine_ranks) const;
  const LinkRates& between() const { return between_; }
  double host() const { return host_; }  // seconds of a step beside its phases

 private:
  void measure_rank(StageLog& log);
  RankPrograms::Ranks lower(int32_t count, int32_t ranks, int32_t machine_ranks) const;
  ReadRates read_rates(int32_t ranks) const;

  const PlanOptions& options_;
  const SymbolValues sizes_;
  std::optional<DecoderModel> model_;
  std::unique_ptr<RankPrograms> programs_;
  CutLimits limits_;
  RankPrograms::Ranks whole_;    // the program of one rank
  std::vector<double> seconds_;  // of its phases
  double host_ = 0;
  LinkRates between_;
  mutable std::map<int32_t, LinkRates> inside_;  // by threads that compute or wait
  mutable std::map<int32_t, ReadRates> rates_;   // by ranks that read at the same time
};

}  // namespace ark

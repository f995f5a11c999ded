// A loaded model with its scheduler: what sequences are generated from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/run/runner.h"
#include "server/model.h"
#include "server/schedule/scheduler.h"
#include "server/session/grammars.h"
#include "server/session/statistics.h"
#include "server/text/model_text.h"
#include "server/trace/slowest.h"

namespace ark::session {

// Const after construction but for the scheduler, the grammars and the statistics, which are safe from any thread.
struct Model {
  // `also` gets every record that `slowest` gets.
  Model(ServedModel served, schedule::SchedulerOptions options, schedule::RecordSink also = {});

  const std::string& name() const { return served.name; }
  bool is_called(const std::string& name) const;                             // by its name or an alias
  const text::Tokenizer* tokenizer() const;                                  // null without one
  int32_t max_length() const { return served.runner->limits().max_length; }  // tokens of one sequence
  int32_t vocabulary() const { return served.runner->limits().vocabulary; }

  ServedModel served;
  int64_t created;  // Unix seconds
  Statistics statistics;
  schedule::SchedulerOptions options;
  std::shared_ptr<trace::Slowest> slowest = std::make_shared<trace::Slowest>();
  std::unique_ptr<Grammars> grammars;  // never null
  std::unique_ptr<schedule::Scheduler> scheduler;
};

}  // namespace ark::session

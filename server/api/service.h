// What the routes share: the models by name, the server's state, the metrics.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/api/fields.h"
#include "server/api/metrics.h"
#include "server/load/load.h"
#include "server/schedule/scheduler.h"

namespace ark::api {

inline constexpr const char* kVersion = "0.1.0";

// A model with its scheduler; const after construction but for the scheduler, which is safe from any thread.
struct Model {
  Model(ServedModel served, schedule::SchedulerOptions options);

  // Throws HttpError 400 where the model has no tokenizer; `param` is the field that needs one.
  const text::Tokenizer& tokenizer(const std::string& param) const;
  const text::Tokenizer* tokenizer_or_null() const;
  // Token ids of `text`, which came in the field `param`; `special`: begun as the model expects it (bos ...).
  // Throws HttpError 400.
  std::vector<int32_t> encode(const std::string& param, const std::string& text, bool special) const;
  int32_t max_length() const { return served.runner->limits().max_length; }
  int32_t vocabulary() const { return served.runner->limits().vocabulary; }

  ServedModel served;
  int64_t created;  // Unix seconds
  ModelMetrics metrics;
  schedule::SchedulerOptions options;
  std::unique_ptr<schedule::Scheduler> scheduler;
};

class Service {
 public:
  void add(ServedModel served, schedule::SchedulerOptions options);

  // By the request's `model`; the only one if the field is absent. Throws HttpError 404 model_not_found.
  Model& model_of(const Fields& fields);
  Model& model(const std::string& name);
  const std::vector<std::unique_ptr<Model>>& models() const { return models_; }

  void start_draining() { draining_.store(true); }
  // Empty while requests are taken; else why not.
  std::string not_ready() const;
  std::string failure() const;  // of a runner; empty while healthy
  ServerMetrics& metrics() { return metrics_; }

 private:
  std::vector<std::unique_ptr<Model>> models_;
  std::atomic<bool> draining_{false};
  ServerMetrics metrics_;
};

}  // namespace ark::api

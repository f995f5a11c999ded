// What the routes share: the models by name, the server's state, the metrics; sessions' errors as answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/field.h"
#include "server/api/metrics.h"
#include "server/session/model.h"

namespace ark::api {

using session::Model;
class Fields;

class Service {
 public:
  void add(ServedModel served, schedule::SchedulerOptions options, schedule::RecordSink also = {});

  // By the request's `model`; the only one if the field is absent. Throws HttpError 404 model_not_found.
  Model& model_of(const Fields& fields) const;
  Model& model(const std::string& name) const;  // also by an alias
  const std::vector<std::unique_ptr<Model>>& models() const { return models_; }
  Limits limits() const;  // the largest of all models

  void start_draining() { draining_.store(true); }
  // While the model is loaded only health is answered, with this function's word for the stage. Set before requests
  // come; add() ends it.
  std::function<std::string()> stage = [] { return std::string(); };
  bool is_loading() const { return is_loading_.load(); }
  // Empty while requests are taken; else why not.
  std::string not_ready() const;
  std::string failure() const;  // of a runner; empty while healthy
  std::string silence() const;  // of a rank that may come back
  ServerMetrics& metrics() { return metrics_; }
  // HTTP connections; asked at each scrape of the metrics. Set before requests come.
  std::function<std::size_t()> open_connections = [] { return std::size_t{0}; };
  // Records of requests that did not get where they should; likewise.
  std::function<int64_t()> dropped_records = [] { return int64_t{0}; };
  // Whether /debug answers: not where strangers could ask. Set before requests come.
  bool may_debug = false;

 private:
  std::vector<std::unique_ptr<Model>> models_;
  std::atomic<bool> draining_{false}, is_loading_{true};  // models_ is complete when false
  ServerMetrics metrics_;
};

// Throws HttpError 400 where the model has no tokenizer; `param` is the field that needs one.
const text::Tokenizer& tokenizer_for(const Model& model, const std::string& param);
// session::encode of `text`, which came in the field `param`. Throws HttpError 400.
std::vector<int32_t> encode(const Model& model, const std::string& param, std::string_view text,
                            bool special);

}  // namespace ark::api

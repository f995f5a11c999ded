#include "server/api/service.h"

#include <algorithm>

#include "base/error.h"
#include "server/api/fields.h"
#include "server/session/encode.h"

namespace ark::api {

const text::Tokenizer& tokenizer_for(const Model& model, const std::string& param) {
  if (const text::Tokenizer* tokenizer = model.tokenizer()) return *tokenizer;
  throw http::HttpError(400,
                        param + " needs a tokenizer, and no tokenizer.json lies beside the model " +
                            escaped(model.name()) + "; send token ids to /v1/completions",
                        param, "no_tokenizer");
}

std::vector<int32_t> encode(const Model& model, const std::string& param, std::string_view text,
                            bool special) {
  tokenizer_for(model, param);
  try {
    return session::encode(model, text, special);
  } catch (const Error& e) {
    if (e.code() != Code::kInvalidArgument) throw;
    throw http::HttpError(400, param + ": " + e.what(), param, "invalid_value");
  }
}

void Service::add(ServedModel served, schedule::SchedulerOptions options, schedule::RecordSink also) {
  models_.push_back(std::make_unique<Model>(std::move(served), options, std::move(also)));
  is_loading_.store(false);
}

Model& Service::model(const std::string& name) const {
  for (const auto& model : models_)
    if (model->is_called(name)) return *model;
  const std::string known = models_.size() == 1 ? "this server's is " + escaped(models_[0]->name())
                                                : "/v1/models lists those that do";
  throw http::HttpError(404, "the model " + escaped(name) + " does not exist; " + known, "model",
                        "model_not_found");
}

Model& Service::model_of(const Fields& fields) const {
  const auto name = fields.string("model");
  if (!fields.has("model") && models_.size() == 1) return *models_[0];
  if (!name) fields.wrong_type("model", "the name of a model");
  return model(*name);
}

Limits Service::limits() const {
  Limits limits;
  for (const auto& model : models_) {
    limits.length = std::max<int64_t>(limits.length, model->max_length());
    limits.vocabulary = std::max<int64_t>(limits.vocabulary, model->vocabulary());
  }
  return limits;
}

std::string Service::failure() const {
  if (is_loading_) return "";
  for (const auto& model : models_)
    if (std::string why = model->scheduler->failure(); !why.empty()) return model->name() + ": " + why;
  return "";
}

std::string Service::silence() const {
  if (is_loading_) return "";
  for (const auto& model : models_)
    if (std::string who = model->scheduler->silence(); !who.empty()) return who;
  return "";
}

std::string Service::not_ready() const {
  if (is_loading_) return "the model is being loaded, stage " + stage();
  if (draining_) return "the server is shutting down";
  for (const auto& model : models_)
    if (const std::string why = model->scheduler->restarting(); !why.empty())
      return model->name() + " is restarting: " + why;
  const std::string why = failure();
  return why.empty() ? silence() : why;
}

}  // namespace ark::api

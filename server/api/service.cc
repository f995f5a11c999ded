#include "server/api/service.h"

#include <ctime>
#include <mutex>

#include "base/error.h"

namespace ark::api {

Model::Model(ServedModel given, schedule::SchedulerOptions scheduling)
    : served(std::move(given)),
      created(std::time(nullptr)),
      options(scheduling),
      scheduler(std::make_unique<schedule::Scheduler>(*served.runner, scheduling)) {}

const text::Tokenizer* Model::tokenizer_or_null() const {
  return served.text->tokenizer ? &*served.text->tokenizer : nullptr;
}

const text::Tokenizer& Model::tokenizer(const std::string& param) const {
  if (!served.text->tokenizer)
    throw http::HttpError(400,
                          param + " needs a tokenizer, and no tokenizer.json lies beside the model " +
                              escaped(served.name) + "; send token ids to /v1/completions",
                          param, "no_tokenizer");
  return *served.text->tokenizer;
}

std::vector<int32_t> Model::encode(const std::string& param, const std::string& text, bool special) const {
  const text::Tokenizer& tokenizer = this->tokenizer(param);
  // Tokenizing takes some hundred bytes per byte of text: long texts take turns.
  constexpr std::size_t kLong = 256 << 10;
  static std::mutex turn;
  const auto lock = text.size() > kLong ? std::unique_lock(turn) : std::unique_lock<std::mutex>();
  try {
    return special ? served.text->encode_prompt(text) : tokenizer.encode(text, false);
  } catch (const Error& e) {
    if (e.code() != Code::kInvalidArgument) throw;
    throw http::HttpError(400, param + ": " + e.what(), param, "invalid_value");
  }
}

void Service::add(ServedModel served, schedule::SchedulerOptions options) {
  models_.push_back(std::make_unique<Model>(std::move(served), options));
}

Model& Service::model(const std::string& name) {
  for (const auto& model : models_)
    if (model->served.name == name) return *model;
  throw http::HttpError(404, "the model " + escaped(name) + " does not exist; /v1/models lists those that do",
                        "model", "model_not_found");
}

Model& Service::model_of(const Fields& fields) {
  const auto name = fields.string("model");
  if (!name && models_.size() == 1) return *models_[0];
  if (!name) fields.wrong_type("model", "the name of a model");
  return model(*name);
}

std::string Service::failure() const {
  for (const auto& model : models_)
    if (std::string why = model->scheduler->failure(); !why.empty()) return model->served.name + ": " + why;
  return "";
}

std::string Service::not_ready() const {
  if (models_.empty()) return "no model is loaded";
  if (draining_) return "the server is shutting down";
  return failure();
}

}  // namespace ark::api

// The fields that completions and chat have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/api/fields.h"
#include "server/api/service.h"
#include "server/json.h"
#include "server/session/generation.h"

namespace ark::api {

const std::vector<Field>& generation_fields();

struct Parameters {
  schedule::GenerateRequest request;  // all but the prompt and the seed
  session::TextOptions text;
  std::optional<uint64_t> seed;
  std::optional<int64_t> max_tokens;  // as given; the routes have different defaults
  int32_t n = 1;
  Json schema;  // that the text is a value of, by request.constrain; null: it is not
  bool stream = false, include_usage = false, continuous_usage = false, return_token_ids = false;
};

// Throws HttpError 400.
Parameters read_parameters(const Fields& fields, const Model& model);

// A prompt's length, and the field that it came in.
struct PromptSize {
  std::string field;
  int64_t tokens;
};

// Whether max_tokens fits behind a prompt; 400 that says by how much not. `field` is the name that the client
// used for max_tokens.
void check_length(const Model& model, const PromptSize& prompt, int64_t max_tokens, const std::string& field);

// Whether so many sequences, which `field` asks for, can ever wait at once: a 429 would say to try again. Else 400.
void check_sequences(const Model& model, std::size_t sequences, const std::string& field);

}  // namespace ark::api

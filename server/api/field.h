// The fields of a request's body. What a field is called, what it may hold and what it means stands once, here or
// beside its route: the reader (fields.h) and /openapi.json (schema.h) both go by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "server/json_fwd.h"

namespace ark::api {

// What the served models take at most.
struct Limits {
  int64_t length = 0, vocabulary = 0;  // tokens
};

struct IntegerField {
  const char* name;
  int64_t low, high;
  const char* about;
  // The context ends it too; by how much a request is too long is told where its prompt is known.
  bool within_context = false;
};
struct NumberField {
  const char* name;
  double low, high, standard;
  const char* about;
};
struct FlagField {
  const char* name;
  bool standard;
  const char* about;
};
struct TextField {
  const char* name;
  const char* about;
  bool may_be_null = true;
};
struct TextsField {  // a string or an array of strings
  const char* name;
  std::size_t most, most_bytes;  // strings, bytes of each
  const char* about;
};
struct IdsField {  // token ids
  const char* name;
  std::size_t most;
  const char* about;
};
// Any other: its route reads it.
struct OtherField {
  const char* name;
  Json (*schema)(const Limits&);
  bool required = false;
};

inline constexpr TextField kModelName{"model", "Name of a served model; the only one if left out.", false};

using Field = std::variant<IntegerField, NumberField, FlagField, TextField, TextsField, IdsField, OtherField>;

}  // namespace ark::api

// Normalizers of tokenizer.json: text -> text, before it is split.
#pragma once

#include <memory>
#include <string>

#include "server/text/budget.h"
#include "server/text/json_view.h"

namespace ark::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Charges for what it makes.
  virtual void apply(std::string& text, Budget& budget) const = 0;

  // Null for null. kBadModel or kUnsupported otherwise.
  static std::unique_ptr<Normalizer> parse(const JsonView& json, int depth = 0);
};

// BERT's cleaning, spacing of CJK characters, accents and case. `strip_accents` unset follows `lowercase`.
std::unique_ptr<Normalizer> parse_bert_normalizer(const JsonView& json);
// SentencePiece's compiled character map (a double-array trie and its replacements, in base64).
std::unique_ptr<Normalizer> parse_precompiled_normalizer(const JsonView& json);

}  // namespace ark::text

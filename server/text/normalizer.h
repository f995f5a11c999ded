// Normalizers of tokenizer.json: text -> text, before it is split.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/text/budget.h"
#include "server/text/json_view.h"

namespace ark::text {

class Normalizer {
 public:
  explicit Normalizer(const JsonView& json) { add(json, 0); }  // null: changes nothing

  void apply(std::string& text, Budget& budget) const {
    for (const Step& step : steps_) step(text, budget);
  }

  using Step = std::function<void(std::string& text, Budget& budget)>;  // charges for what it makes

 private:
  void add(const JsonView& json, int depth);

  std::vector<Step> steps_;
};

// BERT's cleaning, spacing of CJK characters, accents and case. `strip_accents` unset follows `lowercase`.
Normalizer::Step parse_bert_normalizer(const JsonView& json);
// SentencePiece's compiled character map (a double-array trie and its replacements, in base64).
Normalizer::Step parse_precompiled_normalizer(const JsonView& json);

}  // namespace ark::text

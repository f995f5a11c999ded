// Pre-tokenizers of tokenizer.json: cut text into the pieces (words) that the model sees one at a time.
#pragma once

#include <functional>
#include <vector>

#include "server/text/json_view.h"
#include "server/text/split.h"

namespace ark::text {

class PreTokenizer {
 public:
  explicit PreTokenizer(const JsonView& json) { add(json, 0); }  // null: cuts nothing

  // Replaces the pieces by smaller ones, which are never empty. Charges for what it makes.
  void apply(std::vector<Piece>& pieces, Budget& budget) const;

  // Appends what becomes of one piece.
  using Cut = std::function<void(Piece& piece, std::vector<Piece>& out, Budget& budget)>;

 private:
  void add(const JsonView& json, int depth);

  std::vector<Cut> cuts_;
};

enum class PrependScheme { kAlways, kFirst, kNever };
PrependScheme parse_prepend_scheme(const JsonView& metaspace);

}  // namespace ark::text

// Pre-tokenizers of tokenizer.json: cut text into the pieces (words) that the model sees one at a time.
#pragma once

#include <memory>
#include <vector>

#include "server/text/json_view.h"
#include "server/text/split.h"

namespace ark::text {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;

  // Replaces the pieces by smaller ones, which are never empty. Charges for what it makes.
  virtual void apply(std::vector<Piece>& pieces, Budget& budget) const;

  // Null for null. kBadModel or kUnsupported otherwise.
  static std::unique_ptr<PreTokenizer> parse(const JsonView& json, int depth = 0);

 protected:
  virtual void cut(Piece& piece, std::vector<Piece>& out, Budget& budget) const = 0;
};

enum class PrependScheme { kAlways, kFirst, kNever };
PrependScheme parse_prepend_scheme(const JsonView& metaspace);

}  // namespace ark::text

// Post-processors of tokenizer.json: put special tokens (bos, [CLS] ...) around the ids of a text.
#pragma once

#include <cstdint>
#include <vector>

#include "server/text/json_view.h"

namespace ark::text {

class PostProcessor {
 public:
  PostProcessor() = default;
  explicit PostProcessor(const JsonView& json);  // null: adds nothing

  void apply(std::vector<std::int32_t>& ids) const;

 private:
  void parse(const JsonView& json, int depth);
  void parse_template(const JsonView& json);
  void wrap(std::vector<std::int32_t> before, const std::vector<std::int32_t>& after);

  std::vector<std::int32_t> before_, after_;
};

}  // namespace ark::text

#include "server/session/encode.h"

#include <mutex>

#include "base/error.h"

namespace ark::session {

std::vector<int32_t> encode(const Model& model, std::string_view text, bool special) {
  const text::Tokenizer* tokenizer = model.tokenizer();
  if (!tokenizer)
    throw Error(Code::kUnsupported, "the model " + escaped(model.name()) + " has no tokenizer.json");
  // Tokenizing takes some hundred bytes per byte of text: long texts take turns.
  constexpr std::size_t kLong = 256 << 10;
  static std::mutex turn;
  const auto lock = text.size() > kLong ? std::unique_lock(turn) : std::unique_lock<std::mutex>();
  return special ? model.served.text->encode_prompt(text) : tokenizer->encode(text, false);
}

}  // namespace ark::session

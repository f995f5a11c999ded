#include "server/session/encode.h"

#include <chrono>
#include <mutex>

#include "base/error.h"
#include "server/text/budget.h"

namespace ark::session {

std::vector<int32_t> encode(const Model& model, std::string_view text, bool special) {
  const text::Tokenizer* tokenizer = model.tokenizer();
  if (!tokenizer)
    throw Error(Code::kUnsupported, "the model " + escaped(model.name()) + " has no tokenizer.json");
  // Tokenizing takes some hundred bytes per byte of text: long texts take turns.
  constexpr std::size_t kLong = 256 << 10;
  constexpr std::chrono::milliseconds kLook{50};  // at whether anybody waits for it still
  static std::timed_mutex turn;
  std::unique_lock lock(turn, std::defer_lock);
  while (text.size() > kLong && !lock.try_lock_for(kLook))
    if (text::StopScope::stopped())
      throw Error(Code::kInvalidArgument, "text: nobody waits for its turn any more");
  return special ? model.served.text->encode_prompt(text) : tokenizer->encode(text, false);
}

}  // namespace ark::session

// A Hugging Face tokenizer.json: text <-> token ids.
//
// text -> added tokens -> normalizer -> pre-tokenizer -> model -> post-processor -> ids -> decoder -> text
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/json_fwd.h"
#include "server/text/budget.h"

namespace ark::text {

class Detokenizer;

// Const after loading; every const method may be called from any thread.
class Tokenizer {
 public:
  // kNotFound, kBadModel (broken or hostile) or kUnsupported (a stage that ark does not have).
  static Tokenizer load(const std::filesystem::path& file);
  explicit Tokenizer(const Json& document, const std::string& name = "tokenizer.json");
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Added tokens are found in the text whether or not they are special. `add_special_tokens`: what the
  // post-processor adds (bos ...). kInvalidArgument if the text is not UTF-8 or cannot be tokenized.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens) const;
  // The same within a budget of the caller's. The usual one grows with the text.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens, Budget budget) const;

  // Ids without a token are left out.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;

  // The token as the vocabulary spells it; nothing for an id without token.
  std::optional<std::string_view> token(std::int32_t id) const;
  // The bytes that the id stands for, which need not be whole characters; empty for an id without token.
  std::string token_bytes(std::int32_t id) const;
  std::optional<std::int32_t> id(std::string_view token) const;
  bool is_special(std::int32_t id) const;
  std::int32_t vocab_size() const;  // one past the largest id
  std::int32_t lowest_id() const;   // vocab_size() if there is no token

 private:
  friend class Detokenizer;
  struct Parts;
  void encode_section(std::string section, bool at_start, std::vector<std::int32_t>& ids,
                      Budget& budget) const;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace ark::text

// WordPiece (BERT): the longest known prefix of what is left of the word, again and again; and WordLevel:
// whole words.
#include <optional>

#include "server/text/token_model.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

class WordPiece : public TokenModel {
 public:
  explicit WordPiece(const JsonView& json)
      : prefix_(json.at("continuing_subword_prefix").string_or("##")),
        max_characters_(
            json.at("max_input_chars_per_word").is_null()
                ? 100
                : static_cast<std::size_t>(json.at("max_input_chars_per_word").integer(1, 1 << 20))) {
    vocabulary_.add_all(json.at("vocab"));
    unknown_text_ = json.at("unk_token").string_or("[UNK]");
    unknown_ = vocabulary_.find(unknown_text_);
    json.at("vocab").each(
        [this](const std::string& token, const JsonView&) { longest_ = std::max(longest_, token.size()); });
  }

  void encode(std::string_view piece, std::vector<std::int32_t>& ids, Budget& budget) const override {
    budget.charge_reading(piece.size());
    const std::size_t first = ids.size();
    bool fits = count_chars(piece) <= max_characters_;
    for (std::size_t at = 0; fits && at < piece.size();) {
      std::string candidate = at > 0 ? prefix_ : "";
      const std::size_t prefix = candidate.size();
      candidate += piece.substr(at, longest_);
      std::optional<std::int32_t> id;
      while (candidate.size() > prefix && !(id = vocabulary_.find(candidate))) {
        budget.charge_reading(candidate.size());
        candidate.pop_back();
      }
      if (id) ids.push_back(*id);
      at += candidate.size() - prefix;
      fits = id.has_value();
    }
    if (fits) return;
    ids.resize(first);
    if (!unknown_) throw_unknown(piece, unknown_text_);
    ids.push_back(*unknown_);
  }

 private:
  std::string prefix_;
  std::size_t max_characters_;
  std::size_t longest_ = 0;  // bytes of the longest token
  std::string unknown_text_;
  std::optional<std::int32_t> unknown_;
};

class WordLevel : public TokenModel {
 public:
  explicit WordLevel(const JsonView& json) {
    vocabulary_.add_all(json.at("vocab"));
    unknown_text_ = json.at("unk_token").string_or("<unk>");
    unknown_ = vocabulary_.find(unknown_text_);
  }

  void encode(std::string_view piece, std::vector<std::int32_t>& ids, Budget& budget) const override {
    budget.charge_reading(piece.size());
    const auto id = vocabulary_.find(piece);
    if (!id && !unknown_) throw_unknown(piece, unknown_text_);
    ids.push_back(id ? *id : *unknown_);
  }

 private:
  std::string unknown_text_;
  std::optional<std::int32_t> unknown_;
};

}  // namespace

std::unique_ptr<TokenModel> parse_word_piece(const JsonView& json) {
  return std::make_unique<WordPiece>(json);
}
std::unique_ptr<TokenModel> parse_word_level(const JsonView& json) {
  return std::make_unique<WordLevel>(json);
}

}  // namespace ark::text

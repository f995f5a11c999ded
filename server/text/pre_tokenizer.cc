#include "server/text/pre_tokenizer.h"

#include "base/error.h"
#include "server/text/byte_level.h"
#include "server/text/pattern.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

bool is_ascii_punctuation(char32_t c) {
  return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
         (c >= 0x7B && c <= 0x7E);
}

bool is_bert_punctuation(char32_t c) { return is_ascii_punctuation(c) || is_punctuation(c); }

class PreTokenizerSequence : public PreTokenizer {
 public:
  PreTokenizerSequence(const JsonView& json, int depth) {
    const JsonView list = parts_of(json.at("pretokenizers"));
    for (std::size_t i = 0; i < list.size(); ++i)
      if (auto step = PreTokenizer::parse(list.at(i), depth + 1)) steps_.push_back(std::move(step));
  }
  void apply(std::vector<Piece>& pieces, Budget& budget) const override {
    for (const auto& step : steps_) step->apply(pieces, budget);
  }

 protected:
  void cut(Piece& piece, std::vector<Piece>& out, Budget&) const override { out.push_back(std::move(piece)); }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  explicit ByteLevelPreTokenizer(const JsonView& json)
      : prefix_space_(json.at("add_prefix_space").boolean_or(true)) {
    if (json.at("use_regex").boolean_or(true)) regex_.emplace(kGpt2Pattern, json.place());
  }

 protected:
  void cut(Piece& piece, std::vector<Piece>& out, Budget& budget) const override {
    if (prefix_space_ && !piece.text.starts_with(' ')) piece.text.insert(0, 1, ' ');
    if (!regex_) {
      out.push_back({bytes_to_chars(piece.text), piece.at_start});
      return;
    }
    const std::size_t first = out.size();
    split(piece, segments_of(piece.text, regex_->find_all(piece.text, budget), false),
          SplitBehavior::kIsolated, out);
    for (std::size_t i = first; i < out.size(); ++i) out[i].text = bytes_to_chars(out[i].text);
  }

 private:
  bool prefix_space_;
  std::optional<Regex> regex_;
};

class Split : public PreTokenizer {
 public:
  explicit Split(const JsonView& json)
      : pattern_(json.at("pattern")),
        behavior_(parse_split_behavior(json.at("behavior"))),
        invert_(json.at("invert").boolean_or(false)) {}

 protected:
  void cut(Piece& piece, std::vector<Piece>& out, Budget& budget) const override {
    split(piece, segments_of(piece.text, pattern_.find_all(piece.text, budget), invert_), behavior_, out);
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

// Splits at characters of a kind.
class CharacterSplit : public PreTokenizer {
 public:
  using Predicate = bool (*)(char32_t);
  CharacterSplit(Predicate predicate, SplitBehavior behavior) : predicate_(predicate), behavior_(behavior) {}

 protected:
  void cut(Piece& piece, std::vector<Piece>& out, Budget&) const override {
    split(piece, segments_of(piece.text, match_characters(piece.text, predicate_), false), behavior_, out);
  }

 private:
  Predicate predicate_;
  SplitBehavior behavior_;
};

class Delimiter : public PreTokenizer {
 public:
  explicit Delimiter(const JsonView& json) : delimiter_(json.at("delimiter").character()) {}

 protected:
  void cut(Piece& piece, std::vector<Piece>& out, Budget&) const override {
    const auto matches = match_characters(piece.text, [this](char32_t c) { return c == delimiter_; });
    split(piece, segments_of(piece.text, matches, false), SplitBehavior::kRemoved, out);
  }

 private:
  char32_t delimiter_;
};

class BertPreTokenizer : public PreTokenizer {
 public:
  void apply(std::vector<Piece>& pieces, Budget& budget) const override {
    CharacterSplit(is_whitespace, SplitBehavior::kRemoved).apply(pieces, budget);
    CharacterSplit(is_bert_punctuation, SplitBehavior::kIsolated).apply(pieces, budget);
  }

 protected:
  void cut(Piece& piece, std::vector<Piece>& out, Budget&) const override { out.push_back(std::move(piece)); }
};

// Runs of word characters and runs of others; white space goes.
class Whitespace : public PreTokenizer {
 protected:
  void cut(Piece& piece, std::vector<Piece>& out, Budget&) const override {
    enum Kind { kSpace, kWord, kOther };
    Kind kind = kSpace;
    std::size_t begin = 0;
    const auto close = [&](std::size_t end) {
      if (kind != kSpace)
        out.push_back({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
    };
    for (std::size_t at = 0; at < piece.text.size();) {
      const std::size_t here = at;
      const char32_t c = next_char(piece.text, at);
      const Kind next = is_word(c) ? kWord : is_whitespace(c) ? kSpace : kOther;
      if (next == kind) continue;
      close(here);
      kind = next;
      begin = here;
    }
    close(piece.text.size());
  }
};

class Metaspace : public PreTokenizer {
 public:
  explicit Metaspace(const JsonView& json)
      : scheme_(parse_prepend_scheme(json)), split_(json.at("split").boolean_or(true)) {
    append_utf8(replacement_, json.at("replacement").character());
  }

 protected:
  void cut(Piece& piece, std::vector<Piece>& out, Budget&) const override {
    Piece marked{"", piece.at_start};
    for (char c : piece.text)
      if (c == ' ')
        marked.text += replacement_;
      else
        marked.text += c;
    const bool prepend =
        scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && piece.at_start);
    if (prepend && !marked.text.starts_with(replacement_)) marked.text.insert(0, replacement_);
    if (!split_) return out.push_back(std::move(marked));
    const auto matches = find_literal(marked.text, replacement_);
    split(marked, segments_of(marked.text, matches, false), SplitBehavior::kMergedWithNext, out);
  }

 private:
  PrependScheme scheme_;
  bool split_;
  std::string replacement_;
};

class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(const JsonView& json)
      : length_(static_cast<std::size_t>(json.at("length").integer(1, 1 << 20))) {}

 protected:
  void cut(Piece& piece, std::vector<Piece>& out, Budget&) const override {
    for (std::size_t at = 0; at < piece.text.size();) {
      const std::size_t begin = at;
      for (std::size_t n = 0; n < length_ && at < piece.text.size(); ++n) next_char(piece.text, at);
      out.push_back({piece.text.substr(begin, at - begin), piece.at_start && begin == 0});
    }
  }

 private:
  std::size_t length_;
};

std::unique_ptr<PreTokenizer> character_split(CharacterSplit::Predicate predicate, SplitBehavior behavior) {
  return std::make_unique<CharacterSplit>(predicate, behavior);
}

}  // namespace

void PreTokenizer::apply(std::vector<Piece>& pieces, Budget& budget) const {
  std::vector<Piece> out;
  out.reserve(pieces.size());
  for (Piece& piece : pieces) {
    const std::size_t first = out.size();
    cut(piece, out, budget);
    std::size_t bytes = 0;
    for (std::size_t i = first; i < out.size(); ++i) bytes += out[i].text.size() + sizeof(Piece);
    budget.charge_bytes(bytes);
  }
  pieces = std::move(out);
}

PrependScheme parse_prepend_scheme(const JsonView& metaspace) {
  const bool prefix = metaspace.at("add_prefix_space").boolean_or(true);
  const JsonView scheme = metaspace.at("prepend_scheme");
  const std::string name = scheme.string_or(prefix ? "always" : "never");
  if (name == "never" || !prefix) return PrependScheme::kNever;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "always") return PrependScheme::kAlways;
  scheme.fail("unknown prepend_scheme " + escaped(name, 60));
}

std::unique_ptr<PreTokenizer> PreTokenizer::parse(const JsonView& json, int depth) {
  if (json.is_null()) return nullptr;
  if (depth > kMaxSequenceDepth)
    json.fail("pre-tokenizers are nested deeper than " + std::to_string(kMaxSequenceDepth));
  const std::string& type = json.at("type").string();
  if (type == "Sequence") return std::make_unique<PreTokenizerSequence>(json, depth);
  if (type == "ByteLevel") return std::make_unique<ByteLevelPreTokenizer>(json);
  if (type == "Split") return std::make_unique<Split>(json);
  if (type == "Metaspace") return std::make_unique<Metaspace>(json);
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "WhitespaceSplit") return character_split(is_whitespace, SplitBehavior::kRemoved);
  if (type == "Punctuation")
    return character_split(is_bert_punctuation, parse_split_behavior(json.at("behavior")));
  if (type == "BertPreTokenizer") return std::make_unique<BertPreTokenizer>();
  if (type == "CharDelimiterSplit") return std::make_unique<Delimiter>(json);
  if (type == "FixedLength") return std::make_unique<FixedLength>(json);
  if (type == "Digits") {
    const bool individual = json.at("individual_digits").boolean_or(false);
    return character_split(is_number, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  json.unsupported("pre-tokenizer " + escaped(type, 60) + " is not supported");
}

}  // namespace ark::text

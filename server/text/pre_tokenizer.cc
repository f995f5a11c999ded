#include "server/text/pre_tokenizer.h"

#include <memory>

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

using Cut = PreTokenizer::Cut;

Cut by_byte_level(const JsonView& json) {
  std::shared_ptr<const Regex> regex;
  if (json.at("use_regex").boolean_or(true)) regex = std::make_shared<Regex>(kGpt2Pattern, json.place());
  return [regex, prefix_space = json.at("add_prefix_space").boolean_or(true)](
             Piece& piece, std::vector<Piece>& out, Budget& budget) {
    if (prefix_space && !piece.text.starts_with(' ')) piece.text.insert(0, 1, ' ');
    const std::size_t first = out.size();
    if (regex)
      split(piece, segments_of(piece.text, regex->find_all(piece.text, budget), false),
            SplitBehavior::kIsolated, out);
    else
      out.push_back(std::move(piece));
    for (std::size_t i = first; i < out.size(); ++i) out[i].text = bytes_to_chars(out[i].text);
  };
}

Cut by_pattern(const JsonView& json) {
  return [pattern = std::make_shared<const Pattern>(json.at("pattern")),
          behavior = parse_split_behavior(json.at("behavior")), invert = json.at("invert").boolean_or(false)](
             Piece& piece, std::vector<Piece>& out, Budget& budget) {
    split(piece, segments_of(piece.text, pattern->find_all(piece.text, budget), invert), behavior, out);
  };
}

// At characters of a kind.
Cut by_kind(std::function<bool(char32_t)> kind, SplitBehavior behavior) {
  return [kind = std::move(kind), behavior](Piece& piece, std::vector<Piece>& out, Budget&) {
    split(piece, segments_of(piece.text, match_characters(piece.text, kind), false), behavior, out);
  };
}

// Runs of word characters and runs of others; white space goes.
void by_words(Piece& piece, std::vector<Piece>& out, Budget&) {
  enum Kind { kSpace, kWord, kOther };
  Kind kind = kSpace;
  std::size_t begin = 0;
  const auto close = [&](std::size_t end) {
    if (kind != kSpace) out.push_back({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
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

Cut by_metaspace(const JsonView& json) {
  std::string replacement;
  append_utf8(replacement, json.at("replacement").character());
  return [replacement, scheme = parse_prepend_scheme(json), cuts = json.at("split").boolean_or(true)](
             Piece& piece, std::vector<Piece>& out, Budget&) {
    Piece marked{replace_spans(piece.text, find_literal(piece.text, " "), replacement), piece.at_start};
    const bool prepend =
        scheme == PrependScheme::kAlways || (scheme == PrependScheme::kFirst && piece.at_start);
    if (prepend && !marked.text.starts_with(replacement)) marked.text.insert(0, replacement);
    if (!cuts) return out.push_back(std::move(marked));
    const auto matches = find_literal(marked.text, replacement);
    split(marked, segments_of(marked.text, matches, false), SplitBehavior::kMergedWithNext, out);
  };
}

Cut by_length(const JsonView& json) {
  return [length = json.at("length").integer(1, 1 << 20)](Piece& piece, std::vector<Piece>& out, Budget&) {
    for (std::size_t at = 0; at < piece.text.size();) {
      const std::size_t begin = at;
      for (std::int64_t n = 0; n < length && at < piece.text.size(); ++n) next_char(piece.text, at);
      out.push_back({piece.text.substr(begin, at - begin), piece.at_start && begin == 0});
    }
  };
}

}  // namespace

void PreTokenizer::apply(std::vector<Piece>& pieces, Budget& budget) const {
  for (const Cut& cut : cuts_) {
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

void PreTokenizer::add(const JsonView& json, int depth) {
  if (json.is_null()) return;
  const std::string& type = json.at("type").string();
  if (type == "Sequence") {
    for (const JsonView& part : parts_of(json.at("pretokenizers"), depth)) add(part, depth + 1);
  } else if (type == "ByteLevel") {
    cuts_.push_back(by_byte_level(json));
  } else if (type == "Split") {
    cuts_.push_back(by_pattern(json));
  } else if (type == "Metaspace") {
    cuts_.push_back(by_metaspace(json));
  } else if (type == "Whitespace") {
    cuts_.emplace_back(by_words);
  } else if (type == "WhitespaceSplit") {
    cuts_.push_back(by_kind(is_whitespace, SplitBehavior::kRemoved));
  } else if (type == "Punctuation") {
    cuts_.push_back(by_kind(is_bert_punctuation, parse_split_behavior(json.at("behavior"))));
  } else if (type == "BertPreTokenizer") {
    cuts_.push_back(by_kind(is_whitespace, SplitBehavior::kRemoved));
    cuts_.push_back(by_kind(is_bert_punctuation, SplitBehavior::kIsolated));
  } else if (type == "CharDelimiterSplit") {
    const char32_t delimiter = json.at("delimiter").character();
    cuts_.push_back(by_kind([delimiter](char32_t c) { return c == delimiter; }, SplitBehavior::kRemoved));
  } else if (type == "FixedLength") {
    cuts_.push_back(by_length(json));
  } else if (type == "Digits") {
    const bool individual = json.at("individual_digits").boolean_or(false);
    cuts_.push_back(by_kind(is_number, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
  } else {
    json.unsupported("pre-tokenizer " + escaped(type, 60) + " is not supported");
  }
}

}  // namespace ark::text

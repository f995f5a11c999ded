#include "server/text/normalizer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "server/text/byte_level.h"
#include "server/text/pattern.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

template <NormalForm kForm>
std::string in_form(std::string_view text) {
  return normalize(text, kForm);
}

std::string without_accents(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();)
    if (const char32_t c = next_char(text, at); !is_mark(c)) append_utf8(out, c);
  return out;
}

// SentencePiece's nmt rule: drops controls, turns all kinds of blanks into a space.
std::string nmt(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_char(text, at);
    const bool dropped =
        (c >= 1 && c <= 8) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
    const bool blank = c == 9 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                       (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                       c == 0xFEFF || c == 0xFFFD;
    if (!dropped) append_utf8(out, blank ? U' ' : c);
  }
  return out;
}

Normalizer::Step replace_step(const JsonView& json) {
  return
      [pattern = std::make_shared<const Pattern>(json.at("pattern")), content = json.at("content").string()](
          std::string& text, Budget& budget) { text = pattern->replace_all(text, content, budget); };
}

Normalizer::Step prepend_step(const JsonView& json) {
  return [prefix = json.at("prepend").string()](std::string& text, Budget& budget) {
    budget.charge_bytes(text.size() + prefix.size());
    if (!text.empty()) text.insert(0, prefix);
  };
}

Normalizer::Step strip_step(const JsonView& json) {
  return [left = json.at("strip_left").boolean(), right = json.at("strip_right").boolean()](std::string& text,
                                                                                            Budget& budget) {
    budget.charge_bytes(text.size());
    std::size_t begin = text.size(), end = 0;  // of what is not white space
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t here = at;
      if (is_whitespace(next_char(text, at))) continue;
      begin = std::min(begin, here);
      end = at;
    }
    if (right) text.resize(end);
    if (left) text.erase(0, begin);
  };
}

}  // namespace

void Normalizer::add(const JsonView& json, int depth) {
  if (json.is_null()) return;
  const std::string& type = json.at("type").string();
  if (type == "Sequence") {
    for (const JsonView& part : parts_of(json.at("normalizers"), depth)) add(part, depth + 1);
    return;
  }
  // Functions of the whole text, which make not much more of it.
  using Map = std::string (*)(std::string_view text);
  static constexpr std::pair<std::string_view, Map> kMaps[] = {{"NFC", in_form<NormalForm::kNfc>},
                                                               {"NFD", in_form<NormalForm::kNfd>},
                                                               {"NFKC", in_form<NormalForm::kNfkc>},
                                                               {"NFKD", in_form<NormalForm::kNfkd>},
                                                               {"Lowercase", to_lower},
                                                               {"StripAccents", without_accents},
                                                               {"ByteLevel", bytes_to_chars},
                                                               {"Nmt", nmt}};
  for (const auto& [name, map] : kMaps)
    if (type == name)
      return steps_.push_back([map = map](std::string& text, Budget& budget) {
        budget.charge_bytes(text.size());
        text = map(text);
      });
  static constexpr std::pair<std::string_view, Step (*)(const JsonView&)> kSteps[] = {
      {"Replace", replace_step},
      {"Prepend", prepend_step},
      {"Strip", strip_step},
      {"BertNormalizer", parse_bert_normalizer},
      {"Precompiled", parse_precompiled_normalizer}};
  for (const auto& [name, parse] : kSteps)
    if (type == name) return steps_.push_back(parse(json));
  json.unsupported("normalizer " + escaped(type, 60) + " is not supported");
}

}  // namespace ark::text

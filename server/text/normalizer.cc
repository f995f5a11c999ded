#include "server/text/normalizer.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "server/text/byte_level.h"
#include "server/text/pattern.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

class NormalizerSequence : public Normalizer {
 public:
  NormalizerSequence(const JsonView& json, int depth) {
    const JsonView list = parts_of(json.at("normalizers"));
    for (std::size_t i = 0; i < list.size(); ++i)
      if (auto step = Normalizer::parse(list.at(i), depth + 1)) steps_.push_back(std::move(step));
  }
  void apply(std::string& text, Budget& budget) const override {
    for (const auto& step : steps_) step->apply(text, budget);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

// Any function of the whole text, which makes not much more of it.
class Mapped : public Normalizer {
 public:
  using Map = std::string (*)(std::string_view text);
  explicit Mapped(Map map) : map_(map) {}
  void apply(std::string& text, Budget& budget) const override {
    budget.charge_bytes(text.size());
    text = map_(text);
  }

 private:
  Map map_;
};

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

class Replace : public Normalizer {
 public:
  explicit Replace(const JsonView& json)
      : pattern_(json.at("pattern")), content_(json.at("content").string()) {}
  void apply(std::string& text, Budget& budget) const override {
    text = pattern_.replace_all(text, content_, budget);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(const JsonView& json) : prefix_(json.at("prepend").string()) {}
  void apply(std::string& text, Budget& budget) const override {
    budget.charge_bytes(text.size() + prefix_.size());
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class Strip : public Normalizer {
 public:
  explicit Strip(const JsonView& json)
      : left_(json.at("strip_left").boolean()), right_(json.at("strip_right").boolean()) {}
  void apply(std::string& text, Budget& budget) const override {
    budget.charge_bytes(text.size());
    std::size_t begin = 0, end = 0;
    bool seen = false;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t here = at;
      if (is_whitespace(next_char(text, at))) continue;
      if (!seen) begin = here;
      seen = true;
      end = at;
    }
    if (!seen) {
      if (left_ || right_) text.clear();
      return;
    }
    text = text.substr(left_ ? begin : 0, right_ ? end - (left_ ? begin : 0) : std::string::npos);
  }

 private:
  bool left_, right_;
};

}  // namespace

std::unique_ptr<Normalizer> Normalizer::parse(const JsonView& json, int depth) {
  if (json.is_null()) return nullptr;
  if (depth > kMaxSequenceDepth)
    json.fail("normalizers are nested deeper than " + std::to_string(kMaxSequenceDepth));
  const std::string& type = json.at("type").string();
  if (type == "Sequence") return std::make_unique<NormalizerSequence>(json, depth);
  static constexpr std::pair<std::string_view, Mapped::Map> kMaps[] = {{"NFC", in_form<NormalForm::kNfc>},
                                                                       {"NFD", in_form<NormalForm::kNfd>},
                                                                       {"NFKC", in_form<NormalForm::kNfkc>},
                                                                       {"NFKD", in_form<NormalForm::kNfkd>},
                                                                       {"Lowercase", to_lower},
                                                                       {"StripAccents", without_accents},
                                                                       {"ByteLevel", bytes_to_chars},
                                                                       {"Nmt", nmt}};
  for (const auto& [name, map] : kMaps)
    if (type == name) return std::make_unique<Mapped>(map);
  if (type == "Replace") return std::make_unique<Replace>(json);
  if (type == "Prepend") return std::make_unique<Prepend>(json);
  if (type == "Strip") return std::make_unique<Strip>(json);
  if (type == "BertNormalizer") return parse_bert_normalizer(json);
  if (type == "Precompiled") return parse_precompiled_normalizer(json);
  json.unsupported("normalizer " + escaped(type, 60) + " is not supported");
}

}  // namespace ark::text

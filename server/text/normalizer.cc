#include "server/text/normalizer.h"

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

class Form : public Normalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  void apply(std::string& text, Budget& budget) const override {
    budget.charge_bytes(text.size());
    text = normalize(text, form_);
  }

 private:
  NormalForm form_;
};

class Lowercase : public Normalizer {
 public:
  void apply(std::string& text, Budget& budget) const override {
    budget.charge_bytes(text.size());
    text = to_lower(text);
  }
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void apply(std::string& text, Budget& budget) const override {
    budget.charge_bytes(text.size());
    text = bytes_to_chars(text);
  }
};

class StripAccents : public Normalizer {
 public:
  void apply(std::string& text, Budget& budget) const override {
    budget.charge_bytes(text.size());
    std::string out;
    for (std::size_t at = 0; at < text.size();)
      if (const char32_t c = next_char(text, at); !is_mark(c)) append_utf8(out, c);
    text = std::move(out);
  }
};

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

// SentencePiece's nmt rule: drops controls, turns all kinds of blanks into a space.
class Nmt : public Normalizer {
 public:
  void apply(std::string& text, Budget& budget) const override {
    budget.charge_bytes(text.size());
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
    text = std::move(out);
  }
};

}  // namespace

std::unique_ptr<Normalizer> Normalizer::parse(const JsonView& json, int depth) {
  if (json.is_null()) return nullptr;
  if (depth > kMaxSequenceDepth)
    json.fail("normalizers are nested deeper than " + std::to_string(kMaxSequenceDepth));
  const std::string& type = json.at("type").string();
  if (type == "Sequence") return std::make_unique<NormalizerSequence>(json, depth);
  if (type == "NFC") return std::make_unique<Form>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<Form>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<Form>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<Form>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Replace") return std::make_unique<Replace>(json);
  if (type == "Prepend") return std::make_unique<Prepend>(json);
  if (type == "Strip") return std::make_unique<Strip>(json);
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "BertNormalizer") return parse_bert_normalizer(json);
  if (type == "Precompiled") return parse_precompiled_normalizer(json);
  json.unsupported("normalizer " + escaped(type, 60) + " is not supported");
}

}  // namespace ark::text

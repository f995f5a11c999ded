#include "server/text/decode_stages.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "base/error.h"
#include "server/text/byte_level.h"
#include "server/text/pattern.h"
#include "server/text/pre_tokenizer.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

// Characters of the byte alphabet -> bytes -> UTF-8; bytes of an unfinished character wait.
class ByteLevelStage : public DecodeStage {
 public:
  std::size_t push(std::string_view token, std::vector<std::string>& out, Budget&) override {
    const std::size_t waited = pending_.size();
    pending_ += chars_to_bytes(token).value_or(std::string(token));
    std::string broken, text;  // of bytes that waited in vain, and of those that this token is of
    std::string_view rest = pending_;
    while (!rest.empty()) {
      const Utf8Prefix prefix = utf8_prefix(rest);
      if (prefix.incomplete) break;
      const std::size_t end = pending_.size() - rest.size() + prefix.length;
      (end <= waited ? broken : text) += prefix.valid ? rest.substr(0, prefix.length) : kReplacementCharacter;
      rest.remove_prefix(prefix.length);
    }
    pending_.erase(0, pending_.size() - rest.size());
    const std::size_t held = broken.empty() ? 0 : 1;
    if (held) out.push_back(std::move(broken));
    if (!text.empty()) out.push_back(std::move(text));
    return held;
  }
  void flush(std::vector<std::string>& out, Budget&) override {
    if (!pending_.empty()) out.push_back(lossy_utf8(pending_));
    pending_.clear();
  }

 private:
  std::string pending_;
};

// A run of <0xNN> tokens is text only if all of it is UTF-8, else each byte is one U+FFFD: so the run waits.
class ByteFallbackStage : public DecodeStage {
 public:
  std::size_t push(std::string_view token, std::vector<std::string>& out, Budget& budget) override {
    if (const int byte = fallback_byte(token); byte >= 0) {
      run_ += static_cast<char>(byte);
      return 0;
    }
    const std::size_t before = out.size();
    flush(out, budget);
    const std::size_t held = out.size() - before;
    out.emplace_back(token);
    return held;
  }
  void flush(std::vector<std::string>& out, Budget&) override {
    if (run_.empty()) return;
    if (is_valid_utf8(run_))
      out.push_back(run_);
    else
      out.insert(out.end(), run_.size(), std::string(kReplacementCharacter));
    run_.clear();
  }

 private:
  std::string run_;
};

// Any function of a token and of whether it is the first.
class MapStage : public DecodeStage {
 public:
  using Map = std::function<std::string(std::string_view token, bool first, Budget& budget)>;
  explicit MapStage(const Map& map) : map_(map) {}
  std::size_t push(std::string_view token, std::vector<std::string>& out, Budget& budget) override {
    out.push_back(map_(token, first_, budget));
    first_ = false;
    return 0;
  }

 private:
  const Map& map_;
  bool first_ = true;
};

// The same for a token that comes in fragments: it is put together first.
class FusedMapStage : public DecodeStage {
 public:
  explicit FusedMapStage(const MapStage::Map& map) : map_(map) {}
  std::size_t push(std::string_view fragment, std::vector<std::string>&, Budget&) override {
    token_ += fragment;
    return 0;
  }
  void flush(std::vector<std::string>& out, Budget& budget) override {
    out.push_back(map_(token_, true, budget));
    token_.clear();
  }

 private:
  const MapStage::Map& map_;
  std::string token_;
};

Decoder::Step map_step(MapStage::Map map, bool fused) {
  return
      [map = std::make_shared<const MapStage::Map>(std::move(map)), fused]() -> std::unique_ptr<DecodeStage> {
        if (fused) return std::make_unique<FusedMapStage>(*map);
        return std::make_unique<MapStage>(*map);
      };
}

// Strips up to `start` leading and `stop` trailing copies of a character from a fused token: the trailing
// ones wait.
class FusedStripStage : public DecodeStage {
 public:
  FusedStripStage(std::string_view character, std::size_t start, std::size_t stop)
      : character_(character), start_(start), stop_(stop) {}

  std::size_t push(std::string_view fragment, std::vector<std::string>& out, Budget&) override {
    std::string_view rest = fragment;
    while (start_ > 0 && rest.starts_with(character_)) {
      rest.remove_prefix(character_.size());
      --start_;
    }
    if (!rest.empty()) start_ = 0;
    const std::size_t waited = held_.size();
    std::string text = held_ + std::string(rest);
    std::size_t end = text.size();
    for (std::size_t n = 0; n < stop_ && std::string_view(text).substr(0, end).ends_with(character_); ++n)
      end -= character_.size();
    held_ = text.substr(end);
    const std::size_t held = std::min(waited, end);
    if (held > 0) out.push_back(text.substr(0, held));
    if (end > held) out.push_back(text.substr(held, end - held));
    return held > 0 ? 1 : 0;
  }
  void flush(std::vector<std::string>&, Budget&) override { held_.clear(); }

 private:
  std::string character_, held_;
  std::size_t start_, stop_;
};

template <typename Stage>
std::unique_ptr<DecodeStage> start() {
  return std::make_unique<Stage>();
}

class FuseStage : public DecodeStage {
 public:
  std::size_t push(std::string_view token, std::vector<std::string>& out, Budget&) override {
    out.emplace_back(token);
    return 0;
  }
};

class JoinStage : public DecodeStage {
 public:
  std::size_t push(std::string_view token, std::vector<std::string>& out, Budget&) override {
    out.push_back((first_ ? "" : " ") + std::string(token));
    first_ = false;
    return 0;
  }

 private:
  bool first_ = true;
};

// BPE with an end-of-word suffix: the suffix is a space, except at the end; so the last token waits.
class SuffixStage : public DecodeStage {
 public:
  explicit SuffixStage(std::string suffix) : suffix_(std::move(suffix)) {}
  std::size_t push(std::string_view token, std::vector<std::string>& out, Budget&) override {
    const std::size_t held = held_ ? 1 : 0;
    release(" ", out);
    held_ = token;
    return held;
  }
  void flush(std::vector<std::string>& out, Budget&) override { release("", out); }

 private:
  void release(std::string_view replacement, std::vector<std::string>& out) {
    if (!held_) return;
    out.push_back(replace_spans(*held_, find_literal(*held_, suffix_), replacement));
    held_.reset();
  }

  std::string suffix_;
  std::optional<std::string> held_;
};

// English contractions and punctuation, as BERT's decoder tidies them within one token.
std::string tidy(std::string text) {
  static constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) text = replace_spans(text, find_literal(text, from), to);
  return text;
}

MapStage::Map word_piece(const JsonView& json) {
  return [prefix = json.at("prefix").string_or("##"), cleanup = json.at("cleanup").boolean_or(true)](
             std::string_view token, bool first, Budget&) {
    std::string text(token);
    if (!first && token.starts_with(prefix))
      text.erase(0, prefix.size());
    else if (!first)
      text.insert(0, 1, ' ');
    return cleanup ? tidy(std::move(text)) : text;
  };
}

MapStage::Map metaspace(const JsonView& json) {
  return [replacement = json.at("replacement").character(),
          prepended = parse_prepend_scheme(json) != PrependScheme::kNever](std::string_view token, bool first,
                                                                           Budget&) {
    std::string text;
    for (std::size_t at = 0; at < token.size();) {
      const char32_t c = next_char(token, at);
      if (c != replacement)
        append_utf8(text, c);
      else if (!first || !prepended)
        text += ' ';
    }
    return text;
  };
}

MapStage::Map replace(const JsonView& json) {
  return [pattern = std::make_shared<const Pattern>(json.at("pattern")),
          content = json.at("content").string()](std::string_view token, bool, Budget& budget) {
    return pattern->replace_all(token, content, budget);
  };
}

Decoder::Step strip(const JsonView& json, bool fused) {
  std::string character;
  append_utf8(character, json.at("content").character());
  const auto start = static_cast<std::size_t>(json.at("start").integer(0, 1 << 20));
  const auto stop = static_cast<std::size_t>(json.at("stop").integer(0, 1 << 20));
  if (fused) return [=] { return std::make_unique<FusedStripStage>(character, start, stop); };
  return map_step(
      [character, start, stop](std::string_view token, bool, Budget&) {
        for (std::size_t n = 0; n < start && token.starts_with(character); ++n)
          token.remove_prefix(character.size());
        for (std::size_t n = 0; n < stop && token.ends_with(character); ++n)
          token.remove_suffix(character.size());
        return std::string(token);
      },
      false);
}

}  // namespace

int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

std::unique_ptr<DecodeStage> join_with_spaces() { return std::make_unique<JoinStage>(); }

Decoder::Step parse_decode_step(const JsonView& json, std::string_view type, bool fused) {
  if (type == "Fuse") return start<FuseStage>;
  if (type == "Strip") return strip(json, fused);
  if (type == "Replace") return map_step(replace(json), fused);
  if (type == "Metaspace") return map_step(metaspace(json), fused);
  if (type == "WordPiece") return map_step(word_piece(json), fused);
  if (fused) json.unsupported("decoder " + escaped(type, 60) + " behind one that fuses all tokens");
  if (type == "ByteLevel") return start<ByteLevelStage>;
  if (type == "ByteFallback") return start<ByteFallbackStage>;
  if (type == "BPEDecoder")
    return [suffix = json.at("suffix").string_or("</w>")] { return std::make_unique<SuffixStage>(suffix); };
  json.unsupported("decoder " + escaped(type, 60) + " is not supported");
}

}  // namespace ark::text

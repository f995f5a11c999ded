#include "server/text/decoder.h"

#include "base/error.h"
#include "server/text/byte_level.h"
#include "server/text/decode_stages.h"

namespace ark::text {
namespace {

// For one token, and for what a whole text has held back.
constexpr Budget kTokenBudget{1'000'000, std::size_t{8} << 20},
    kRestBudget{10'000'000, std::size_t{64} << 20};

constexpr std::size_t kMaxText = std::size_t{64} << 20;  // bytes of a stream

// `made`: bytes of the stream so far.
template <typename Function>
std::string within(Budget budget, std::size_t& made, Function decode) {
  try {
    std::string text = decode(budget);
    if ((made += text.size()) > kMaxText)
      throw BudgetExceeded("makes more than " + std::to_string(kMaxText >> 20) + " MiB");
    return text;
  } catch (const BudgetExceeded& error) {
    throw Error(Code::kInvalidArgument, std::string("tokens: decoding ") + error.what());
  }
}

std::string concatenation(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += part;
  return out;
}

}  // namespace

Decoder::Decoder(const JsonView& json) {
  if (json.is_null()) return;
  joins_with_spaces_ = false;
  add(json, 0);
}

void Decoder::add(const JsonView& json, int depth) {
  const std::string& type = json.at("type").string();
  if (type == "Sequence") {
    for (const JsonView& part : parts_of(json.at("decoders"), depth)) add(part, depth + 1);
    return;
  }
  steps_.push_back(parse_decode_step(json, type, fused_));
  fused_ |= type == "Fuse" || type == "ByteLevel";
  byte_level_ |= type == "ByteLevel";
  byte_fallback_ |= type == "ByteFallback";
}

std::string Decoder::token_bytes(std::string_view token) const {
  if (byte_level_) return chars_to_bytes(token).value_or(std::string(token));
  if (const int byte = byte_fallback_ ? fallback_byte(token) : -1; byte >= 0)
    return {static_cast<char>(byte)};
  if (steps_.empty() && !joins_with_spaces_) return std::string(token);
  // Behind another token: so that a stage that treats the first one differently shows the rule.
  Stream stream(*this);
  const std::string before = stream.push("x");
  std::string text = before + stream.push(token) + stream.flush();
  return text.starts_with('x') ? text.substr(1) : text;
}

Decoder::Stream::Stream(const Decoder& decoder) {
  if (decoder.joins_with_spaces_) stages_.push_back(join_with_spaces());
  for (const auto& start : decoder.steps_) stages_.push_back(start());
}

std::string Decoder::Stream::drain(std::vector<std::string> tokens, std::size_t stage, Budget& budget) {
  std::size_t held = 0;  // of tokens: the first ones, which are earlier ones' alone
  for (; stage < stages_.size() && !tokens.empty(); ++stage) {
    std::vector<std::string> next;
    std::size_t next_held = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      budget.charge_bytes(tokens[i].size() + sizeof tokens[i]);
      const std::size_t before = next.size();
      const std::size_t released = stages_[stage]->push(tokens[i], next, budget);
      if (i < held)
        next_held = next.size();
      else if (before == next_held)
        next_held += released;
    }
    tokens = std::move(next), held = next_held;
  }
  own_begin_ = 0;
  for (std::size_t i = 0; i < held; ++i) own_begin_ += tokens[i].size();
  return concatenation(tokens);
}

std::string Decoder::Stream::push(std::string_view token) {
  return within(kTokenBudget, made_, [&](Budget& budget) { return drain({std::string(token)}, 0, budget); });
}

std::string Decoder::Stream::flush() {
  return within(kRestBudget, made_, [&](Budget& budget) {
    std::string out;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      std::vector<std::string> rest;
      stages_[i]->flush(rest, budget);
      out += drain(std::move(rest), i + 1, budget);
    }
    return out;
  });
}

}  // namespace ark::text

#include "server/text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "server/json.h"
#include "server/text/detokenizer.h"
#include "server/text/tokenizer_parts.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

// What a text may cost, and each of its bytes on top.
constexpr std::size_t kWork = 10'000'000, kWorkPerByte = 16;
constexpr std::size_t kBytes = std::size_t{64} << 20, kBytesPerByte = 512;
constexpr std::chrono::seconds kTime{10};
constexpr std::size_t kBytesPerSecond = 100'000;  // a tenth of what one busy core does
constexpr Budget kLoadBudget{20'000'000, std::size_t{256} << 20};

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& file) {
  return Tokenizer(parse_json_file(file), escaped(file.filename().string()));
}

Tokenizer::Tokenizer(const Json& document, const std::string& name) {
  const JsonView json(document, name + ":");
  Budget budget = kLoadBudget;
  try {
    parts_ = std::make_unique<const Parts>(json.object(), budget);
  } catch (const BudgetExceeded& error) {
    throw Error(Code::kBadModel, name + ": loading it " + error.what());
  }
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  return encode(text, add_special_tokens,
                Budget(kWork + text.size() * kWorkPerByte, kBytes + text.size() * kBytesPerByte,
                       kTime + std::chrono::seconds(text.size() / kBytesPerSecond)));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                            Budget budget) const {
  if (!is_valid_utf8(text)) throw Error(Code::kInvalidArgument, "text: not valid UTF-8");
  std::vector<std::int32_t> ids;
  try {
    for (const Section& section : parts_->added.find(text, false, budget)) {
      if (section.id)
        ids.push_back(*section.id);
      else
        encode_section(std::string(text.substr(section.begin, section.end - section.begin)),
                       section.begin == 0, ids, budget);
    }
  } catch (const BudgetExceeded& error) {
    throw Error(Code::kInvalidArgument, std::string("text: tokenizing it ") + error.what());
  }
  if (add_special_tokens) parts_->post_processor.apply(ids);
  return ids;
}

// Text between added tokens that are found as they stand.
void Tokenizer::encode_section(std::string section, bool at_start, std::vector<std::int32_t>& ids,
                               Budget& budget) const {
  parts_->normalizer.apply(section, budget);
  for (const Section& inner : parts_->added.find(section, true, budget)) {
    if (inner.id) {
      ids.push_back(*inner.id);
      continue;
    }
    std::vector<Piece> pieces;
    pieces.push_back({section.substr(inner.begin, inner.end - inner.begin), at_start && inner.begin == 0});
    parts_->pre_tokenizer.apply(pieces, budget);
    for (const Piece& piece : pieces) parts_->model->encode(piece.text, ids, budget);
  }
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  Detokenizer detokenizer(*this, skip_special);
  std::string out;
  for (std::int32_t id : ids) out += detokenizer.push(id);
  return out += detokenizer.flush();
}

std::optional<std::string_view> Tokenizer::token(std::int32_t id) const {
  if (const AddedToken* added = parts_->added.token(id)) return added->text;
  const std::string* token = parts_->model->vocabulary().token(id);
  return token ? std::optional<std::string_view>(*token) : std::nullopt;
}

std::string Tokenizer::token_bytes(std::int32_t id) const {
  if (const AddedToken* added = parts_->added.token(id)) return added->text;
  const auto text = token(id);
  return text ? parts_->decoder.token_bytes(*text) : std::string();
}

std::optional<std::int32_t> Tokenizer::id(std::string_view token) const {
  const auto added = parts_->added.find_id(token);
  return added ? added : parts_->model->vocabulary().find(token);
}

bool Tokenizer::is_special(std::int32_t id) const {
  const auto text = token(id);
  return text && parts_->added.is_special(*text);
}

std::int32_t Tokenizer::lowest_id() const {
  std::int32_t id = 0;
  while (id < vocab_size() && !token(id)) ++id;
  return id;
}

std::int32_t Tokenizer::vocab_size() const {
  auto end = static_cast<std::int32_t>(parts_->model->vocabulary().end_id());
  for (const AddedToken& token : parts_->added.all()) end = std::max(end, token.id + 1);
  return end;
}

}  // namespace ark::text

#include "server/text/token_model.h"

#include <cstdio>

#include "base/error.h"

namespace ark::text {

std::unique_ptr<TokenModel> TokenModel::parse(const JsonView& json) {
  json.object();
  std::string type = json.at("type").string_or("");
  if (type.empty()) {  // files of the first versions do not say
    type = json.has("merges")                      ? "BPE"
           : json.has("unk_id")                    ? "Unigram"
           : json.has("continuing_subword_prefix") ? "WordPiece"
                                                   : "WordLevel";
  }
  if (type == "BPE") return parse_bpe(json);
  if (type == "Unigram") return parse_unigram(json);
  if (type == "WordPiece") return parse_word_piece(json);
  if (type == "WordLevel") return parse_word_level(json);
  json.unsupported("model " + escaped(type, 60) + " is not supported");
}

bool TokenModel::append_bytes(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::size_t size = ids.size();
  for (char byte : text) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned char>(byte));
    const auto id = vocabulary_.find(name);
    if (!id) {
      ids.resize(size);
      return false;
    }
    ids.push_back(*id);
  }
  return true;
}

void TokenModel::throw_unknown(std::string_view piece, std::string_view unknown_token) {
  throw Error(Code::kInvalidArgument, "text: " + escaped(piece, 60) +
                                          " is not in the vocabulary, nor is the tokenizer's unknown token " +
                                          escaped(unknown_token, 60));
}

}  // namespace ark::text

#include "server/text/grammar/token_trie.h"

#include <algorithm>
#include <string>

#include "server/text/tokenizer.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

// A longer one is not worth its nodes: it is never allowed.
constexpr std::size_t kMaxTokenBytes = 1024;

using FirstSpace = TokenTrie::FirstSpace;

// Asks with a token that begins with a space, and with one that has another behind it, if there is one.
FirstSpace first_space_of(const Tokenizer& tokenizer, const TokenTrie& trie) {
  bool is_dropped = false;
  for (std::int32_t id = 0; id < trie.size(); ++id) {
    const std::string_view bytes = trie.bytes_of(id);
    const bool has_another = bytes.find(' ', 1) != bytes.npos;
    if (bytes.size() < 2 || bytes[0] != ' ' || (is_dropped && !has_another) || !is_valid_utf8(bytes) ||
        trie.is_special(id))
      continue;
    const std::string shown = tokenizer.decode({&id, 1}, false);
    if (shown == bytes) return FirstSpace::kStays;
    is_dropped = true;
    if (has_another) return shown == bytes.substr(1) ? FirstSpace::kIsDropped : FirstSpace::kAllAreDropped;
  }
  return is_dropped ? FirstSpace::kIsDropped : FirstSpace::kStays;
}

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer) : first_space_(FirstSpace::kStays) {
  const std::int32_t count = tokenizer.vocab_size();
  offsets_.reserve(static_cast<std::size_t>(count) + 1);
  for (std::int32_t id = 0; id < count; ++id) add(tokenizer.token_bytes(id), tokenizer.is_special(id));
  build();
  first_space_ = first_space_of(tokenizer, *this);
}

TokenTrie::TokenTrie(std::vector<std::string> tokens, std::vector<bool> special, FirstSpace first_space)
    : first_space_(first_space) {
  for (std::size_t i = 0; i < tokens.size(); ++i) add(tokens[i], special[i]);
  build();
}

std::string_view TokenTrie::bytes_of_first(std::int32_t token) const {
  const std::string_view bytes = bytes_of(token);
  if (first_space_ == FirstSpace::kStays || !bytes.starts_with(' ')) return bytes;
  const std::string_view rest = bytes.substr(1);
  return first_space_ == FirstSpace::kAllAreDropped && rest.find(' ') != rest.npos ? std::string_view()
                                                                                   : rest;
}

void TokenTrie::add(std::string_view bytes, bool is_special) {
  if (bytes.size() <= kMaxTokenBytes) bytes_ += bytes;
  offsets_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  special_.push_back(is_special);
}

void TokenTrie::build() {
  for (std::int32_t id = 0; id < size(); ++id)
    if (!bytes_of(id).empty() && !special_[id]) order_.push_back(id);
  std::sort(order_.begin(), order_.end(), [&](std::int32_t a, std::int32_t b) {
    const int sign = bytes_of(a).compare(bytes_of(b));
    return sign ? sign < 0 : a < b;
  });
  std::vector<std::uint32_t> path;  // nodes on the way to the last token
  const auto leave = [&] {
    TokenTrie::Node& node = nodes_[path.back()];
    node.end = static_cast<std::uint32_t>(nodes_.size());
    path.pop_back();
    if (!path.empty()) nodes_[path.back()].longest = std::max(nodes_[path.back()].longest, node.longest);
  };
  std::string_view last;
  for (std::uint32_t i = 0; i < order_.size(); ++i) {
    const std::string_view bytes = bytes_of(order_[i]);
    const auto differs = std::mismatch(last.begin(), last.end(), bytes.begin(), bytes.end()).first;
    const auto common = static_cast<std::size_t>(differs - last.begin());
    while (path.size() > common) leave();
    for (; path.size() < bytes.size(); path.push_back(static_cast<std::uint32_t>(nodes_.size() - 1)))
      nodes_.push_back({.first_token = i,
                        .depth = static_cast<std::uint16_t>(path.size()),
                        .byte = static_cast<std::uint8_t>(bytes[path.size()])});
    nodes_[path.back()].longest = static_cast<std::uint16_t>(bytes.size());
    max_depth_ = std::max(max_depth_, bytes.size());
    last = bytes;
  }
  while (!path.empty()) leave();
  nodes_.push_back({.first_token = static_cast<std::uint32_t>(order_.size())});
}

}  // namespace ark::text

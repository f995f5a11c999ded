// The tokens of a vocabulary by their bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ark::text {

class Tokenizer;

// Built once for a model; const and shared between threads.
class TokenTrie {
 public:
  // Nodes in preorder: the part of a trie below a node lies behind it.
  struct Node {
    std::uint32_t end = 0;          // one past the last node below
    std::uint32_t first_token = 0;  // in order(); those of this node end where the next node's begin
    std::uint16_t depth = 0;        // bytes before this node's
    std::uint16_t longest = 0;      // bytes of the longest token of this node and those below
    std::uint8_t byte = 0;
  };
  // What a text loses where it begins with a token that begins with a space.
  enum class FirstSpace { kStays, kIsDropped, kAllAreDropped };

  explicit TokenTrie(const Tokenizer& tokenizer);
  // Of tokens as they are given, for tests.
  TokenTrie(std::vector<std::string> tokens, std::vector<bool> special, FirstSpace first_space);

  // Behind the last stands one more, where its tokens end.
  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  // All tokens that are neither special nor without bytes, by their bytes.
  std::span<const std::int32_t> order() const { return order_; }
  FirstSpace first_space() const { return first_space_; }
  std::size_t max_depth() const { return max_depth_; }

  std::int32_t size() const { return static_cast<std::int32_t>(offsets_.size()) - 1; }
  // Empty for an id without a token.
  std::string_view bytes_of(std::int32_t token) const {
    if (token < 0 || token >= size()) return {};
    return std::string_view(bytes_).substr(offsets_[token], offsets_[token + 1] - offsets_[token]);
  }
  // What of it shows where it is the first of a text; empty where it may not be.
  std::string_view bytes_of_first(std::int32_t token) const;
  bool is_special(std::int32_t token) const { return token >= 0 && token < size() && special_[token]; }

 private:
  void add(std::string_view bytes, bool is_special);
  void build();

  std::string bytes_;
  std::vector<std::uint32_t> offsets_{0};  // by id
  std::vector<bool> special_;
  std::vector<std::int32_t> order_;  // ids by their bytes
  std::vector<Node> nodes_;          // and one behind the last
  std::size_t max_depth_ = 0;
  FirstSpace first_space_;
};

}  // namespace ark::text

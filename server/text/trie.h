// Strings by their bytes: what a text starts with, in one walk.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ark::text {

// Edges are kept in one hash map keyed by (node, byte).
class Trie {
 public:
  // What stands for `key`, to be set; -1 at first.
  std::int32_t& operator[](std::string_view key) {
    std::uint32_t node = 0;
    for (const char byte : key) {
      const auto [edge, is_new] =
          edges_.try_emplace(edge_of(node, byte), static_cast<std::uint32_t>(values_.size()));
      if (is_new) values_.push_back(-1);
      node = edge->second;
    }
    return values_[node];
  }

  // Calls visit(length, value) for each key that `text` starts with, shortest first. Returns how far it walked.
  template <typename Visit>
  std::size_t visit_prefixes(std::string_view text, Visit visit) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto edge = edges_.find(edge_of(node, text[i]));
      if (edge == edges_.end()) return i;
      node = edge->second;
      if (values_[node] >= 0) visit(i + 1, values_[node]);
    }
    return text.size();
  }

 private:
  static std::uint64_t edge_of(std::uint32_t node, char byte) {
    return static_cast<std::uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
  }
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  std::vector<std::int32_t> values_{-1};  // by node
};

}  // namespace ark::text

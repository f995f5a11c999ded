// Token <-> id of a tokenizer's model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/text/json_view.h"

namespace ark::text {

// Hash that looks up string_views in maps of strings.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <typename T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

// Ids may have gaps, but no more of them than this: a table is indexed by id.
inline constexpr std::int64_t kMaxTokenId = (1 << 22) - 1;

class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  static std::int32_t checked_id(const JsonView& json) {
    return static_cast<std::int32_t>(json.integer(0, kMaxTokenId));
  }

  void reserve(std::size_t count) { ids_.reserve(count); }
  // The last of two entries with one token wins.
  void add(std::string_view token, std::int32_t id) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= tokens_.size()) tokens_.resize(index + 1, nullptr);
    tokens_[index] = &ids_.insert_or_assign(std::string(token), id).first->first;
  }
  void add_all(const JsonView& object) {  // {"token": id, ...}
    reserve(object.size());
    object.each([&](const std::string& token, const JsonView& id) { add(token, checked_id(id)); });
  }

  std::optional<std::int32_t> find(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  const std::string* token(std::int32_t id) const {  // null if there is none
    return id < 0 || static_cast<std::size_t>(id) >= tokens_.size() ? nullptr : tokens_[id];
  }
  std::size_t size() const { return ids_.size(); }
  std::size_t end_id() const { return tokens_.size(); }  // one past the largest id

 private:
  StringMap<std::int32_t> ids_;
  std::vector<const std::string*> tokens_;  // keys of ids_, whose nodes never move
};

}  // namespace ark::text

// Remembers the ids of words seen before; shared between threads.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/vocabulary.h"

namespace ark::text {

class WordCache {
 public:
  // Appends the ids of `word` if it is known.
  bool find(std::string_view word, std::vector<std::int32_t>& ids) const {
    Shard& shard = shard_of(word);
    std::lock_guard lock(shard.mutex);
    const auto found = shard.words.find(word);
    if (found == shard.words.end()) return false;
    ids.insert(ids.end(), found->second.begin(), found->second.end());
    return true;
  }

  void insert(std::string_view word, const std::int32_t* begin, const std::int32_t* end) const {
    if (word.size() > kMaxWord) return;
    Shard& shard = shard_of(word);
    std::lock_guard lock(shard.mutex);
    if (shard.words.size() >= kMaxWordsPerShard) shard.words.clear();
    shard.words.try_emplace(std::string(word), begin, end);
  }

 private:
  static constexpr std::size_t kMaxWord = 128;  // bytes
  static constexpr std::size_t kMaxWordsPerShard = 1024;
  static constexpr std::size_t kShards = 16;

  struct Shard {
    std::mutex mutex;
    StringMap<std::vector<std::int32_t>> words;
  };
  Shard& shard_of(std::string_view word) const { return shards_[StringHash{}(word) / 7 % kShards]; }

  mutable std::array<Shard, kShards> shards_;
};

}  // namespace ark::text

// Byte pair encoding: the characters of a word, merged pair by pair in the order of the merges' ranks.
#include <optional>
#include <queue>

#include "base/error.h"
#include "server/text/merge_table.h"
#include "server/text/token_model.h"
#include "server/text/unicode.h"
#include "server/text/word_cache.h"

namespace ark::text {
namespace {

// A word under merge: a doubly linked list in an array. O(n log n) for n characters.
class Word {
 public:
  Word(const std::vector<std::int32_t>& ids, const MergeTable& merges)
      : merges_(merges), symbols_(ids.size()) {
    for (std::size_t i = 0; i < ids.size(); ++i)
      symbols_[i] = {ids[i], static_cast<std::int32_t>(i) - 1, static_cast<std::int32_t>(i) + 1};
    for (std::int32_t i = 0; i + 1 < size(); ++i) offer(i);
  }

  void merge_all() {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      Symbol& left = symbols_[best.at];
      if (left.id < 0 || left.next >= size()) continue;
      Symbol& right = symbols_[left.next];
      const MergeTable::Merge* merge = merges_.find(left.id, right.id);
      if (!merge || merge->id != best.id) continue;  // the pair has changed since it was queued
      left.id = merge->id;
      right.id = kGone;
      left.next = right.next;
      if (left.next < size()) symbols_[left.next].previous = best.at;
      if (left.previous >= 0) offer(left.previous);
      if (left.next < size()) offer(best.at);
    }
  }

  void append_to(std::vector<std::int32_t>& ids) const {
    for (const Symbol& symbol : symbols_)
      if (symbol.id != kGone) ids.push_back(symbol.id);
  }

 private:
  static constexpr std::int32_t kGone = -1;
  struct Symbol {
    std::int32_t id, previous, next;
  };
  struct Candidate {
    std::int32_t rank, at, id;
    bool operator<(const Candidate& other) const {  // the queue's top is the lowest rank, then the leftmost
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };

  std::int32_t size() const { return static_cast<std::int32_t>(symbols_.size()); }

  void offer(std::int32_t at) {
    const Symbol& left = symbols_[at];
    const Symbol& right = symbols_[left.next];
    if (const auto* merge = merges_.find(left.id, right.id)) queue_.push({merge->rank, at, merge->id});
  }

  const MergeTable& merges_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> queue_;
};

class Bpe : public TokenModel {
 public:
  explicit Bpe(const JsonView& json)
      : prefix_(json.at("continuing_subword_prefix").string_or("")),
        suffix_(json.at("end_of_word_suffix").string_or("")),
        fuse_unknown_(json.at("fuse_unk").boolean_or(false)),
        byte_fallback_(json.at("byte_fallback").boolean_or(false)),
        ignore_merges_(json.at("ignore_merges").boolean_or(false)),
        merges_(json.at("merges").array().size()) {
    if (const JsonView dropout = json.at("dropout"); !dropout.is_null() && dropout.number() != 0)
      dropout.unsupported("tokenizing with dropout is random; set it to null");
    vocabulary_.add_all(json.at("vocab"));
    if (const JsonView unknown = json.at("unk_token"); !unknown.is_null() && !unknown.string().empty()) {
      unknown_ = vocabulary_.find(unknown.string());
      if (!unknown_) missing_unknown_ = unknown.string();  // only a text that needs it fails
    }
    read_merges(json.at("merges"));
  }

  void encode(std::string_view piece, std::vector<std::int32_t>& ids, Budget& budget) const override {
    if (ignore_merges_) {
      if (const auto id = vocabulary_.find(piece)) {
        ids.push_back(*id);
        return;
      }
    }
    budget.charge_reading(piece.size());
    if (cache_.find(piece, ids)) return;
    budget.charge(piece.size());
    const std::size_t first = ids.size();
    Word word(characters(piece), merges_);
    word.merge_all();
    word.append_to(ids);
    cache_.insert(piece, ids.data() + first, ids.data() + ids.size());
  }

 private:
  void read_merges(const JsonView& list) {
    std::int32_t rank = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const JsonView entry = list.at(i);
      if (entry.is_string()) {
        const std::string& text = entry.string();
        if (text.starts_with("#version")) continue;
        const std::size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
          entry.fail("a merge is two tokens with a space between them");
        add_merge(entry, text.substr(0, space), text.substr(space + 1), rank++);
      } else {
        if (entry.array().size() != 2) entry.fail("a merge is a pair of tokens");
        add_merge(entry, entry.at(std::size_t{0}).string(), entry.at(1).string(), rank++);
      }
    }
  }

  void add_merge(const JsonView& entry, const std::string& left, const std::string& right,
                 std::int32_t rank) {
    const auto id_of = [&](const std::string& token) {
      const auto id = vocabulary_.find(token);
      if (!id) entry.fail("token " + escaped(token, 60) + " is not in the vocabulary");
      return *id;
    };
    if (right.size() < prefix_.size())
      entry.fail("token " + escaped(right, 60) + " lacks the subword prefix");
    merges_.insert(id_of(left), id_of(right), {rank, id_of(left + right.substr(prefix_.size()))});
  }

  // The id of each character; unknown ones as bytes, as unk (fused or not), or dropped.
  std::vector<std::int32_t> characters(std::string_view piece) const {
    std::vector<std::int32_t> ids;
    ids.reserve(piece.size());
    bool unknown_waits = false;
    std::string decorated;
    for (std::size_t at = 0; at < piece.size();) {
      const std::size_t begin = at;
      next_char(piece, at);
      std::string_view character = piece.substr(begin, at - begin);
      const bool prefixed = begin > 0 && !prefix_.empty(), suffixed = at == piece.size() && !suffix_.empty();
      if (prefixed || suffixed) {
        decorated = prefixed ? prefix_ : "";
        decorated += character;
        if (suffixed) decorated += suffix_;
        character = decorated;
      }
      if (const auto id = vocabulary_.find(character)) {
        if (unknown_waits) ids.push_back(*unknown_);
        unknown_waits = false;
        ids.push_back(*id);
      } else if (!(byte_fallback_ && append_bytes(character, ids)) && (unknown_ || missing_unknown_)) {
        if (missing_unknown_) throw_unknown(character, *missing_unknown_);
        if (unknown_waits && !fuse_unknown_) ids.push_back(*unknown_);
        unknown_waits = true;
      }
    }
    if (unknown_waits) ids.push_back(*unknown_);
    return ids;
  }

  std::string prefix_, suffix_;
  bool fuse_unknown_, byte_fallback_, ignore_merges_;
  MergeTable merges_;
  std::optional<std::int32_t> unknown_;
  std::optional<std::string> missing_unknown_;  // unk_token where the vocabulary lacks it
  WordCache cache_;
};

}  // namespace

std::unique_ptr<TokenModel> parse_bpe(const JsonView& json) { return std::make_unique<Bpe>(json); }

}  // namespace ark::text

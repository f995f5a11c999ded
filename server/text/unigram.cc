// Unigram (SentencePiece): the segmentation of a piece with the highest sum of scores, by dynamic programming
// over a trie of the vocabulary.
#include <limits>
#include <optional>

#include "base/error.h"
#include "server/text/token_model.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

constexpr std::size_t kEdgesPerUnit = 4;  // of the budget
constexpr double kUnknownPenalty = 10.0;  // an unknown character scores that much below the worst token

// Bytes -> id. Edges are kept in one hash map keyed by (node, byte).
class Trie {
 public:
  void insert(std::string_view key, std::int32_t id) {
    std::uint32_t node = 0;
    for (char byte : key) {
      const auto [edge, is_new] =
          edges_.try_emplace(edge_of(node, byte), static_cast<std::uint32_t>(ids_.size()));
      if (is_new) ids_.push_back(-1);
      node = edge->second;
    }
    ids_[node] = id;
  }

  // Calls visit(length, id) for each key that `text` starts with, shortest first. Returns how far it walked.
  template <typename Visit>
  std::size_t visit_prefixes(std::string_view text, Visit visit) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto edge = edges_.find(edge_of(node, text[i]));
      if (edge == edges_.end()) return i;
      node = edge->second;
      if (ids_[node] >= 0) visit(i + 1, ids_[node]);
    }
    return text.size();
  }

 private:
  static std::uint64_t edge_of(std::uint32_t node, char byte) {
    return static_cast<std::uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
  }
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  std::vector<std::int32_t> ids_{-1};
};

class Unigram : public TokenModel {
 public:
  explicit Unigram(const JsonView& json) : byte_fallback_(json.at("byte_fallback").boolean_or(false)) {
    const JsonView list = json.at("vocab").array();
    if (list.size() > static_cast<std::size_t>(kMaxTokenId)) list.fail("too many tokens");
    vocabulary_.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      const JsonView entry = list.at(i);
      if (entry.array().size() != 2) entry.fail("expected a token and its score");
      const std::string& token = entry.at(std::size_t{0}).string();
      vocabulary_.add(token, static_cast<std::int32_t>(i));
      if (!token.empty()) trie_.insert(token, static_cast<std::int32_t>(i));
      scores_.push_back(entry.at(1).number());
      lowest_ = std::min(lowest_, scores_.back());
    }
    if (const JsonView unknown = json.at("unk_id"); !unknown.is_null())
      unknown_ = static_cast<std::int32_t>(unknown.integer(0, static_cast<std::int64_t>(list.size()) - 1));
  }

  void encode(std::string_view piece, std::vector<std::int32_t>& ids, Budget& budget) const override {
    std::vector<Span> path = best_path(piece, budget);
    for (std::size_t i = 0; i < path.size();) {
      // Neighbouring unknown characters are one token.
      std::size_t end = path[i].end, next = i + 1;
      if (unknown_ && path[i].id == *unknown_)
        for (; next < path.size() && path[next].id == *unknown_; ++next) end = path[next].end;
      append(piece.substr(path[i].begin, end - path[i].begin), ids);
      i = next;
    }
  }

 private:
  struct Span {
    std::size_t begin, end;
    std::int32_t id;
  };
  struct Best {
    double score = 0;
    std::size_t begin = kNone;  // where the best path's last token to here starts
    std::int32_t id = 0;
  };
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  std::vector<Span> best_path(std::string_view text, Budget& budget) const {
    budget.charge_bytes(text.size() * sizeof(Best));
    std::vector<Best> best(text.size() + 1);
    for (std::size_t at = 0; at < text.size();) {
      const double here = best[at].score;
      const auto offer = [&](std::size_t length, std::int32_t id, double score) {
        Best& target = best[at + length];
        if (target.begin == kNone || here + score > target.score) target = {here + score, at, id};
      };
      std::size_t next = at;
      next_char(text, next);
      bool known = false;  // this character is a token by itself
      const std::size_t walked =
          trie_.visit_prefixes(text.substr(at), [&](std::size_t length, std::int32_t id) {
            offer(length, id, scores_[id]);
            known |= length == next - at;
          });
      budget.charge(1 + walked / kEdgesPerUnit);
      if (!known) {
        if (!unknown_)
          throw Error(Code::kInvalidArgument,
                      "text: a character is not in the vocabulary, and the tokenizer has no unknown token");
        offer(next - at, *unknown_, lowest_ - kUnknownPenalty);
      }
      at = next;
    }
    std::vector<Span> path;
    for (std::size_t end = text.size(); end > 0; end = best[end].begin)
      path.push_back({best[end].begin, end, best[end].id});
    return {path.rbegin(), path.rend()};
  }

  void append(std::string_view token, std::vector<std::int32_t>& ids) const {
    if (const auto id = vocabulary_.find(token))
      ids.push_back(*id);
    else if (!(byte_fallback_ && append_bytes(token, ids)))
      ids.push_back(unknown_.value_or(0));
  }

  bool byte_fallback_;
  Trie trie_;
  std::vector<double> scores_;
  double lowest_ = std::numeric_limits<double>::infinity();
  std::optional<std::int32_t> unknown_;
};

}  // namespace

std::unique_ptr<TokenModel> parse_unigram(const JsonView& json) { return std::make_unique<Unigram>(json); }

}  // namespace ark::text

// Unigram (SentencePiece): the segmentation of a piece with the highest sum of scores, by dynamic programming
// over a trie of the vocabulary.
#include <limits>
#include <optional>

#include "base/error.h"
#include "server/text/token_model.h"
#include "server/text/trie.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

constexpr std::size_t kEdgesPerUnit = 4;  // of the budget
constexpr double kUnknownPenalty = 10.0;  // an unknown character scores that much below the worst token

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
      if (!token.empty()) trie_[token] = static_cast<std::int32_t>(i);
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

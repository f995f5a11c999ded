#include "server/session/grammars.h"

#include <algorithm>

#include "base/error.h"
#include "server/text/grammar/grammar.h"
#include "server/text/grammar/grammar_state.h"
#include "server/text/grammar/token_trie.h"
#include "server/text/tokenizer.h"

namespace ark::session {
namespace {

constexpr std::size_t kMostKept = 16, kMostBytes = std::size_t{4} << 20;

class TextConstraint : public schedule::Constraint {
 public:
  TextConstraint(std::shared_ptr<const text::Grammar> grammar, std::shared_ptr<const text::TokenTrie> trie,
                 const std::vector<int32_t>& marks)
      : state_(std::move(grammar), std::move(trie), marks) {}

  void allowed(std::span<uint32_t> mask) override { state_.allowed(mask); }
  void accept(int32_t token) override {
    ARK_CHECK(state_.accept(token),
              "token " + std::to_string(token) + " was sampled, which the form excludes");
  }
  bool may_end() const override { return state_.may_end(); }

 private:
  text::GrammarState state_;
};

}  // namespace

std::shared_ptr<const text::Grammar> Grammars::find(const std::string& key) {
  std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find(kept_, key, [](const auto& entry) -> const std::string& { return entry.first; });
  if (found == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found);
  return kept_.front().second;
}

schedule::StartConstraint Grammars::start(const std::string& key, const Compile& compile,
                                          std::vector<int32_t> marks) {
  if (!tokenizer_) throw Error(Code::kUnsupported, "without a tokenizer no text can be held to a form");
  std::call_once(trie_once_, [&] { trie_ = std::make_shared<const text::TokenTrie>(*tokenizer_); });
  std::shared_ptr<const text::Grammar> grammar = find(key);
  if (!grammar) {
    grammar = compile();  // perhaps beside another thread that does the same
    std::lock_guard lock(mutex_);
    kept_.emplace_front(key, grammar);
    bytes_ += key.size();
    for (; kept_.size() > kMostKept || (bytes_ > kMostBytes && kept_.size() > 1); kept_.pop_back())
      bytes_ -= kept_.back().first.size();
  }
  return [grammar, trie = trie_, marks = std::move(marks)] {
    return std::make_unique<TextConstraint>(grammar, trie, marks);
  };
}

}  // namespace ark::session

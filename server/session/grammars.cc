#include "server/session/grammars.h"

#include "base/error.h"
#include "server/text/grammar/grammar.h"
#include "server/text/grammar/grammar_state.h"
#include "server/text/grammar/token_trie.h"
#include "server/text/tokenizer.h"

namespace ark::session {
namespace {

constexpr std::size_t kMostKept = 64, kMostBytes = std::size_t{96} << 20;  // of all, with what they found out

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

Grammars::GrammarPtr Grammars::find(const std::string& key) {
  std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  GrammarPtr grammar = found == known_.end() ? nullptr : found->second.lock();
  if (grammar) keep(grammar);
  return grammar;
}

// Before those that were asked for longest ago, which are forgotten where they take too much: they grow while texts are
// written.
void Grammars::keep(const GrammarPtr& grammar) {
  kept_.remove(grammar);
  kept_.push_front(grammar);
  std::size_t count = 0, bytes = 0;
  for (auto one = kept_.begin(); one != kept_.end(); ++one) {
    bytes += (*one)->bytes();
    if (++count > 1 && (count > kMostKept || bytes > kMostBytes)) {
      kept_.erase(one, kept_.end());
      return;
    }
  }
}

std::size_t Grammars::bytes_in_use() {
  std::size_t bytes = 0;
  std::erase_if(known_, [&](const auto& entry) {
    const GrammarPtr grammar = entry.second.lock();
    if (grammar) bytes += entry.first.size() + grammar->bytes();
    return !grammar;
  });
  return bytes;
}

void Grammars::make_room(std::size_t more) {
  if (bytes_in_use() + more > most_in_use_) kept_.clear();
  if (bytes_in_use() + more > most_in_use_)
    throw Error(Code::kExhausted,
                "the forms of the texts that are being written take " + std::to_string(most_in_use_ >> 20) +
                    " MiB, which is the limit; try again later, or ask for forms that others ask for");
}

schedule::StartConstraint Grammars::start(const std::string& key, const Compile& compile,
                                          std::vector<int32_t> marks) {
  if (!tokenizer_) throw Error(Code::kUnsupported, "without a tokenizer no text can be held to a form");
  std::call_once(trie_once_, [&] { trie_ = std::make_shared<const text::TokenTrie>(*tokenizer_); });
  GrammarPtr grammar = find(key);
  if (!grammar) {
    struct AtEnd {  // also where the form is refused: it may have been large by then
      FreedMemory& freed;
      ~AtEnd() { freed.give_back(); }
    } at_end{freed_};
    grammar = compile();  // perhaps beside another thread that does the same
    std::lock_guard lock(mutex_);
    make_room(key.size() + grammar->bytes());
    known_[key] = grammar;
    keep(grammar);
  }
  return [grammar, trie = trie_, marks = std::move(marks)] {
    return std::make_unique<TextConstraint>(grammar, trie, marks);
  };
}

}  // namespace ark::session

#include "server/text/grammar/grammar.h"

#include "base/error.h"
#include "server/json.h"
#include "server/text/grammar/assembler.h"
#include "server/text/grammar/gbnf.h"
#include "server/text/grammar/json_schema.h"
#include "server/text/grammar/json_text.h"
#include "server/text/grammar/regex_parser.h"
#include "server/text/grammar/token_masks.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

using grammar::choice;
using grammar::ExpressionPtr;
using grammar::repeat;
using grammar::RuleId;
using grammar::Rules;
using grammar::sequence;

// Some half a second.
constexpr Budget kCompileBudget{3'000'000, std::size_t{48} << 20};

// `write` adds rules and returns the one for the whole text.
template <typename Write>
Grammar::Ptr compiled(std::string_view what, Write write) {
  Budget budget = kCompileBudget;
  try {
    Rules rules;
    const RuleId root = write(rules, budget);
    return std::make_shared<const Grammar>(grammar::assemble(rules, root, what, budget));
  } catch (const BudgetExceeded& error) {
    throw Error(Code::kInvalidArgument, std::string(what) + ": compiling it " + error.what() +
                                            "; ask for fewer repetitions or a smaller form");
  }
}

}  // namespace

Grammar::Ptr Grammar::of_json_schema(const Json& schema) {
  return compiled("schema", [&](Rules& rules, Budget& budget) {
    grammar::JsonText json(rules);
    const ExpressionPtr value = grammar::SchemaCompiler(schema, "schema", rules, json, budget).value();
    return rules.add(sequence({json.blank(), value}));
  });
}

Grammar::Ptr Grammar::of_json_object() {
  return compiled("json_object", [](Rules& rules, Budget&) {
    grammar::JsonText json(rules);
    return rules.add(sequence({json.blank(), json.any_object()}));
  });
}

Grammar::Ptr Grammar::of_regex(std::string_view pattern) {
  return compiled("regex", [&](Rules& rules, Budget& budget) {
    return rules.add(grammar::parse_regex(pattern, "regex", grammar::RegexDialect::kPython, budget).whole());
  });
}

Grammar::Ptr Grammar::of_choices(std::span<const std::string> choices) {
  if (choices.empty()) throw Error(Code::kInvalidArgument, "choice: it is empty; name at least one text");
  for (std::size_t i = 0; i < choices.size(); ++i)
    if (!is_valid_utf8(choices[i]))
      throw Error(Code::kInvalidArgument, "choice[" + std::to_string(i) + "]: not valid UTF-8");
  return compiled("choice", [&](Rules& rules, Budget&) {
    return rules.add(grammar::one_of({choices.begin(), choices.end()}));
  });
}

Grammar::Ptr Grammar::of_gbnf(std::string_view text) {
  return compiled("grammar", [&](Rules& rules, Budget& budget) {
    return grammar::parse_gbnf(text, "grammar", rules, budget);
  });
}

Grammar::Ptr Grammar::of_calls(std::string_view begin, std::string_view end,
                               std::span<const std::pair<std::string, Json>> functions, bool many,
                               const Json* otherwise) {
  return compiled("functions", [&](Rules& rules, Budget& budget) {
    grammar::JsonText json(rules);
    std::vector<ExpressionPtr> calls;
    for (const auto& [name, schema] : functions) {
      const std::string what = "function \"" + escaped(name, 80) + "\"";
      const ExpressionPtr arguments = grammar::SchemaCompiler(schema, what, rules, json, budget).value();
      const ExpressionPtr called =
          json.member(grammar::text("\"name\""), grammar::text(grammar::json_string(name)));
      calls.push_back(
          sequence({called, json.comma(), json.member(grammar::text("\"arguments\""), arguments)}));
    }
    const ExpressionPtr inside =
        json.in_brackets('{', sequence({choice(std::move(calls)), json.blank()}), '}');
    const ExpressionPtr call = sequence({grammar::text(std::string(begin)), json.blank(), inside,
                                         json.blank(), grammar::text(std::string(end))});
    const ExpressionPtr more = repeat(sequence({json.blank(), call}), 0, many ? grammar::kUnbounded : 0);
    const ExpressionPtr all = sequence({call, more});
    if (!otherwise) return rules.add(all);
    const ExpressionPtr value = grammar::SchemaCompiler(*otherwise, "schema", rules, json, budget).value();
    return rules.add(choice({all, sequence({json.blank(), value})}));
  });
}

Grammar::Grammar(grammar::Pushdown pushdown)
    : pushdown_(std::make_shared<const grammar::Pushdown>(std::move(pushdown))) {}

Grammar::~Grammar() = default;

std::size_t Grammar::bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t sum = pushdown_->bytes();
  for (const Shared& one : shared_) sum += one.masks->bytes();
  return sum;
}

std::shared_ptr<grammar::TokenMasks> Grammar::masks(const std::shared_ptr<const TokenTrie>& trie,
                                                    const grammar::TokenMasks* full) const {
  const std::lock_guard lock(mutex_);
  std::erase_if(shared_, [&](const Shared& one) { return one.trie.expired() || one.masks.get() == full; });
  for (const Shared& one : shared_)
    if (one.trie.lock() == trie) return one.masks;
  shared_.push_back({trie, std::make_shared<grammar::TokenMasks>(pushdown_, *trie)});
  return shared_.back().masks;
}

}  // namespace ark::text

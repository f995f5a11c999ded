#include "server/text/grammar/json_text.h"

#include <map>

#include "server/json.h"
#include "server/text/unicode.h"

namespace ark::text::grammar {
namespace {

constexpr std::uint32_t kMaxIndent = 20, kMaxMoreDigits = 15, kMaxFraction = 16, kMaxExponent = 2;

// What JSON's strings do not hold as it is.
const CodeSet& escaped_characters() {
  static const CodeSet set{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  return set;
}

ExpressionPtr ascii(std::string_view characters) { return character(CodeSet::of(characters)); }
ExpressionPtr digits(std::uint32_t min, std::uint32_t max) {
  return repeat(character(CodeSet{{'0', '9'}}), min, max);
}
ExpressionPtr hex_digits(std::uint32_t count) {
  return repeat(character(CodeSet{{'0', '9'}, {'A', 'F'}, {'a', 'f'}}), count, count);
}

// Behind "\u": surrogates in pairs only.
ExpressionPtr unicode_escape() {
  const ExpressionPtr d = ascii("Dd");
  return choice(
      {sequence(
           {character(CodeSet{{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}), hex_digits(3)}),
       sequence({d, ascii("01234567"), hex_digits(2)}),
       sequence({d, ascii("89ABab"), hex_digits(2), text("\\u"), d, ascii("CDEFcdef"), hex_digits(2)})});
}

// As JSON's strings write it.
ExpressionPtr written(const CodeSet& set) {
  std::vector<ExpressionPtr> ways{character(set - escaped_characters())};
  std::vector<std::string> escapes;
  const CodeSet escaped = set & escaped_characters();
  for (const CodeRange& range : escaped.ranges())
    for (char32_t c = range.first; c <= range.last; ++c) {
      const std::string text = json_string(to_utf8({&c, 1}));
      escapes.push_back(text.substr(1, text.size() - 2));
    }
  if (!escapes.empty()) ways.push_back(one_of(std::move(escapes)));
  return choice(std::move(ways));
}

using Written = std::map<const Expression*, ExpressionPtr>;

ExpressionPtr written(const ExpressionPtr& value, Written& known) {
  if (const auto found = known.find(value.get()); found != known.end()) return found->second;
  ExpressionPtr out;
  if (value->kind == Expression::Kind::kCharacter) {
    out = written(value->characters);
  } else {
    Expression copy = *value;
    for (std::string& text : copy.texts) {
      text = json_string(text);
      text = text.substr(1, text.size() - 2);
    }
    for (ExpressionPtr& part : copy.parts) part = written(part, known);
    out = std::make_shared<const Expression>(std::move(copy));
  }
  return known[value.get()] = out;
}

// A tree of texts by their characters.
struct TextNode {
  std::map<char32_t, RuleId> children;
  bool ends = false;
};

}  // namespace

std::string json_string(std::string_view value) { return to_text(Json(std::string(value))); }

ExpressionPtr in_quotes(const ExpressionPtr& value) {
  Written known;
  return sequence({text("\""), written(value, known), text("\"")});
}

template <typename Write>
ExpressionPtr JsonText::once(RuleId& rule, Write write) {
  if (rule == kNone) {
    rule = rules_.declare();
    rules_.define(rule, write());
  }
  return reference(rule);
}

ExpressionPtr JsonText::blank() {
  return once(blank_, [] {
    return optional(choice({text(" "), sequence({text("\n"), repeat(ascii(" \t"), 0, kMaxIndent)})}));
  });
}

ExpressionPtr JsonText::any_character() {
  return once(character_, [] {
    return choice(
        {character(~escaped_characters()),
         sequence({text("\\"), choice({ascii("\"\\/bfnrt"), sequence({text("u"), unicode_escape()})})})});
  });
}

ExpressionPtr JsonText::any_string_end() {
  return once(string_end_, [&] {
    const ExpressionPtr inside = any_character();
    return sequence({repeat(rules_.expression(character_), 0, kUnbounded), text("\"")});
  });
}

ExpressionPtr JsonText::any_string() { return sequence({text("\""), any_string_end()}); }

ExpressionPtr JsonText::any_string(std::uint32_t min, std::uint32_t max) {
  return sequence({text("\""), repeat(any_character(), min, max), text("\"")});
}

ExpressionPtr JsonText::any_integer() {
  return sequence(
      {optional(text("-")), choice({text("0"), sequence({ascii("123456789"), digits(0, kMaxMoreDigits)})})});
}

ExpressionPtr JsonText::any_number() {
  return once(number_, [&] {
    return sequence({any_integer(), optional(sequence({text("."), digits(1, kMaxFraction)})),
                     optional(sequence({ascii("eE"), optional(ascii("+-")), digits(1, kMaxExponent)}))});
  });
}

ExpressionPtr JsonText::any_value() {
  return once(value_, [&] {
    return choice({any_object(), any_array(), any_string(), any_number(), one_of({"true", "false", "null"})});
  });
}

ExpressionPtr JsonText::any_object() {
  return once(object_,
              [&] { return in_brackets('{', optional(list(member(any_string(), any_value()))), '}'); });
}

ExpressionPtr JsonText::any_array() {
  return once(array_, [&] { return in_brackets('[', optional(list(any_value())), ']'); });
}

ExpressionPtr JsonText::in_brackets(char open, ExpressionPtr inside, char close) {
  return sequence({text({open}), blank(), std::move(inside), text({close})});
}

ExpressionPtr JsonText::comma() { return sequence({text(","), blank()}); }

ExpressionPtr JsonText::member(ExpressionPtr name, ExpressionPtr value) {
  return sequence({std::move(name), text(":"), blank(), std::move(value)});
}

ExpressionPtr JsonText::list(const ExpressionPtr& item) {
  return sequence({item, repeat(sequence({comma(), item}), 0, kUnbounded), blank()});
}

ExpressionPtr JsonText::value(const Json& json, int depth) {
  if (depth > kMaxDepth) return nullptr;
  if (!json.is_structured()) return text(to_text(json));
  std::vector<ExpressionPtr> parts;
  for (const auto& [name, item] : json.items()) {
    if (!parts.empty()) parts.push_back(comma());
    const ExpressionPtr written = value(item, depth + 1);
    if (!written) return nullptr;
    parts.push_back(json.is_object() ? member(text(json_string(name)), written) : written);
  }
  if (!parts.empty()) parts.push_back(blank());
  return json.is_object() ? in_brackets('{', sequence(std::move(parts)), '}')
                          : in_brackets('[', sequence(std::move(parts)), ']');
}

// Up to the character that tells it from all of them, the string is written in the one way; then in any.
ExpressionPtr JsonText::string_other_than(const std::vector<std::string>& values) {
  std::vector<TextNode> tree(1);
  for (const std::string& value : values) {
    RuleId at = 0;
    for (const char32_t c : to_utf32(value)) {
      const auto [child, is_new] = tree[at].children.try_emplace(c, static_cast<RuleId>(tree.size()));
      at = child->second;
      if (is_new) tree.emplace_back();
    }
    tree[at].ends = true;
  }
  std::vector<RuleId> ids;
  for (std::size_t i = 0; i < tree.size(); ++i) ids.push_back(rules_.declare());
  for (std::size_t i = 0; i < tree.size(); ++i) {
    std::vector<ExpressionPtr> ways;
    std::vector<CodeRange> next;
    for (const auto& [c, child] : tree[i].children) {
      next.push_back({c, c});
      ways.push_back(sequence({written(CodeSet{{c, c}}), reference(ids[child])}));
    }
    ways.push_back(sequence({written(~CodeSet(std::move(next))), any_string_end()}));
    if (!tree[i].ends) ways.push_back(text("\""));
    rules_.define(ids[i], choice(std::move(ways)));
  }
  return sequence({text("\""), reference(ids[0])});
}

}  // namespace ark::text::grammar

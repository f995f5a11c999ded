#include "server/text/grammar/json_schema.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "server/json.h"
#include "server/text/grammar/regex_parser.h"
#include "server/text/grammar/schema_object.h"
#include "server/text/grammar/string_formats.h"
#include "server/text/unicode.h"

namespace ark::text::grammar {
namespace {

constexpr int kMaxAlternations = 32;  // anyOf in anyOf, where more is asked for beside it

// How many characters the texts of a pattern have.
Constraints::Counts length_of(const Expression& e) {
  using Kind = Expression::Kind;
  const auto times = [](std::uint64_t a, std::uint64_t b) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(a * b, kUnbounded));
  };
  const auto plus = [](std::uint64_t a, std::uint64_t b) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(a + b, kUnbounded));
  };
  Constraints::Counts out{0, 0};
  if (e.kind == Kind::kCharacter) return {1, 1};
  if (e.kind == Kind::kTexts) return {1, 1};  // of patterns: one character
  if (e.kind == Kind::kChoice) out.min = kUnbounded;
  for (const ExpressionPtr& part : e.parts) {
    const Constraints::Counts inner = length_of(*part);
    if (e.kind == Kind::kChoice)
      out = {std::min(out.min, inner.min), std::max(out.max, inner.max)};
    else if (e.kind == Kind::kRepeat)
      out = {times(inner.min, e.min), times(inner.max, e.max)};
    else
      out = {plus(out.min, inner.min), plus(out.max, inner.max)};
  }
  return out;
}

// The texts of so many characters, where that can be had; else null.
ExpressionPtr of_length(const ExpressionPtr& e, const Constraints::Counts& asked) {
  const Constraints::Counts has = length_of(*e);
  if (has.min >= asked.min && has.max <= asked.max) return e;
  const ExpressionPtr repeated =
      e->kind == Expression::Kind::kSequence && e->parts.size() == 1 ? e->parts[0] : e;
  if (repeated->kind != Expression::Kind::kRepeat || repeated->parts[0]->kind != Expression::Kind::kCharacter)
    return nullptr;
  Constraints::Counts counts{repeated->min, repeated->max};
  counts.narrow(asked);
  return counts.min > counts.max ? choice({}) : repeat(repeated->parts[0], counts.min, counts.max);
}

}  // namespace

SchemaCompiler::SchemaCompiler(const Json& document, const std::string& what, Rules& rules, JsonText& json,
                               Budget& budget)
    : document_(document), reader_(document, what, budget), rules_(rules), json_(json), budget_(budget) {}

ExpressionPtr SchemaCompiler::value() {
  const ExpressionPtr root = rule_for({{&document_, "#"}});
  while (!todo_.empty()) {
    const Task task = std::move(todo_.back());
    todo_.pop_back();
    rules_.define(task.rule, write(reader_.read(task.schemas)));
  }
  return root;
}

// Schemas refer to each other, and to themselves: each is written once, later.
ExpressionPtr SchemaCompiler::rule_for(const AllOf& schemas) {
  if (schemas.empty()) return json_.any_value();
  std::vector<const Json*> key;
  for (const SchemaPlace& place : schemas) key.push_back(place.schema);
  budget_.charge_bytes(key.size() * sizeof key[0] + sizeof(Task) + schemas[0].pointer.size());
  std::sort(key.begin(), key.end());
  key.erase(std::unique(key.begin(), key.end()), key.end());
  const auto [found, is_new] = known_.try_emplace(std::move(key), 0);
  if (is_new) todo_.push_back({found->second = rules_.declare(), schemas});
  return reference(found->second);
}

ExpressionPtr SchemaCompiler::write(const Constraints& constraints, int depth) {
  budget_.charge();
  if (!constraints.any_of.empty()) return write_any_of(constraints, depth);
  if (constraints.values) return write_values(constraints);
  const bool is_any = !constraints.is_detailed();
  if (is_any && constraints.types == kAllTypes) return json_.any_value();
  // Who names no type, but what only some have, means these.
  const unsigned types = constraints.types == kAllTypes ? constraints.hinted_types : constraints.types;
  std::vector<ExpressionPtr> ways;
  for (const JsonType type : {kNull, kBoolean, kString, kArray, kObject})
    if (types & type) ways.push_back(write_type(type, constraints));
  if (types & (kInteger | kFraction)) ways.push_back(write_number(!(types & kFraction), constraints));
  return ways.empty() ? impossible(constraints.pointer, "no type is left") : choice(std::move(ways));
}

ExpressionPtr SchemaCompiler::write_any_of(const Constraints& constraints, int depth) {
  if (depth >= kMaxAlternations)
    reader_.fail(constraints.pointer,
                 "anyOf in anyOf, with other keywords beside it, is not supported so deep");
  Constraints rest = constraints;
  const AllOf group = rest.any_of.back();
  rest.any_of.pop_back();
  const bool is_alone = rest.any_of.empty() && rest.types == kAllTypes && !rest.is_detailed();
  std::vector<ExpressionPtr> ways;
  for (const SchemaPlace& one : group) {
    budget_.charge(64 + 16 * (rest.properties.size() + rest.required.size() + rest.any_of.size()));
    ways.push_back(is_alone ? rule_for({one})
                            : write(reader_.merged(rest, reader_.read(AllOf{one})), depth + 1));
  }
  return ways.empty() ? impossible(constraints.pointer, "anyOf holds nothing") : choice(std::move(ways));
}

ExpressionPtr SchemaCompiler::write_values(const Constraints& constraints) {
  std::vector<ExpressionPtr> ways;
  std::vector<std::string> strings;
  for (const Json* value : *constraints.values) {
    if (!fits(*value, constraints)) continue;
    budget_.charge_bytes(sizeof(Expression));
    if (!value->is_structured()) {
      strings.push_back(to_text(*value));
      continue;
    }
    ways.push_back(json_.value(*value));
    if (!ways.back())
      reader_.fail(constraints.pointer,
                   "a value of enum or const nests deeper than " + std::to_string(kMaxDepth) + " levels");
  }
  if (!strings.empty()) ways.push_back(one_of(std::move(strings)));
  return ways.empty() ? impossible(constraints.pointer, "no value is left of enum or const")
                      : choice(std::move(ways));
}

// What can be judged without reading patterns and members is.
bool SchemaCompiler::fits(const Json& value, const Constraints& constraints) const {
  const unsigned type = type_of(value);
  if (!(type & constraints.types)) return false;
  if (!(type & constraints.hinted_types)) return true;
  if (value.is_structured() ||
      (type == kString && !(constraints.patterns.empty() && constraints.formats.empty())))
    reader_.fail(
        constraints.pointer,
        "enum or const beside this pattern, format, or keywords of arrays or objects is not supported; "
        "leave the values that fit");
  if (type == kString) {
    const std::size_t length = count_chars(value.get_ref<const std::string&>());
    return length >= constraints.length.min && length <= constraints.length.max;
  }
  const Decimal number = Decimal::of(value);
  const auto& [lower, upper] = constraints.bounds;
  const int above = lower ? compare(number, lower->value) : 1,
            below = upper ? compare(upper->value, number) : 1;
  return (above > 0 || (above == 0 && !lower->is_exclusive)) &&
         (below > 0 || (below == 0 && !upper->is_exclusive)) &&
         (!constraints.multiple_of || number.is_multiple_of(*constraints.multiple_of));
}

ExpressionPtr SchemaCompiler::write_type(JsonType type, const Constraints& constraints) {
  switch (type) {
    case kNull:
      return text("null");
    case kBoolean:
      return one_of({"true", "false"});
    case kString:
      return write_string(constraints);
    case kArray:
      return write_array(constraints);
    default:
      return write_object(constraints);
  }
}

ExpressionPtr SchemaCompiler::write_number(bool integers_only, const Constraints& constraints) {
  const std::uint32_t multiple_of = constraints.multiple_of.value_or(1);
  integers_only |= constraints.multiple_of.has_value();
  if (constraints.bounds.empty() && multiple_of == 1)
    return integers_only ? json_.any_integer() : json_.any_number();
  const NumberBounds& bounds = constraints.bounds;
  if (bounds.lower && bounds.upper) {
    const int sign = compare(bounds.lower->value, bounds.upper->value);
    if (sign > 0 || (sign == 0 && (bounds.lower->is_exclusive || bounds.upper->is_exclusive)))
      return impossible(constraints.pointer, "no number is between its bounds");
  }
  return numbers_between(bounds, integers_only, multiple_of, reader_.named(constraints.pointer), rules_,
                         budget_);
}

ExpressionPtr SchemaCompiler::write_string(const Constraints& constraints) {
  const Constraints::Counts& length = constraints.length;
  if (length.min > length.max) return impossible(constraints.pointer, "minLength is above maxLength");
  std::vector<ExpressionPtr> forms;
  std::set<std::string> seen;
  for (const Constraints::Text& pattern : constraints.patterns)
    if (seen.insert(pattern.text).second)
      forms.push_back(
          parse_regex(pattern.text, reader_.named(pattern.pointer), RegexDialect::kEcmaScript, budget_)
              .search());
  for (const Constraints::Text& format : constraints.formats)
    if (const auto pattern = pattern_of_format(format.text); pattern && seen.insert(format.text).second)
      forms.push_back(
          parse_regex(*pattern, reader_.named(format.pointer), RegexDialect::kEcmaScript, budget_).whole());
  if (forms.empty())
    return length.min == 0 && length.max == kUnbounded ? json_.any_string()
                                                       : json_.any_string(length.min, length.max);
  if (forms.size() > 1)
    reader_.fail(constraints.pointer, "more than one pattern or format for a string is not supported");
  const ExpressionPtr form = of_length(forms[0], length);
  if (!form)
    reader_.fail(constraints.pointer,
                 "minLength or maxLength beside this pattern or format is not supported; put the length into "
                 "the pattern");
  return in_quotes(form);
}

ExpressionPtr SchemaCompiler::write_array(const Constraints& constraints) {
  Constraints::Counts counts = constraints.items_count;
  const auto& first = constraints.first_items;
  const bool is_closed = constraints.items.size() == 1 && *constraints.items[0].schema == false;
  if (is_closed) counts.max = std::min(counts.max, static_cast<std::uint32_t>(first.size()));
  if (counts.min > counts.max) return impossible(constraints.pointer, "minItems is above maxItems");
  if (counts.max == 0) return json_.in_brackets('[', nothing(), ']');
  const auto prefix = std::min<std::uint32_t>(counts.max, static_cast<std::uint32_t>(first.size()));
  const auto less = [](std::uint32_t a, std::uint32_t b) { return a == kUnbounded ? a : a > b ? a - b : 0; };
  const std::uint32_t before = std::max(prefix, 1u);  // items that have rules of their own
  ExpressionPtr rest = json_.blank();
  if (counts.max > before) {
    const ExpressionPtr more = sequence({json_.comma(), rule_for(constraints.items)});
    rest = sequence({repeat(more, less(counts.min, before), less(counts.max, before)), rest});
  }
  for (std::uint32_t i = before; i-- > 0;) {
    const ExpressionPtr item = rule_for(i < prefix ? first[i] : constraints.items);
    ExpressionPtr here = sequence({i > 0 ? json_.comma() : nothing(), item, rest});
    if (i >= counts.min) here = i > 0 ? choice({here, json_.blank()}) : optional(here);
    rest = reference(rules_.add(here));
  }
  return json_.in_brackets('[', rest, ']');
}

ExpressionPtr SchemaCompiler::write_object(const Constraints& constraints) {
  ObjectForm form;
  const bool forbids_others =
      std::ranges::any_of(constraints.additional, [](const SchemaPlace& p) { return *p.schema == false; });
  // Who names members and says nothing of others means these: no client has a use for what a model makes up beside
  // them.
  const bool is_closed =
      forbids_others || (constraints.additional.empty() && !constraints.properties.empty() &&
                         constraints.members_count.min <= constraints.properties.size());
  const ExpressionPtr other = forbids_others ? nullptr : rule_for(constraints.additional);
  if (!is_closed) form.additional = other;
  std::set<std::string_view> required(constraints.required.begin(), constraints.required.end());
  const auto required_count = static_cast<std::uint32_t>(required.size());
  for (const Constraints::Property& property : constraints.properties) {
    const bool is_never =
        std::ranges::any_of(property.schemas, [](const SchemaPlace& p) { return *p.schema == false; });
    const bool is_required = required.erase(property.name) > 0;
    if (is_never && is_required)
      return impossible(constraints.pointer,
                        "\"" + escaped(property.name, 60) + "\" is required and may not be");
    form.members.push_back({property.name, is_never ? nullptr : rule_for(property.schemas), is_required});
  }
  for (const std::string& name : constraints.required) {
    if (required.erase(name) == 0) continue;
    if (forbids_others)
      return impossible(constraints.pointer,
                        "\"" + escaped(name, 60) + "\" is required, but neither a property nor additional");
    form.members.push_back({name, other, true});
  }
  const Constraints::Counts& counts = constraints.members_count;
  if (counts.min > counts.max || counts.max < required_count)
    return impossible(constraints.pointer, "minProperties, maxProperties and required leave no count");
  if (counts.min > required_count) {
    if (!is_closed && counts.min > required_count + 1)
      reader_.fail(constraints.pointer,
                   "minProperties beside additionalProperties is not supported: names could be the same");
    form.min_count = counts.min;
  }
  if (!is_closed || counts.max < form.members.size()) form.max_count = counts.max;
  if (form.max_count == 0) return json_.in_brackets('{', nothing(), '}');
  return object_of(form, json_, rules_, budget_);
}

ExpressionPtr SchemaCompiler::impossible(const std::string& pointer, const std::string& why) {
  rules_.note_obstacle(reader_.named(pointer) + ": " + why);
  return choice({});
}

}  // namespace ark::text::grammar

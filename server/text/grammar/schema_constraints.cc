#include "server/text/grammar/schema_constraints.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/percent.h"
#include "server/json.h"
#include "server/text/grammar/string_formats.h"

namespace ark::text::grammar {
namespace {

constexpr std::uint32_t kMaxMultiple = 1000;
constexpr unsigned kNumbers = kInteger | kFraction;

// Keywords that would change what is accepted, and cannot be had.
constexpr std::array<std::string_view, 14> kRefused = {"not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "contains",
                                                       "patternProperties",
                                                       "dependentRequired",
                                                       "dependentSchemas",
                                                       "dependencies",
                                                       "unevaluatedItems",
                                                       "unevaluatedProperties",
                                                       "uniqueItems",
                                                       "$dynamicRef",
                                                       "$recursiveRef"};

// A member's name in a JSON pointer.
std::string step(std::string_view name) {
  std::string out = "/";
  for (const char c : name) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

void append(AllOf& to, const AllOf& from) { to.insert(to.end(), from.begin(), from.end()); }

// Items of an array from one place on follow one schema.
AllOf item_at(const Constraints& constraints, std::size_t index) {
  return index < constraints.first_items.size() ? constraints.first_items[index] : constraints.items;
}

}  // namespace

unsigned type_of(const Json& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_string()) return kString;
  if (value.is_array()) return kArray;
  if (value.is_object()) return kObject;
  return value.is_number_integer() || Decimal::of(value).fraction.empty() ? kInteger : kFraction;
}

void Constraints::Counts::narrow(const Counts& other) {
  min = std::max(min, other.min);
  max = std::min(max, other.max);
}

Constraints SchemaReader::read(const AllOf& schemas) {
  Constraints out;
  for (const SchemaPlace& place : schemas) out = merged(std::move(out), read(place));
  if (!schemas.empty()) out.pointer = schemas[0].pointer;
  return out;
}

Constraints SchemaReader::read(const SchemaPlace& place) {
  const Json& schema = *place.schema;
  budget_.charge(1 + schema.size());
  Constraints out;
  out.pointer = place.pointer;
  if (schema.is_boolean()) {
    if (!schema.get<bool>()) out.types = 0;
    return out;
  }
  if (!schema.is_object()) fail(place.pointer, "expected a schema: an object, true or false");
  if (open_.size() >= kMaxDepth)
    fail(place.pointer, "$ref and allOf nest deeper than " + std::to_string(kMaxDepth) + " levels");
  if (!open_.insert(&schema).second) fail(place.pointer, "it refers to itself before it asks for anything");
  for (const auto& [keyword, value] : schema.items()) read_keyword(keyword, value, place, out);
  if (schema.value("nullable", Json()) == true) out.types |= kNull;
  if (const auto names = schema.find("propertyNames"); names != schema.end())
    out = merged(std::move(out), named_as(*names, place.pointer + step("propertyNames")));
  for (const char* keyword : {"$ref", "allOf"}) {
    const auto found = schema.find(keyword);
    if (found == schema.end()) continue;
    const std::string pointer = place.pointer + step(keyword);
    const std::vector<SchemaPlace> others =
        found->is_array() ? list_of(*found, pointer) : std::vector<SchemaPlace>{target_of(*found, pointer)};
    for (const SchemaPlace& other : others) out = merged(std::move(out), read(other));
  }
  open_.erase(&schema);
  return out;
}

void SchemaReader::read_keyword(const std::string& keyword, const Json& value, const SchemaPlace& at,
                                Constraints& out) {
  const std::string pointer = at.pointer + step(keyword);
  if (std::ranges::find(kRefused, keyword) != kRefused.end()) return refuse(keyword, value, pointer);
  if (keyword == "type") {
    out.types = types_of(value, pointer);
  } else if (keyword == "enum" || keyword == "const") {
    if (keyword == "enum" && !value.is_array()) fail(pointer, "expected a list of values");
    Constraints values;
    values.values.emplace();
    if (keyword == "const") values.values->push_back(&value);
    if (keyword == "enum")
      for (const Json& one : value) values.values->push_back(&one);
    out = merged(std::move(out), values);
  } else if (keyword == "anyOf" || keyword == "oneOf") {
    out.any_of.push_back(list_of(value, pointer));
  } else {
    read_number_keyword(keyword, value, at, out) || read_string_keyword(keyword, value, at, out) ||
        read_array_keyword(keyword, value, at, out) || read_object_keyword(keyword, value, at, out);
  }
}

// Where it says nothing it may stay.
void SchemaReader::refuse(const std::string& keyword, const Json& value, const std::string& pointer) const {
  const bool is_empty = value.is_object() && value.empty();
  if (keyword == "uniqueItems" && value == false) return;
  if (keyword.starts_with("unevaluated") && (value == true || is_empty)) return;
  if (is_empty && keyword != "not" && keyword != "contains" && keyword != "if") return;
  fail(pointer, "\"" + keyword + "\" is not supported; leave it out, or check it afterwards");
}

bool SchemaReader::read_number_keyword(const std::string& keyword, const Json& value, const SchemaPlace& at,
                                       Constraints& out) {
  const bool is_lower = keyword == "minimum" || keyword == "exclusiveMinimum";
  if (!is_lower && keyword != "maximum" && keyword != "exclusiveMaximum" && keyword != "multipleOf")
    return false;
  const std::string pointer = at.pointer + step(keyword);
  if (!value.is_number()) fail(pointer, "expected a number");
  out.hinted_types |= kNumbers;
  const Decimal number = Decimal::of(value);
  if (keyword == "multipleOf") {
    if (number.is_negative || number.is_zero()) fail(pointer, "expected a number above 0");
    if (!number.fraction.empty() || number.integer.size() > 4 || std::stoul(number.integer) > kMaxMultiple)
      fail(pointer, "multiples are supported of integers up to " + std::to_string(kMaxMultiple) + " only");
    out.multiple_of = static_cast<std::uint32_t>(std::stoul(number.integer));
  } else if (is_lower) {
    out.bounds.narrow_lower({number, keyword != "minimum"});
  } else {
    out.bounds.narrow_upper({number, keyword != "maximum"});
  }
  return true;
}

bool SchemaReader::read_string_keyword(const std::string& keyword, const Json& value, const SchemaPlace& at,
                                       Constraints& out) {
  const std::string pointer = at.pointer + step(keyword);
  if (keyword == "minLength" || keyword == "maxLength") {
    (keyword == "minLength" ? out.length.min : out.length.max) = count_of(value, pointer);
  } else if (keyword == "pattern" || keyword == "format") {
    if (!value.is_string()) fail(pointer, "expected a string");
    if (keyword == "format" && !pattern_of_format(value.get_ref<const std::string&>())) return true;
    (keyword == "pattern" ? out.patterns : out.formats).push_back({value.get<std::string>(), pointer});
  } else {
    return false;
  }
  out.hinted_types |= kString;
  return true;
}

bool SchemaReader::read_array_keyword(const std::string& keyword, const Json& value, const SchemaPlace& at,
                                      Constraints& out) {
  const std::string pointer = at.pointer + step(keyword);
  if (keyword == "minItems" || keyword == "maxItems") {
    (keyword == "minItems" ? out.items_count.min : out.items_count.max) = count_of(value, pointer);
  } else if (keyword == "prefixItems" || (keyword == "items" && value.is_array())) {
    for (const SchemaPlace& item : list_of(value, pointer)) out.first_items.push_back({item});
  } else if (keyword == "items" || (keyword == "additionalItems" && at.schema->contains("items") &&
                                    at.schema->at("items").is_array())) {
    out.items = {{&value, pointer}};
  } else {
    return false;
  }
  out.hinted_types |= kArray;
  return true;
}

bool SchemaReader::read_object_keyword(const std::string& keyword, const Json& value, const SchemaPlace& at,
                                       Constraints& out) {
  const std::string pointer = at.pointer + step(keyword);
  if (keyword == "minProperties" || keyword == "maxProperties") {
    (keyword == "minProperties" ? out.members_count.min : out.members_count.max) = count_of(value, pointer);
  } else if (keyword == "properties") {
    if (!value.is_object()) fail(pointer, "expected an object of schemas");
    for (const auto& [name, schema] : value.items())
      out.properties.push_back({name, {{&schema, pointer + step(name)}}});
  } else if (keyword == "required") {
    if (!value.is_array()) fail(pointer, "expected a list of names");
    for (const Json& name : value) {
      if (!name.is_string()) fail(pointer, "expected a list of names");
      out.required.push_back(name.get<std::string>());
    }
  } else if (keyword == "additionalProperties") {
    out.additional = {{&value, pointer}};
  } else {
    return false;
  }
  out.hinted_types |= kObject;
  return true;
}

// What names of members are asked to be: texts, which they are, or some of a list, as maps by an enumeration have it.
Constraints SchemaReader::named_as(const Json& names, const std::string& pointer) {
  static const Json never = false;
  const Constraints asked = read(SchemaPlace{&names, pointer});
  if (!(asked.types & kString) || asked.hinted_types != 0 || !asked.any_of.empty())
    refuse("propertyNames", names, pointer);
  Constraints out;
  if (!asked.values) return out;
  for (const Json* name : *asked.values)
    if (name->is_string()) out.properties.push_back({name->get<std::string>(), {}});
  out.additional = {{&never, pointer}};
  out.hinted_types = kObject;
  return out;
}

Constraints SchemaReader::merged(Constraints a, const Constraints& b) {
  budget_.charge(64 +
                 16 * (a.properties.size() + b.properties.size() + a.required.size() + b.required.size()));
  a.types &= b.types;
  a.hinted_types |= b.hinted_types;
  if (a.values && b.values) {
    budget_.charge(a.values->size() * b.values->size());
    std::erase_if(*a.values, [&](const Json* value) {
      return std::none_of(b.values->begin(), b.values->end(),
                          [&](const Json* other) { return *other == *value; });
    });
  } else if (b.values) {
    a.values = b.values;
  }
  if (b.bounds.lower) a.bounds.narrow_lower(*b.bounds.lower);
  if (b.bounds.upper) a.bounds.narrow_upper(*b.bounds.upper);
  if (b.multiple_of) a.multiple_of = std::lcm(a.multiple_of.value_or(1), *b.multiple_of);
  if (a.multiple_of > kMaxMultiple)
    fail(a.pointer,
         "multipleOf: multiples are supported of integers up to " + std::to_string(kMaxMultiple) + " only");
  a.length.narrow(b.length);
  a.items_count.narrow(b.items_count);
  a.members_count.narrow(b.members_count);
  a.patterns.insert(a.patterns.end(), b.patterns.begin(), b.patterns.end());
  a.formats.insert(a.formats.end(), b.formats.begin(), b.formats.end());
  std::vector<AllOf> first;
  for (std::size_t i = 0; i < std::max(a.first_items.size(), b.first_items.size()); ++i) {
    first.push_back(item_at(a, i));
    append(first.back(), item_at(b, i));
  }
  a.first_items = std::move(first);
  append(a.items, b.items);
  merge_members(a, b);
  a.required.insert(a.required.end(), b.required.begin(), b.required.end());
  a.any_of.insert(a.any_of.end(), b.any_of.begin(), b.any_of.end());
  return a;
}

// What one side does not name is additional to it.
void SchemaReader::merge_members(Constraints& a, const Constraints& b) {
  std::set<std::string_view> named;
  for (const Constraints::Property& property : b.properties) named.insert(property.name);
  for (Constraints::Property& property : a.properties)
    if (!named.contains(property.name)) append(property.schemas, b.additional);
  std::map<std::string, std::size_t> known;
  for (std::size_t i = 0; i < a.properties.size(); ++i) known.emplace(a.properties[i].name, i);
  for (const Constraints::Property& property : b.properties) {
    const auto [found, is_new] = known.emplace(property.name, a.properties.size());
    if (!is_new) {
      append(a.properties[found->second].schemas, property.schemas);
      continue;
    }
    a.properties.push_back(property);
    append(a.properties.back().schemas, a.additional);
  }
  append(a.additional, b.additional);
}

unsigned SchemaReader::types_of(const Json& value, const std::string& pointer) const {
  if (value.is_array()) {
    unsigned types = 0;
    for (const Json& one : value) {
      if (one.is_array()) fail(pointer, "expected the name of a type, or a list of them");
      types |= types_of(one, pointer);
    }
    return types;
  }
  static const std::map<std::string, unsigned, std::less<>> kTypes = {
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kNumbers},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  const auto found = value.is_string() ? kTypes.find(value.get<std::string>()) : kTypes.end();
  if (found == kTypes.end())
    fail(pointer, "expected null, boolean, integer, number, string, array or object");
  return found->second;
}

std::uint32_t SchemaReader::count_of(const Json& value, const std::string& pointer) const {
  if (!value.is_number() || type_of(value) != kInteger || Decimal::of(value).is_negative)
    fail(pointer, "expected an integer of at least 0");
  const Decimal count = Decimal::of(value);
  return count.integer.size() > 9 ? kUnbounded - 1 : static_cast<std::uint32_t>(std::stoul(count.integer));
}

std::vector<SchemaPlace> SchemaReader::list_of(const Json& value, const std::string& pointer) const {
  if (!value.is_array()) fail(pointer, "expected a list of schemas");
  std::vector<SchemaPlace> out;
  for (std::size_t i = 0; i < value.size(); ++i)
    out.push_back({&value[i], pointer + "/" + std::to_string(i)});
  return out;
}

SchemaPlace SchemaReader::target_of(const Json& reference, const std::string& pointer) const {
  if (!reference.is_string()) fail(pointer, "expected a string");
  const std::string target = percent_decoded(reference.get<std::string>());
  if (!target.starts_with('#'))
    fail(pointer, "only references into the same schema (\"#/...\") are supported");
  if (target.size() > 1 && target[1] != '/')
    fail(pointer, "references to anchors are not supported; write a JSON pointer");
  const Json* at = &document_;
  for (std::size_t i = 1; i < target.size();) {
    const std::size_t end = std::min(target.find('/', i + 1), target.size());
    std::string name = target.substr(i + 1, end - i - 1);
    for (const auto& [from, to] : {std::pair{"~1", "/"}, std::pair{"~0", "~"}})
      for (std::size_t place = 0; (place = name.find(from, place)) != name.npos; ++place)
        name.replace(place, 2, to);
    const bool is_index = at->is_array() && !name.empty() && name.size() < 7 &&
                          name.find_first_not_of("0123456789") == name.npos;
    if (at->is_object() && at->contains(name))
      at = &at->at(name);
    else if (is_index && std::stoul(name) < at->size())
      at = &at->at(std::stoul(name));
    else
      fail(pointer, "nothing is at \"" + escaped(target, 100) + "\"");
    i = end;
  }
  return {at, target};
}

std::string SchemaReader::named(const std::string& pointer) const {
  return what_ + ": " + escaped(pointer, 200);
}

void SchemaReader::fail(const std::string& pointer, const std::string& message) const {
  throw Error(Code::kInvalidArgument, named(pointer) + ": " + message);
}

}  // namespace ark::text::grammar

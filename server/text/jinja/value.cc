#include "server/text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "server/text/jinja/operations.h"

namespace ark::text::jinja {
namespace {

int checked_depth(int depth) {
  if (depth > kMaxContainerDepth)
    throw TemplateError("lists and dicts are nested deeper than " + std::to_string(kMaxContainerDepth));
  return depth;
}

}  // namespace

Value Value::undefined(std::string what) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(what))};
  return value;
}

Value Value::list(std::vector<Value> items, List::Flavor flavor) {
  int depth = 1;
  for (const Value& item : items) depth = std::max(depth, item.depth() + 1);
  Value value;
  value.data_ = std::make_shared<const List>(List{std::move(items), flavor, checked_depth(depth)});
  return value;
}

std::vector<Value> room_for(std::size_t count, Budget& budget) {
  budget.charge_bytes(count * sizeof(Value));
  std::vector<Value> room;
  room.reserve(count);
  return room;
}

Value Value::function(std::string name, std::function<Value(Interpreter&, const Arguments&)> call) {
  return std::make_shared<const Callable>(Callable{std::move(name), std::move(call)});
}

bool Value::same_object(const Value& other) const {
  if (data_.index() != other.data_.index() || is_undefined() || is_float()) return false;
  if (is_none()) return true;
  if (is_integral()) return as_int() == other.as_int();
  if (is_string()) return &as_string() == &other.as_string() || as_string() == other.as_string();
  if (is_list()) return &as_list() == &other.as_list();
  if (is_dict()) return &as_dict() == &other.as_dict();
  if (is_namespace()) return &as_namespace() == &other.as_namespace();
  return &as_callable() == &other.as_callable();
}

int Value::depth() const {
  if (is_list()) return as_list().depth;
  if (is_dict()) return as_dict().depth;
  // A namespace inside a container could come to hold that container; and a cycle is never freed.
  if (is_namespace()) throw TemplateError("a namespace cannot be put into a list, dict or namespace");
  return 0;
}

const char* Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_dict()) return "dict";
  if (is_namespace()) return "Namespace";
  if (is_callable()) return "function";
  switch (as_list().flavor) {
    case List::Flavor::kTuple:
      return "tuple";
    case List::Flavor::kGenerator:
      return "generator";
    case List::Flavor::kKeys:
      return "dict_keys";
    case List::Flavor::kValues:
      return "dict_values";
    case List::Flavor::kItems:
      return "dict_items";
    default:
      return "list";
  }
}

std::string Dict::hash_key(const Value& key, Budget& budget) {
  budget.charge();
  budget.charge_bytes(key.is_string() ? key.as_string().size() : 0);
  if (key.is_string()) return "s" + key.as_string();
  if (key.is_none()) return "n";
  if (key.is_undefined()) return "u";
  if (key.is_integral()) return "i" + std::to_string(key.as_int());
  if (key.is_float()) {
    const double number = key.as_number();
    if (number == std::floor(number) && std::abs(number) < 9e18)
      return "i" + std::to_string(static_cast<std::int64_t>(number));
    return "f" + float_repr(number);
  }
  if (key.is_flavor(List::Flavor::kTuple)) {
    std::string out = "t";
    for (const Value& item : key.as_list().items) {
      if (item.is_list()) throw TemplateError("a key of nested tuples or lists is not supported");
      const std::string part = hash_key(item, budget);
      out += std::to_string(part.size()) + ":" + part;
    }
    return out;
  }
  throw TemplateError(std::string("unhashable type: '") + key.type_name() + "'");
}

void Dict::set(const Value& key, Value value, Budget& budget) {
  depth = checked_depth(std::max(depth, std::max(key.depth(), value.depth()) + 1));
  const auto [entry, is_new] = index_.try_emplace(hash_key(key, budget), items.size());
  if (is_new) budget.charge_bytes(kEntryBytes + entry->first.size());
  if (is_new)
    items.emplace_back(key, std::move(value));
  else
    items[entry->second].second = std::move(value);
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  const auto found = index_.find(hash_key(key, budget));
  return found == index_.end() ? nullptr : &items[found->second].second;
}

const Value* Dict::find(std::string_view key) const {
  const auto found = index_.find("s" + std::string(key));
  return found == index_.end() ? nullptr : &items[found->second].second;
}

void Names::set(const std::string& name, Value value) {
  for (auto& [key, old] : *this) {
    if (key != name) continue;
    old = std::move(value);
    return;
  }
  emplace_back(name, std::move(value));
}

const Value* Names::find(const std::string& name) const {
  for (const auto& [key, value] : *this)
    if (key == name) return &value;
  return nullptr;
}

void Namespace::set(const std::string& name, Value value) {
  value.depth();
  attributes.set(name, std::move(value));
}

Value Namespace::find(const std::string& name) {
  const Value* value = attributes.find(name);
  return value ? *value : Value::undefined("namespace has no attribute '" + name + "'");
}

}  // namespace ark::text::jinja

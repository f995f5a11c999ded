#include "server/text/jinja/from_json.h"

#include "server/json.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

const std::string& checked_utf8(const std::string& text) {
  if (!is_valid_utf8(text)) throw TemplateError("a string of the input is not valid UTF-8");
  return text;
}

}  // namespace

Value from_json(const Json& json, Budget& budget, int depth) {
  budget.charge_bytes(sizeof(Value) + kListBytes +
                      (json.is_string() ? json.get_ref<const std::string&>().size() : 0));
  if (depth > kMaxContainerDepth - 10)
    throw TemplateError("the input is nested deeper than " + std::to_string(kMaxContainerDepth - 10));
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<std::int64_t>();
    case Json::value_t::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number > INT64_MAX) return static_cast<double>(number);
      return static_cast<std::int64_t>(number);
    }
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return checked_utf8(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(item, budget, depth + 1));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, item] : json.items())
        dict->set(checked_utf8(key), from_json(item, budget, depth + 1), budget);
      return std::shared_ptr<const Dict>(std::move(dict));
    }
    default:
      return Value();
  }
}

}  // namespace ark::text::jinja

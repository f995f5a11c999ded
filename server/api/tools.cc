#include "server/api/tools.h"

#include "base/error.h"
#include "server/api/schema.h"

namespace ark::api {
namespace {

const OtherField kTools{"tools", [](const Limits&) {
                          return maybe(list(type("object"), "Given to the model's chat template."));
                        }};
const OtherField kToolChoice{
    "tool_choice", [](const Limits&) {
      Json function =
          object({{"type", one_of({"function"})}, {"function", object({{"name", type("string")}}, {"name"})}},
                 {"type", "function"});
      return maybe({{"oneOf", Json::array({one_of({"auto", "none", "required"}), std::move(function)})}});
    }};

// {"type": "function", "function": {"name": ...}}
std::string named_function(const Fields& fields, const Json& choice) {
  const Fields own(choice, fields.path("tool_choice."));
  if (own.string("type") != "function") own.fail("type", R"(must be "function")");
  const Json* function = own.find("function");
  if (!function || !function->is_object()) own.wrong_type("function", "an object");
  const Fields named(*function, own.path("function."));
  const auto name = named.string("name");
  if (!name) named.wrong_type("name", "a string");
  return *name;
}

bool is_called(const Json& tool, const std::string& name) {
  const auto function = tool.find("function");
  return function != tool.end() && function->is_object() && function->contains("name") &&
         (*function)["name"] == name;
}

}  // namespace

const std::vector<Field>& tool_fields() {
  static const std::vector<Field> all = {kTools, kToolChoice};
  return all;
}

Tools read_tools(const Fields& fields) {
  const Json *given = fields.get(kTools), *choice = fields.get(kToolChoice);
  if (given && !given->is_array()) fields.wrong_type("tools", "an array");
  const std::string word = choice && choice->is_string() ? choice->get<std::string>() : "auto";
  const bool names = choice && choice->is_object();
  if ((choice && !names && !choice->is_string()) || (word != "auto" && word != "none" && word != "required"))
    fields.fail("tool_choice",
                R"(must be "auto", "none", "required", or {"type": "function", "function": {"name": ...}})");
  const std::string name = names ? named_function(fields, *choice) : "";
  Tools tools{.must_call = names || word == "required", .names = names};
  const bool has_any = given && !given->empty();
  if (tools.must_call && !has_any) fields.fail("tool_choice", "forces a call, but there are no tools");
  if (!has_any || word == "none") return tools;
  for (const Json& tool : *given) {
    if (!tool.is_object()) fields.fail("tools", "must hold objects, not " + kind_of(tool));
    if (!names || is_called(tool, name)) tools.may_call.push_back(tool);
  }
  if (tools.may_call.empty())
    fields.fail("tool_choice", "names " + escaped(name, 60) + ", which is no function of tools");
  tools.shown = *given;
  return tools;
}

}  // namespace ark::api

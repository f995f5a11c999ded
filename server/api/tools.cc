#include "server/api/tools.h"

#include <set>

#include "base/error.h"
#include "server/api/schema.h"

namespace ark::api {
namespace {

const OtherField kTools{"tools", [](const Limits&) {
                          return maybe(list(type("object"), "Given to the model's chat template."));
                        }};
const OtherField kToolChoice{
    "tool_choice", [](const Limits&) {
      const Json function =
          object({{"type", one_of({"function"})}, {"function", object({{"name", type("string")}}, {"name"})}},
                 {"type", "function"});
      const Json allowed =
          object({{"mode", one_of({"auto", "required"})}, {"tools", at_least_one(list(function))}},
                 {"mode", "tools"});
      return maybe(
          {{"oneOf", Json::array({one_of({"auto", "none", "required"}), function,
                                  object({{"type", one_of({"allowed_tools"})}, {"allowed_tools", allowed}},
                                         {"type", "allowed_tools"})})}});
    }};

struct ToolChoice {
  std::string mode = "auto";
  std::set<std::string> functions;  // only these of tools; empty: all
  bool names = false;               // exactly this one
};

const Json& object_at(const Fields& fields, const char* name) {
  const Json* value = fields.find(name);
  if (!value || !value->is_object()) fields.wrong_type(name, "an object");
  return *value;
}

// {"type": "function", "function": {"name": ...}}
std::string named_function(const Fields& own) {
  if (own.string("type") != "function") own.fail("type", R"(must be "function")");
  const Fields named(object_at(own, "function"), own.path("function."));
  const auto name = named.string("name");
  if (!name) named.wrong_type("name", "a string");
  return *name;
}

// {"mode": ..., "tools": [{"type": "function", ...}, ...]}
ToolChoice allowed_tools(const Fields& own) {
  const auto mode = own.string("mode");
  if (mode != "auto" && mode != "required") own.fail("mode", R"(must be "auto" or "required")");
  const Json* tools = own.find("tools");
  if (!tools || !tools->is_array()) own.wrong_type("tools", "an array");
  if (tools->empty()) own.fail("tools", R"(must not be empty; to call none, tool_choice is "none")");
  ToolChoice choice{.mode = *mode};
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const std::string place = "tools[" + std::to_string(i) + "]";
    if (!(*tools)[i].is_object()) own.wrong_type(place, "an object");
    choice.functions.insert(named_function(Fields((*tools)[i], own.path(place + "."))));
  }
  return choice;
}

ToolChoice read_choice(const Fields& fields) {
  const Json* given = fields.get(kToolChoice);
  if (!given) return {};
  if (given->is_object()) {
    const Fields own(*given, fields.path("tool_choice."));
    if (own.string("type") == "allowed_tools")
      return allowed_tools(Fields(object_at(own, "allowed_tools"), own.path("allowed_tools.")));
    return {.mode = "required", .functions = {named_function(own)}, .names = true};
  }
  if (*given != "auto" && *given != "none" && *given != "required")
    fields.fail("tool_choice",
                R"(must be "auto", "none", "required", {"type": "function", "function": {"name": ...}} or )"
                R"({"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}})");
  return {.mode = given->get<std::string>()};
}

std::string name_of(const Json& tool) {
  const auto function = tool.find("function");
  const bool has_name = function != tool.end() && function->is_object() && function->contains("name") &&
                        (*function)["name"].is_string();
  return has_name ? (*function)["name"].get<std::string>() : "";
}

std::string listed(const std::set<std::string>& names) {
  std::string all;
  for (const std::string& name : names) {
    if (all.size() > 300) return all + " ...";
    all += (all.empty() ? "" : ", ") + escaped(name, 60);
  }
  return all;
}

}  // namespace

const std::vector<Field>& tool_fields() {
  static const std::vector<Field> all = {kTools, kToolChoice};
  return all;
}

Tools read_tools(const Fields& fields) {
  const Json* given = fields.get(kTools);
  if (given && !given->is_array()) fields.wrong_type("tools", "an array");
  const ToolChoice choice = read_choice(fields);
  Tools tools{
      .must_call = choice.mode == "required", .names = choice.names, .only = !choice.functions.empty()};
  const bool has_any = given && !given->empty();
  if (tools.must_call && !has_any) fields.fail("tool_choice", "forces a call, but there are no tools");
  if (choice.mode == "none") return tools;
  std::set<std::string> unknown = choice.functions;
  const Json none = Json::array();
  for (const Json& tool : has_any ? *given : none) {
    if (!tool.is_object()) fields.fail("tools", "must hold objects, not " + kind_of(tool));
    const std::string name = name_of(tool);
    unknown.erase(name);
    if (!tools.only || choice.functions.contains(name)) tools.may_call.push_back(tool);
  }
  if (!unknown.empty())
    fields.fail("tool_choice",
                "names " + listed(unknown) +
                    (unknown.size() == 1 ? ", which is no function" : ", which are no functions") +
                    " of tools");
  if (has_any) tools.shown = choice.names ? *given : tools.may_call;
  return tools;
}

}  // namespace ark::api

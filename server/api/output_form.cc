#include "server/api/output_form.h"

#include <utility>

#include "base/error.h"
#include "server/api/schema.h"
#include "server/api/service.h"
#include "server/http/message.h"
#include "server/text/grammar/grammar.h"
#include "server/text/tokenizer.h"

namespace ark::api {
namespace {

using GrammarPtr = std::shared_ptr<const text::Grammar>;

constexpr std::size_t kMostChoices = 4096, kMostChoiceBytes = std::size_t{1} << 20;

// ---- kinds of forms: each checks its value's type and compiles it

// As an object, or as the text of one.
Json schema_in(const Fields& fields, const std::string& name) {
  const Json& value = *fields.find(name);
  if (value.is_object() || value.is_boolean()) return value;
  if (!value.is_string()) fields.wrong_type(name, "a JSON schema");
  return parse_json(value.get<std::string>(), fields.path(name), fields.path(name));
}

GrammarPtr schema_form(const Fields& fields, const std::string& name) {
  return text::Grammar::of_json_schema(schema_in(fields, name));
}

GrammarPtr object_form(const Fields&, const std::string&) { return text::Grammar::of_json_object(); }

GrammarPtr regex_form(const Fields& fields, const std::string& name) {
  return text::Grammar::of_regex(*fields.string(name));
}

GrammarPtr choice_form(const Fields& fields, const std::string& name) {
  if (!fields.find(name)->is_array()) fields.wrong_type(name, "an array of strings");
  const std::vector<std::string> choices = *fields.strings(name, kMostChoices);
  std::size_t bytes = 0;
  for (const std::string& choice : choices) {
    if (choice.empty()) fields.fail(name, "holds an empty string");
    if ((bytes += choice.size()) > kMostChoiceBytes)
      fields.fail(name, "has more than " + std::to_string(kMostChoiceBytes >> 20) + " MiB");
  }
  if (choices.empty()) fields.fail(name, "must hold a string");
  return text::Grammar::of_choices(choices);
}

GrammarPtr gbnf_form(const Fields& fields, const std::string& name) {
  return text::Grammar::of_gbnf(*fields.string(name));
}

Json any_object(const Fields&, const std::string&) { return {{"type", "object"}}; }

struct Kind {
  const char* name;
  GrammarPtr (*compile)(const Fields&, const std::string&);
  Json (*schema)(const Fields&,
                 const std::string&) = nullptr;  // of which its texts are values; null: of none
};
constexpr Kind kSchema{"schema", schema_form, schema_in}, kObject{"object", object_form, any_object},
    kRegex{"regex", regex_form}, kChoice{"choice", choice_form}, kGbnf{"gbnf", gbnf_form};

struct NamedKind {
  const char* field;
  Kind kind;
};
// vLLM's former names, llama.cpp's and SGLang's.
constexpr NamedKind kForms[] = {
    {"guided_json", kSchema}, {"guided_regex", kRegex}, {"guided_choice", kChoice}, {"guided_grammar", kGbnf},
    {"json_schema", kSchema}, {"grammar", kGbnf},       {"regex", kRegex},          {"ebnf", kGbnf}};
// Of vLLM's structured_outputs.
constexpr NamedKind kStructured[] = {
    {"json", kSchema}, {"json_object", kObject}, {"regex", kRegex}, {"choice", kChoice}, {"grammar", kGbnf}};

const OtherField kFormat{
    "response_format", [](const Limits&) {
      Json kinds = one_of({"text", "json_object", "json_schema", "regex", "grammar"});
      return maybe(object({{"type", std::move(kinds)},
                           {"json_schema", object({{"schema", type("object")}}, {"schema"})},
                           {"schema", type("object")},
                           {"pattern", type("string")},
                           {"grammar", type("string")}},
                          {"type"}));
    }};
const OtherField kOutputs{
    "structured_outputs", [](const Limits&) {
      return maybe(object({{"json", maybe(type("object"))},
                           {"json_object", maybe(type("boolean"))},
                           {"regex", maybe(type("string"))},
                           {"choice", maybe(list(type("string")))},
                           {"grammar", maybe(text("In llama.cpp's notation, GBNF."))}}));
    }};

// ---- which one a request asks for

// `path`: of the field that the form comes in.
schedule::StartConstraint start(const session::Model& model, const std::string& path, const std::string& key,
                                const session::Grammars::Compile& compile, std::vector<int32_t> marks = {}) {
  tokenizer_for(model, path);
  try {
    return model.grammars->start(key, compile, std::move(marks));
  } catch (const Error& e) {
    if (e.code() != Code::kInvalidArgument && e.code() != Code::kUnsupported) throw;
    throw http::HttpError(400, path + ": " + e.what(), path, "invalid_value");
  }
}

// The one form of a request, as it is found.
class Reader {
 public:
  Reader(const Fields& fields, const session::Model& model) : fields_(fields), model_(model) {}

  OutputForm read() {
    if (const Json* format = fields_.get(kFormat)) read_format(*format);
    read_all(fields_, kForms);
    if (const Json* outputs = fields_.get(kOutputs)) read_outputs(*outputs);
    fields_.refuse("guided_whitespace_pattern", kNoNumber);
    return std::move(form_);
  }

 private:
  void read_format(const Json& format) {
    if (!format.is_object()) fields_.wrong_type(kFormat.name, "an object");
    const Fields own(format, fields_.path("response_format."));
    const std::string kind = own.string("type").value_or("");
    if (kind == "text") return;
    if (kind == "json_object" && !own.find("schema")) return add(own, "type", kObject);
    if (kind == "json_object") return add(own, "schema", kSchema);
    if (kind == "json_schema") return read_schema(own);
    if (kind == "regex") return add(own, "pattern", kRegex);
    if (kind == "grammar") return add(own, "grammar", kGbnf);
    own.fail("type", R"(must be "text", "json_object", "json_schema", "regex" or "grammar")");
  }

  // {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}, or the schema beside the type.
  void read_schema(const Fields& own) {
    const Json* named = own.find("json_schema");
    if (!named) return add(own, "schema", kSchema);
    if (!named->is_object()) own.wrong_type("json_schema", "an object");
    add(Fields(*named, own.path("json_schema.")), "schema", kSchema);
  }

  void read_outputs(const Json& outputs) {
    if (!outputs.is_object()) fields_.wrong_type(kOutputs.name, "an object");
    const Fields own(outputs, fields_.path("structured_outputs."));
    for (const char* name : {"structural_tag", "whitespace_pattern", "disable_additional_properties"})
      own.refuse(name, kNoNumber);
    read_all(own, kStructured);
  }

  void read_all(const Fields& fields, const auto& names) {
    for (const NamedKind& form : names) {
      const Json* value = fields.find(form.field);
      const bool asks = value && *value != false && *value != "" && *value != Json::array();
      if (asks) add(fields, form.field, form.kind);
    }
  }

  void add(const Fields& fields, const std::string& name, const Kind& kind) {
    const Json* value = fields.find(name);
    const std::string path = fields.path(name);
    if (!value) fields.fail(name, "is missing");
    if (form_.start) fields.fail(name, "asks for a form beside " + found_);
    found_ = path;
    form_.start =
        start(model_, path, kind.name + (' ' + to_text(*value)), [&] { return kind.compile(fields, name); });
    if (kind.schema) form_.schema = kind.schema(fields, name);
  }

  const Fields& fields_;
  const session::Model& model_;
  OutputForm form_;
  std::string found_;  // where
};

}  // namespace

const std::vector<Field>& output_form_fields() {
  static const std::vector<Field> all = {kFormat, kOutputs};
  return all;
}

OutputForm read_output_form(const Fields& fields, const session::Model& model) {
  return Reader(fields, model).read();
}

schedule::StartConstraint start_calls(const CallGrammar& form, const session::Model& model) {
  std::vector<std::pair<std::string, Json>> functions;
  for (std::size_t i = 0; i < form.tools.size(); ++i) {
    const std::string place = "tools[" + std::to_string(i) + "].";
    const Fields tool(form.tools[i], place);
    const Json* function = tool.find("function");
    if (!function || !function->is_object()) tool.wrong_type("function", "an object");
    const Fields own(*function, place + "function.");
    const auto name = own.string("name");
    if (!name || name->empty()) own.wrong_type("name", "a name");
    const Json* parameters = own.find("parameters");
    functions.emplace_back(*name, parameters ? *parameters : Json{{"type", "object"}});
  }
  std::vector<int32_t> marks;
  const text::Tokenizer& tokenizer = tokenizer_for(model, "tools");
  for (const std::string_view mark : {form.begin, form.end})
    if (const auto id = tokenizer.id(mark); id && tokenizer.is_special(*id)) marks.push_back(*id);
  const Json* otherwise = form.otherwise.is_null() ? nullptr : &form.otherwise;
  const std::string key = to_text(Json::array({form.many, form.tools, form.otherwise}));
  const auto compile = [&] {
    return text::Grammar::of_calls(form.begin, form.end, functions, form.many, otherwise);
  };
  return start(model, "tools", key, compile, marks);
}

}  // namespace ark::api

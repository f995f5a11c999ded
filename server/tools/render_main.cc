// ark-render: chat templates on the command line.
//
//   ark-render TEMPLATE.jinja < variables.json     the template with these variables (messages, tools ...)
//   ark-render --lines < lines.jsonl               {"template": "...", "variables": {...}} -> {"text": "..."} or
//                                                  {"error": "..."}, line by line; with "answer", "tools",
//                                                  "bos_token" and "eos_token" instead of variables the answer as
//                                                  a server reads it: {"text": "...", "calls": [...]}
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>

#include "base/error.h"
#include "server/json.h"
#include "server/text/chat_template.h"
#include "server/text/tool_calls.h"
#include "server/tools/main_guard.h"

namespace {

// What the server takes for calls in an answer by this template's model.
ark::Json read_answer(const ark::text::ChatTemplate& of, const ark::Json& input) {
  std::map<std::string, std::string> tokens;
  for (const char* name : {"bos_token", "eos_token"}) tokens[name] = input.at(name).get<std::string>();
  auto form = ark::text::call_form_of(of, tokens);
  if (!form) throw ark::Error(ark::Code::kUnsupported, "the template prints no calls in a form that is read");
  const ark::text::ToolCalls::Expected expected{.form = *std::move(form), .tools = input.at("tools")};
  const auto found = ark::text::ToolCalls(expected).push(input.at("answer").get<std::string>(), true);
  ark::Json calls = ark::Json::array();
  for (const ark::text::ToolCall& call : found.calls)
    calls.push_back({{"name", call.name}, {"arguments", ark::parse_json(call.arguments)}});
  return {{"text", found.text}, {"calls", std::move(calls)}};
}

int render_lines(std::time_t now) {
  for (std::string line; std::getline(std::cin, line);) {
    ark::Json result;
    try {
      const ark::Json input = ark::parse_json(line);
      const auto parsed = ark::text::ChatTemplate::parse(input.at("template").get<std::string>());
      if (input.contains("answer"))
        result = read_answer(parsed, input);
      else
        result["text"] = parsed.render_variables(input.at("variables"), now);
    } catch (const std::exception& error) {  // a bad line is its own line's answer
      result["error"] = error.what();
    }
    std::cout << ark::to_text(result) << '\n';
  }
  return 0;
}

std::string read(std::istream& stream) { return {std::istreambuf_iterator<char>(stream), {}}; }

int render_file(const std::string& file, std::time_t now) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw ark::Error(ark::Code::kNotFound, ark::escaped(file) + ": cannot be read");
  const auto parsed = ark::text::ChatTemplate::parse(read(stream));
  const ark::Json variables = ark::parse_json_or_discard(read(std::cin));
  if (!variables.is_object())
    throw ark::Error(ark::Code::kUsage, "standard input: expected a JSON object of variables");
  std::cout << parsed.render_variables(variables, now);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ark::CommandLine line("ark-render",
                        "Renders Hugging Face chat templates, and reads calls of tools by them");
  std::string file;
  bool lines = false;
  int64_t now = std::time(nullptr);
  line.text("template", file, "a Jinja file; its variables come as JSON on standard input");
  line.flag("--lines", lines, "templates and variables as JSON lines on standard input");
  line.number("--now", now, 0, int64_t{1} << 40, "seconds since 1970 that strftime_now formats");
  return ark::run_main(line, argc, argv, [&] {
    if (lines == !file.empty()) throw ark::Error(ark::Code::kUsage, "give a template's file, or --lines");
    return lines ? render_lines(now) : render_file(file, now);
  });
}

// ark-render: chat templates on the command line.
//
//   ark-render TEMPLATE.jinja < variables.json     the template with these variables (messages, tools ...)
//   ark-render --lines < lines.jsonl               {"template": "...", "variables": {...}} -> {"text": "..."} or
//                                                  {"error": "..."}, line by line
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>

#include "base/error.h"
#include "server/json.h"
#include "server/text/chat_template.h"
#include "server/tools/main_guard.h"

namespace {

int render_lines(std::time_t now) {
  for (std::string line; std::getline(std::cin, line);) {
    ark::Json result;
    try {
      const ark::Json input = ark::parse_json(line);
      const auto parsed = ark::text::ChatTemplate::parse(input.at("template").get<std::string>());
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
  ark::CommandLine line("ark-render", "Renders Hugging Face chat templates");
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

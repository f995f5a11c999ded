// libFuzzer: a chat template, and behind a NUL the JSON of its variables. It is refused when it is loaded, or
// it renders within its budget or fails with the line: nothing else may happen, whatever the template does.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "base/error.h"
#include "server/json.h"
#include "server/text/call_form.h"
#include "server/text/chat_template.h"

namespace {

using ark::Json;

constexpr ark::text::Budget kBudget{100'000, std::size_t{4} << 20};
constexpr std::string_view kUsual =
    R"({"messages": [{"role": "system", "content": " s "}, {"role": "user", "content": "hé\n"}, {"role": "assistant",
    "content": null, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"x": [1, 2.5, true]}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "n": 7, "l": [3, 1, 2], "d": {"b": 1, "a": "x"}})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(input.find('\0'), size);
  try {
    const auto parsed = ark::text::ChatTemplate::parse(input.substr(0, end));
    Json variables =
        end + 64 < size ? Json() : Json::parse(input.substr(std::min(end + 1, size)), nullptr, false);
    if (!variables.is_object()) variables = Json::parse(kUsual);
    if (const auto form = ark::text::call_form_of(parsed, {})) ark::text::read_calls(*form, input, {});
    parsed.render_variables(variables, 0, kBudget);
  } catch (const ark::Error& error) {
    using ark::Code;
    if (error.code() == Code::kBadModel || error.code() == Code::kInvalidArgument) return 0;
    std::cerr << "an input may not cause: " << error.what() << '\n';
    std::abort();
  }
  return 0;
}

#include "server/config.h"

#include <cctype>
#include <cmath>
#include <map>

#include "base/error.h"
#include "engine/compile.h"
#include "server/choice.h"

namespace ark {
namespace {

// CLI11 hands a check's message on to the user.
std::string checked_bytes(const std::string& text) {
  try {
    parse_bytes(text);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace

int64_t parse_bytes(const std::string& text) {
  const auto bad = [&](const std::string& why) { throw Error(Code::kUsage, escaped(text, 40) + " " + why); };
  std::size_t end = 0;
  double value = 0;
  if (text.empty() || !(std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '.'))
    bad("is no size; write bytes, or 512M, 1.5G");
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    bad("is no size; write bytes, or 512M, 1.5G");
  }
  std::string suffix = text.substr(end);
  for (char& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  static const std::map<std::string, int> kShifts = {
      {"", 0},     {"b", 0},  {"k", 10},  {"kb", 10},  {"kib", 10}, {"m", 20},  {"mb", 20},
      {"mib", 20}, {"g", 30}, {"gb", 30}, {"gib", 30}, {"t", 40},   {"tb", 40}, {"tib", 40}};
  const auto shift = kShifts.find(suffix);
  if (shift == kShifts.end()) bad("has an unknown suffix; k, M, G and T are known");
  value = std::ldexp(value, shift->second);
  if (!(value >= 0 && value < 9e15)) bad("is out of range");
  return static_cast<int64_t>(value);
}

void add_serve_options(CLI::App& app, ServeOptions& options) {
  const auto whole = [&](const char* name, int32_t& into, int32_t low, int32_t high, const char* help) {
    app.add_option(name, into, help)->check(CLI::Range(low, high))->capture_default_str();
  };
  app.add_option("model,--model", options.model, "ONNX file, or folder that holds one; also without --model")
      ->required()
      ->type_name("FILE|DIR");
  app.add_option("--variant", options.variant, "of several files in the folder: q4 for model_q4.onnx");
  app.add_option("--served-model-name", options.served_model_names,
                 "names in requests, the first of them in answers; default: the file's stem");
  app.add_option("--host", options.host, "address to listen on")->capture_default_str();
  whole("--port", options.port, 0, 65535, "port to listen on; 0 picks a free one");
  whole("--tp", options.tp, 0, kMaxRanks, "ranks that share each layer; 0: chosen");
  app.add_flag("--processes", options.processes, "each rank but the first is a process of its own");
  add_device_options(app, options.device);
  whole("--threads", options.threads, 0, 4096, "threads of all ranks together; 0: one per core");
  whole("--max-model-len", options.max_model_len, 0, 1 << 20,
        "tokens of one sequence; 0: what the model allows, at most 131072");
  whole("--max-num-seqs", options.max_num_seqs, 1, 4096, "sequences that run at once");
  whole("--max-num-batched-tokens", options.max_num_batched_tokens, 0, 1 << 20,
        "tokens of one step; 0: chosen");
  whole("--max-queue", options.max_queue, 1, 1 << 16, "requests that wait; more get 429");
  app.add_option_function<std::string>(
         "--kv-memory", [&](const std::string& text) { options.kv_memory = parse_bytes(text); },
         "memory for cached keys and values, as 512M or 2G; 0: chosen")
      ->check(CLI::Validator(checked_bytes, "SIZE"))
      ->default_str("0");
  app.add_option("--plan", options.plan, "programs to run, as ark-inspect --stage program prints them");
  app.add_option("--api-key-file", options.api_key_file,
                 "file with one API key a line; needed for all but health");
  app.add_option_function<double>(
         "--shutdown-timeout",
         [&](double seconds) {
           if (std::isnan(seconds))  // which no range excludes
             throw CLI::ValidationError("--shutdown-timeout", "nan is no number of seconds");
           options.shutdown_timeout = std::chrono::milliseconds(std::llround(seconds * 1000));
         },
         "seconds that requests in flight may take after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->default_str("30");
  add_choice<LogFormat>(app, "--log-format", options.log_format,
                        {{"text", LogFormat::kText}, {"json", LogFormat::kJson}}, "text",
                        "of all lines on standard output and error");
  add_choice<LogLevel>(app, "--log-level", options.log_level,
                       {{"debug", LogLevel::kDebug},
                        {"info", LogLevel::kInfo},
                        {"warning", LogLevel::kWarning},
                        {"error", LogLevel::kError}},
                       "info", "of the log; debug: also requests for health and metrics");
  app.add_flag("--check", options.check, "load everything, say what was found, and exit");
}

}  // namespace ark

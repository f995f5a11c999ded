#include "server/tools/bench/prompts.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "server/json.h"

namespace ark::bench {
namespace {

using Random = std::mt19937_64;

// Without a tokenizer: ids that nearly every vocabulary has and that are rarely special.
constexpr int32_t kFirstPlainId = 32, kLastPlainId = 255;
constexpr const char* kWords[] = {" the", " a",   " of",  " to",  " and", " in",  " is",   " it",
                                  " was", " for", " on",  " at",  " be",  " as",  " with", " he",
                                  " she", " we",  " you", " all", " one", " two", " new",  " time"};
// ShareGPT's conversations outside these lengths say little about a server (the bounds are vLLM's).
constexpr int64_t kLeastTokens = 4, kMostPrompt = 1024, kMostTotal = 2048;

int64_t draw(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

Prompt text_prompt(std::string text, int64_t output_tokens, const text::Tokenizer& tokenizer) {
  Prompt prompt;
  prompt.ids = tokenizer.encode(text, true);
  prompt.text = std::move(text);
  prompt.input_tokens = static_cast<int64_t>(prompt.ids.size());
  prompt.output_tokens = output_tokens;
  return prompt;
}

// Text that encodes to as many tokens as `ids`, if a few corrections can reach that.
std::string text_of(std::vector<int32_t> ids, const std::vector<int32_t>& plain, Random& random,
                    const text::Tokenizer& tokenizer) {
  const std::size_t wanted = ids.size();
  std::string text;
  for (int attempt = 0; attempt < 10; ++attempt) {
    text = tokenizer.decode(ids, true);
    ids = tokenizer.encode(text, false);
    if (ids.size() == wanted) break;
    while (ids.size() < wanted) ids.push_back(plain[draw(random, 0, static_cast<int64_t>(plain.size()) - 1)]);
    ids.resize(wanted);
  }
  return text;
}

std::vector<int32_t> plain_ids(const text::Tokenizer* tokenizer) {
  std::vector<int32_t> ids;
  const int32_t first = tokenizer ? 0 : kFirstPlainId,
                last = tokenizer ? tokenizer->vocab_size() - 1 : kLastPlainId;
  for (int32_t id = first; id <= last; ++id)
    if (!tokenizer || (tokenizer->token(id) && !tokenizer->is_special(id))) ids.push_back(id);
  if (ids.empty()) throw Error(Code::kUsage, "--tokenizer has no token that is not special");
  return ids;
}

std::vector<Prompt> random_prompts(const ServeOptions& options, const text::Tokenizer* tokenizer,
                                   Random& random) {
  const DatasetOptions& d = options.dataset;
  const std::vector<int32_t> plain = plain_ids(tokenizer);
  const auto any = [&] { return plain[draw(random, 0, static_cast<int64_t>(plain.size()) - 1)]; };
  const auto length = [&](int64_t middle) {
    const double n = static_cast<double>(middle), r = d.random_range_ratio;
    return std::max<int64_t>(1, draw(random, static_cast<int64_t>(std::floor(n * (1 - r))),
                                     static_cast<int64_t>(std::ceil(n * (1 + r)))));
  };
  std::vector<int32_t> prefix(static_cast<std::size_t>(d.random_prefix));
  std::generate(prefix.begin(), prefix.end(), any);
  std::vector<Prompt> prompts(static_cast<std::size_t>(options.prompts));
  for (Prompt& prompt : prompts) {
    prompt.ids = prefix;
    prompt.ids.resize(prefix.size() + static_cast<std::size_t>(length(d.random_input)));
    std::generate(prompt.ids.begin() + static_cast<std::ptrdiff_t>(prefix.size()), prompt.ids.end(), any);
    prompt.output_tokens = length(d.random_output);
    prompt.input_tokens = static_cast<int64_t>(prompt.ids.size());
    if (tokenizer)
      prompt.text = text_of(prompt.ids, plain, random, *tokenizer);
    else
      for (const int32_t id : prompt.ids)
        prompt.text += kWords[static_cast<std::size_t>(id) % std::size(kWords)];
  }
  return prompts;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw Error(Code::kNotFound, "cannot read " + escaped(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);)
    if (line.find_first_not_of(" \r\t") != std::string::npos) lines.push_back(line);
  if (lines.empty()) throw Error(Code::kUsage, escaped(path) + " has no lines");
  return lines;
}

// Some lines of a text that are always the same, then lines drawn from it.
std::vector<Prompt> sonnet_prompts(const ServeOptions& options, const text::Tokenizer& tokenizer,
                                   Random& random) {
  const DatasetOptions& d = options.dataset;
  const std::vector<std::string> lines = lines_of(d.path);
  int64_t all = 0;
  for (const std::string& line : lines)
    all += static_cast<int64_t>(tokenizer.encode(line + "\n", false).size());
  const std::string task = "Choose the lines that you like best from these lines:\n";
  const double average = static_cast<double>(all) / static_cast<double>(lines.size());
  const auto task_tokens = static_cast<double>(tokenizer.encode(task, true).size());
  const auto count = [&](int64_t tokens) {
    return std::max<int64_t>(0, std::llround((static_cast<double>(tokens) - task_tokens) / average));
  };
  std::string prefix = task;
  const int64_t shared = count(d.sonnet_prefix), total = count(d.sonnet_input);
  for (int64_t i = 0; i < shared; ++i) prefix += lines[static_cast<std::size_t>(i) % lines.size()] + "\n";
  std::vector<Prompt> prompts;
  for (int64_t p = 0; p < options.prompts; ++p) {
    std::string text = prefix;
    for (int64_t i = shared; i < total; ++i)
      text += lines[draw(random, 0, static_cast<int64_t>(lines.size()) - 1)] + "\n";
    prompts.push_back(text_prompt(text, d.sonnet_output, tokenizer));
  }
  return prompts;
}

// The first two turns of a conversation as text, if they are there.
std::optional<std::pair<std::string, std::string>> first_turns(const Json& entry) {
  if (!entry.is_object() || !entry.contains("conversations")) return std::nullopt;
  const Json& turns = entry["conversations"];
  if (!turns.is_array() || turns.size() < 2) return std::nullopt;
  for (const int i : {0, 1})
    if (!turns[i].is_object() || !turns[i].contains("value") || !turns[i]["value"].is_string())
      return std::nullopt;
  return std::pair<std::string, std::string>{turns[0]["value"], turns[1]["value"]};
}

std::vector<Prompt> sharegpt_prompts(const ServeOptions& options, const text::Tokenizer& tokenizer,
                                     Random& random) {
  const DatasetOptions& d = options.dataset;
  std::ifstream in(d.path);
  Json data = parse_json_or_discard(std::string(std::istreambuf_iterator<char>(in), {}));
  if (!data.is_array()) throw Error(Code::kUsage, escaped(d.path) + " is no JSON array of conversations");
  if (d.shuffle) std::shuffle(data.begin(), data.end(), random);
  std::vector<Prompt> prompts;
  for (const Json& entry : data) {
    if (static_cast<int64_t>(prompts.size()) == options.prompts) break;
    const auto turns = first_turns(entry);
    if (!turns) continue;
    const int64_t answer = d.sharegpt_output > 0
                               ? d.sharegpt_output
                               : static_cast<int64_t>(tokenizer.encode(turns->second, false).size());
    Prompt prompt = text_prompt(turns->first, answer, tokenizer);
    const bool fits = prompt.input_tokens >= kLeastTokens &&
                      answer >= (d.sharegpt_output > 0 ? 1 : kLeastTokens) &&
                      prompt.input_tokens <= kMostPrompt && prompt.input_tokens + answer <= kMostTotal;
    if (fits) prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// One JSON object a line: {"prompt": "...", "output_tokens": 10}.
std::vector<Prompt> custom_prompts(const ServeOptions& options, const text::Tokenizer* tokenizer,
                                   Random& random) {
  const DatasetOptions& d = options.dataset;
  std::vector<std::string> lines = lines_of(d.path);
  if (d.shuffle) std::shuffle(lines.begin(), lines.end(), random);
  std::vector<Prompt> prompts;
  for (const std::string& line : lines) {
    if (static_cast<int64_t>(prompts.size()) == options.prompts) break;
    const Json entry = parse_json_or_discard(line);
    if (!entry.is_object() || !entry.contains("prompt") || !entry["prompt"].is_string())
      throw Error(Code::kUsage, escaped(d.path) + " has a line without \"prompt\": " + escaped(line, 60));
    Prompt prompt;
    prompt.text = entry["prompt"];
    prompt.output_tokens = d.custom_output;
    if (entry.contains("output_tokens") && entry["output_tokens"].is_number_integer())
      prompt.output_tokens = std::max<int64_t>(1, entry["output_tokens"]);
    if (tokenizer) prompt = text_prompt(prompt.text, prompt.output_tokens, *tokenizer);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace

std::vector<Prompt> make_prompts(const ServeOptions& options, const text::Tokenizer* tokenizer) {
  const DatasetOptions& d = options.dataset;
  Random random(options.seed);
  if (d.name == "random") return random_prompts(options, tokenizer, random);
  if (d.path.empty()) throw Error(Code::kUsage, "--dataset-name " + d.name + " needs --dataset-path");
  if (!tokenizer && d.name != "custom")
    throw Error(Code::kUsage, "--dataset-name " + d.name + " needs --tokenizer, to count tokens");
  std::vector<Prompt> prompts = d.name == "sonnet"     ? sonnet_prompts(options, *tokenizer, random)
                                : d.name == "sharegpt" ? sharegpt_prompts(options, *tokenizer, random)
                                                       : custom_prompts(options, tokenizer, random);
  if (prompts.empty()) throw Error(Code::kUsage, escaped(d.path) + " has no prompt of a usable length");
  for (std::size_t i = 0; static_cast<int64_t>(prompts.size()) < options.prompts; ++i)
    prompts.push_back(prompts[i]);
  return prompts;
}

std::optional<text::Tokenizer> load_tokenizer(const ServeOptions& options) {
  if (options.tokenizer.empty()) return std::nullopt;
  const std::filesystem::path path = options.tokenizer;
  return text::Tokenizer::load(std::filesystem::is_directory(path) ? path / "tokenizer.json" : path);
}

}  // namespace ark::bench

#include "server/text/model_text.h"

#include <algorithm>

#include "base/error.h"
#include "base/files.h"
#include "server/json.h"
#include "server/text/chat_input.h"
#include "server/text/json_view.h"
#include "server/text/vocabulary.h"

namespace ark::text {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxConfig = 16 << 20;  // bytes of a configuration file
constexpr std::int64_t kMaxLength = std::int64_t{1} << 31;

// Where the files lie. Each may be missing.
struct Folder {
  std::optional<std::string> read(const char* name, std::size_t max_bytes = kMaxConfig) const {
    return read_beside(path, name, model, max_bytes);
  }
  const fs::path &path, &model;
};

// A file that may be missing: then the view is null.
class ConfigFile {
 public:
  ConfigFile(const Folder& folder, const char* name) : name_(name) {
    if (const auto text = folder.read(name)) json_ = parse_json(*text, name);
    if (!json_.is_null()) view().object();
  }
  JsonView view() const { return {json_, name_ + ":"}; }

 private:
  std::string name_;
  Json json_;
};

// "token" or {"content": "token", ...}
std::optional<std::string> token_text(const JsonView& json) {
  if (json.is_null()) return std::nullopt;
  return json.is_object() ? json.at("content").string() : json.string();
}

std::vector<std::int32_t> ids_of(const JsonView& json) {
  std::vector<std::int32_t> ids;
  if (json.is_null()) return ids;
  if (!json.is_array()) return {Vocabulary::checked_id(json)};
  for (std::size_t i = 0; i < json.size(); ++i) ids.push_back(Vocabulary::checked_id(json.at(i)));
  return ids;
}

void set_once(std::optional<std::int64_t>& target, const JsonView& json, std::int64_t low = 0) {
  if (!target && !json.is_null()) target = json.integer(low, kMaxLength);
}

void set_once(std::optional<std::int32_t>& target, const JsonView& json) {
  if (target || json.is_null() || (json.is_number() && json.number() == -1)) return;
  const std::vector<std::int32_t> ids = ids_of(json);
  if (!ids.empty()) target = ids[0];
}

struct TemplateSources {
  std::optional<std::string> usual, tools;
};

// Its own file, and for chats with tools the one named tool_use.jinja among others; or the string in
// tokenizer_config.json; or of a list there the one named "default" and, for chats with tools, "tool_use".
TemplateSources template_sources(const Folder& folder, const JsonView& config) {
  if (auto text = folder.read("chat_template.jinja"))
    return {std::move(text), folder.read("additional_chat_templates/tool_use.jinja")};
  const ConfigFile own(folder, "chat_template.json");
  JsonView source = own.view().at("chat_template");
  if (source.is_null()) source = config.at("chat_template");
  if (source.is_null()) return {};
  if (source.is_string()) return {source.string(), std::nullopt};
  source.array();
  TemplateSources found;
  std::optional<std::string> first;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const std::string& text = source.at(i).at("template").string();
    const std::string name = source.at(i).at("name").string_or("");
    if (name == "default" && !found.usual) found.usual = text;
    if (name == "tool_use" && !found.tools) found.tools = text;
    if (!first) first = text;
  }
  if (!found.usual) found.usual = first;
  return found;
}

void load_template(const Folder& folder, const JsonView& config, ModelText& text) {
  const TemplateSources sources = template_sources(folder, config);
  try {
    if (sources.usual) text.chat_template = ChatTemplate::parse(*sources.usual);
    if (sources.tools) text.tool_template = ChatTemplate::parse(*sources.tools);
  } catch (const Error& error) {
    text.chat_template_error = error.what();
  }
}

// Positions that the model was made for.
std::optional<std::int64_t> length_of(const JsonView& config, const JsonView& genai) {
  std::optional<std::int64_t> length;
  for (const char* name :
       {"max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"})
    for (const JsonView& source : {config, config.at("text_config")}) set_once(length, source.at(name), 1);
  set_once(length, genai.at("context_length"), 1);
  return length;
}

// The end tokens: what generation_config.json says, else config.json, else genai_config.json, else
// eos_token's id.
void read_ids(const JsonView& generation, const JsonView& config, const JsonView& genai, ModelText& text) {
  const JsonView text_config = config.at("text_config");  // of models of several media
  for (const JsonView& source : {generation, config, text_config, genai}) {
    if (text.eos_ids.empty()) text.eos_ids = ids_of(source.at("eos_token_id"));
    set_once(text.bos_id, source.at("bos_token_id"));
  }
  text.max_length = length_of(config, genai);
  if (!text.tokenizer) return;
  const auto id_of = [&](const char* name) {
    const auto token = text.tokens.find(name);
    return token == text.tokens.end() ? std::nullopt : text.tokenizer->id(token->second);
  };
  if (const auto id = id_of("eos_token"); id && text.eos_ids.empty()) text.eos_ids = {*id};
  // A chat model's turn ends with its eos_token even where the configuration names only the end of a
  // document.
  if (const auto id = id_of("eos_token"); id && text.chat_template) text.eos_ids.push_back(*id);
  if (!text.bos_id) text.bos_id = id_of("bos_token");
}

}  // namespace

ModelText load_model_text(const fs::path& directory, const fs::path& model) {
  const Folder folder{directory, model};
  const ConfigFile tokenizer_config(folder, "tokenizer_config.json"),
      tokens(folder, "special_tokens_map.json"), generation(folder, "generation_config.json"),
      config(folder, "config.json"), genai(folder, "genai_config.json");
  ModelText text;
  if (const auto file = folder.read("tokenizer.json", kMaxTokenizer))
    text.tokenizer.emplace(parse_json(*file, "tokenizer.json"));
  for (const char* name :
       {"bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token"})
    for (const ConfigFile* file : {&tokenizer_config, &tokens})
      if (auto token = token_text(file->view().at(name))) text.tokens.try_emplace(name, std::move(*token));
  text.add_bos = tokenizer_config.view().at("add_bos_token").boolean_or(false);
  load_template(folder, tokenizer_config.view(), text);
  read_ids(generation.view(), config.view(), genai.view().at("model"), text);
  if (text.chat_template)
    text.call_form =
        call_form_of(text.tool_template ? *text.tool_template : *text.chat_template, text.tokens);
  std::sort(text.eos_ids.begin(), text.eos_ids.end());
  text.eos_ids.erase(std::unique(text.eos_ids.begin(), text.eos_ids.end()), text.eos_ids.end());
  return text;
}

std::optional<std::int64_t> configured_length(const fs::path& directory, const fs::path& model) {
  const Folder folder{directory, model};
  return length_of(ConfigFile(folder, "config.json").view(),
                   ConfigFile(folder, "genai_config.json").view().at("model"));
}

std::vector<std::int32_t> ModelText::encode_prompt(std::string_view prompt) const {
  if (!tokenizer) throw Error(Code::kUnsupported, "prompt: the model has no tokenizer.json; send token ids");
  std::vector<std::int32_t> ids = tokenizer->encode(prompt, true);
  if (add_bos && bos_id && (ids.empty() || ids[0] != *bos_id)) ids.insert(ids.begin(), *bos_id);
  return ids;
}

const ChatTemplate& ModelText::template_for(const ChatInput& input) const {
  return tool_template && !input.tools.is_null() ? *tool_template : *chat_template;
}

}  // namespace ark::text

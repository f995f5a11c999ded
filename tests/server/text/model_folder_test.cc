// What lies beside a model is read only where the model lies, or where its own link leads; and it is a file.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "server/text/model_text.h"

namespace ark::text {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"tokenizer.json",     "tokenizer_config.json",  "special_tokens_map.json",
                                  "config.json",        "generation_config.json", "genai_config.json",
                                  "chat_template.json", "chat_template.jinja"};

class ModelFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "ark-folder-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    fs::create_directories(folder());
  }
  void TearDown() override { fs::remove_all(root_); }

  fs::path folder() const { return root_ / "snapshots" / "1"; }
  static void write(const fs::path& file, const std::string& text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void expect_refused(const std::string& part, const fs::path& model = {}) const {
    try {
      load_model_text(folder(), model);
      ADD_FAILURE() << "no error; expected: " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kBadModel) << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

  fs::path root_;
};

TEST_F(ModelFolder, ALinkOutOfItPrintedAnyFileOfTheMachine) {
  write(root_ / "secret", "{}");
  for (const char* name : kNames) {
    SCOPED_TRACE(name);
    for (const fs::path& target :
         {fs::path("/proc/self/environ"), root_ / "secret", fs::path("../../secret")}) {
      fs::create_symlink(target, folder() / name);
      expect_refused("is a link that leaves the directory of the model");
      write(folder() / "model.onnx", "");
      expect_refused("is a link that leaves the directory of the model", folder() / "model.onnx");
      fs::remove(folder() / name);
    }
  }
}

TEST_F(ModelFolder, LinksInsideItAndToWhereTheModelsOwnLinkLeadsAreFollowed) {
  write(folder() / "templates" / "a", "inside");
  fs::create_symlink("templates/a", folder() / "chat_template.jinja");
  EXPECT_TRUE(load_model_text(folder()).chat_template);
  write(root_ / "blobs" / "1", "onnx");
  write(root_ / "blobs" / "2", R"({"eos_token_id": 7})");
  fs::create_symlink("../../blobs/1", folder() / "model.onnx");
  fs::create_symlink("../../blobs/2", folder() / "config.json");
  EXPECT_EQ(load_model_text(folder(), folder() / "model.onnx").eos_ids, std::vector<std::int32_t>{7});
}

TEST_F(ModelFolder, NumbersThatPythonWritesByWordsAreNone) {
  write(folder() / "config.json",
        R"({"time_step_limit": [0.0, Infinity], "n_ctx": NaN, "low":-Infinity,"eos_token_id": 7})");
  write(folder() / "chat_template.json", R"({"x": NaN, "chat_template": "NaN \"Infinity\\"})");
  const ModelText text = load_model_text(folder());
  EXPECT_EQ(text.eos_ids, std::vector<std::int32_t>{7});
  EXPECT_FALSE(text.max_length);
  EXPECT_EQ(text.chat_template->source(), "NaN \"Infinity\\");
  for (const char* broken :
       {R"({"a": Infinit})", R"({"a": NaNs})", "{Infinity: 1}", R"({"a": +Infinity})", R"({"a": "NaN)"}) {
    write(folder() / "config.json", broken);
    expect_refused("config.json: not valid JSON");
  }
}

// As transformers saves several templates.
TEST_F(ModelFolder, AFurtherTemplateServesChatsWithTools) {
  write(folder() / "chat_template.jinja", "usual");
  EXPECT_FALSE(load_model_text(folder()).tool_template);
  write(folder() / "additional_chat_templates" / "tool_use.jinja", "tools");
  const ModelText text = load_model_text(folder());
  ASSERT_TRUE(text.chat_template && text.tool_template);
  EXPECT_EQ(text.chat_template->source(), "usual");
  EXPECT_EQ(text.tool_template->source(), "tools");
  fs::remove_all(folder() / "additional_chat_templates");
  write(root_ / "other" / "tool_use.jinja", "secret");
  fs::create_directory_symlink(root_ / "other", folder() / "additional_chat_templates");
  expect_refused("is a link that leaves the directory of the model");
}

TEST_F(ModelFolder, WhatIsNoFileIsNamedAndNotPassedOver) {
  for (const char* name : kNames) {
    SCOPED_TRACE(name);
    const fs::path path = folder() / name;
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    expect_refused("is a FIFO, not a regular file");
    fs::remove(path);
    fs::create_directory(path);
    expect_refused("is a folder, not a regular file");
    fs::remove(path);
    const int number = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    ASSERT_LT(path.string().size(), sizeof address.sun_path);
    path.string().copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(number, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    expect_refused("is a socket, not a regular file");
    ::close(number);
    fs::remove(path);
    fs::create_symlink("nowhere", path);
    EXPECT_THROW(load_model_text(folder()), Error);
    fs::remove(path);
  }
}

TEST_F(ModelFolder, AFileThatIsTooLargeIsRefusedBeforeItIsRead) {
  for (const char* name : kNames) {
    SCOPED_TRACE(name);
    write(folder() / name, "");
    fs::resize_file(folder() / name, std::uintmax_t{1} << 40);
    expect_refused("1099511627776 bytes, the limit for this file is");
    fs::remove(folder() / name);
  }
}

}  // namespace
}  // namespace ark::text

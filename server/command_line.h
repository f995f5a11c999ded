// What a program is told: options on its command line, each also as an environment variable (ark-serve --max-queue is
// ARK_SERVE_MAX_QUEUE). CLI11 stays in command_line.cc: its header takes longer to read than most of our files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace ark {

// Names are "--port"; "model" for what stands without one; "model,--model" for both. What an option is written to
// outlives the parsing; what it holds before is the default, which --help shows.
class CommandLine {
 public:
  CommandLine(const std::string& program, const std::string& about);

  void flag(const std::string& names, bool& into, const std::string& about);
  void text(const std::string& names, std::string& into, const std::string& about);
  void file(const std::string& names, std::filesystem::path& into, const std::string& about);
  // Repeated; several values in a row only once what stands without an option is there.
  void texts(const std::string& names, std::vector<std::string>& into, const std::string& about);
  // Of 4 or 8 bytes, whole or floating; never NaN.
  template <typename T>
  void number(const std::string& names, T& into, std::type_identity_t<T> low, std::type_identity_t<T> high,
              const std::string& about);
  // One of a few names.
  template <typename T>
  void choice(const std::string& names, T& into, const std::vector<std::pair<std::string, T>>& values,
              const std::string& about) {
    std::vector<std::string> known;
    std::string standard;
    for (const auto& [name, value] : values) {
      known.push_back(name);
      if (value == into) standard = name;
    }
    one_of(names, std::move(known), standard, about,
           [&into, values](std::size_t i) { into = values[i].second; });
  }
  // Read by `set`, which throws Error for what it does not take. `standard`: what --help shows as the default.
  using Setter = std::function<void(const std::string&)>;
  void read(const std::string& names, Setter set, const std::string& about, const std::string& standard = "");
  void read_each(const std::string& names, Setter set, const std::string& about);  // as texts()
  void require(const std::string& name);
  // --log-format text|json, which parse() obeys.
  void log_format();

  // A command with options of its own: `run` is called where it was given. One of them must be.
  CommandLine command(const std::string& name, const std::string& about, std::function<void()> run);
  void run_command() const;

  // False if there is nothing more to do: --help and --version were answered. Throws Error(kUsage).
  bool parse(int argc, char** argv);
  const std::string& program() const { return program_; }

 private:
  CommandLine(std::shared_ptr<CLI::App> app, std::string program)
      : app_(std::move(app)), program_(std::move(program)) {}
  void one_of(const std::string& names, std::vector<std::string> known, const std::string& standard,
              const std::string& about, std::function<void(std::size_t)> set);

  std::shared_ptr<CLI::App> app_;
  std::string program_;
  std::vector<std::pair<std::string, std::function<void()>>> commands_;
};

// Readings of a text for `set`. They throw Error(kUsage).
double number_of(const std::string& text, double low, double high);
// "name=value" or "name:value", by `between`.
std::pair<std::string, std::string> pair_of(const std::string& text, char between);
std::vector<std::string> words_of(const std::string& text);  // "a,b,c"
// The whole numbers from `low` on of "1,2,3"; what is none is called "'x' is no WHAT".
std::vector<int32_t> numbers_of(const std::string& text, int32_t low, const std::string& what);

}  // namespace ark

#include "server/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "server/suggestion.h"
#include "server/version.h"

namespace ark {
namespace {

std::string upper(std::string text) {
  for (char& c : text) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

void name_variables(CLI::App& app, const std::string& prefix) {
  for (CLI::Option* option : app.get_options()) {
    const auto& names = option->get_lnames();
    if (names.empty() || names[0] == "help" || names[0] == "version") continue;
    option->envname(upper(prefix + "_" + names[0]));
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    name_variables(*command, prefix + "_" + command->get_name());
}

// The options of the command that was given: of the innermost one.
const CLI::App& command_of(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  return commands.empty() ? app : command_of(*commands.back());
}

bool is_option(const std::string& argument) { return argument.size() > 1 && argument[0] == '-'; }

// What nobody takes, in order. A word beside an unknown option may be its value: where there is one, words are not
// blamed.
std::vector<std::string> refused_of(const CLI::App& app) {
  std::vector<std::string> refused = app.remaining(true);
  if (std::ranges::any_of(refused, is_option))
    std::erase_if(refused, [](const std::string& argument) { return !is_option(argument); });
  return refused;
}

std::string suggestion_for(const CLI::App& app) {
  const CLI::App& command = command_of(app);
  std::vector<std::string> ours;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) ours.push_back("--" + name);
  for (const CLI::App* next : command.get_subcommands([](const CLI::App*) { return true; }))
    ours.push_back(next->get_name());
  return suggestion(refused_of(app), ours);
}

bool is_list(const CLI::Option& option) { return option.get_expected_max() > 1; }

// Lists take one value each time, so that none swallows the words that stand without an option. Once these are there,
// before it or by their names, further words in a row are a list's, too: its name is put before each.
std::vector<std::string> with_lists_repeated(const CLI::App& app, std::vector<std::string> arguments) {
  const CLI::App* command = &app;
  const auto option_of = [&](const std::string& argument) {
    return command->get_option_no_throw(argument.substr(0, argument.find('=')));
  };
  const auto commands_named = [&](const std::string& name) {
    return command->get_subcommands([&](const CLI::App* next) { return next->get_name() == name; });
  };
  std::size_t missing = 0;
  const auto enter = [&](const CLI::App* entered) {
    command = entered;
    const auto places =
        command->get_options([](const CLI::Option* option) { return option->get_positional(); });
    missing = static_cast<std::size_t>(std::ranges::count_if(places, [&](const CLI::Option* place) {
      return std::ranges::none_of(
          arguments, [&](const std::string& a) { return is_option(a) && option_of(a) == place; });
    }));
  };
  enter(&app);
  std::vector<std::string> all;
  std::string list;  // whose value comes, or has come
  bool is_value = false;
  for (const std::string& argument : arguments) {
    if (is_option(argument) && !is_value) {
      const CLI::Option* option = option_of(argument);
      list = option && is_list(*option) ? argument.substr(0, argument.find('=')) : "";
      is_value = option && option->get_expected_min() > 0 && argument.find('=') == argument.npos;
    } else if (is_value) {
      is_value = false;
    } else if (const auto next = commands_named(argument); !next.empty() && list.empty()) {
      enter(next[0]);
    } else if (!list.empty() && missing == 0) {
      all.push_back(list);
    } else {
      list.clear();
      if (missing > 0) --missing;
    }
    all.push_back(argument);
  }
  std::ranges::reverse(all);  // as CLI11 wants them
  return all;
}

// What `set` throws, as CLI11 hands it on to the user.
template <typename F>
void checked(const std::string& names, const F& set) {
  try {
    set();
  } catch (const Error& e) {
    throw CLI::ValidationError(names, e.what());
  }
}

}  // namespace

CommandLine::CommandLine(const std::string& program, const std::string& about)
    : CommandLine(std::make_shared<CLI::App>(about, program), program) {}

void CommandLine::flag(const std::string& names, bool& into, const std::string& about) {
  app_->add_flag(names, into, about);
}

void CommandLine::text(const std::string& names, std::string& into, const std::string& about) {
  app_->add_option(names, into, about)->capture_default_str();
}

void CommandLine::file(const std::string& names, std::filesystem::path& into, const std::string& about) {
  app_->add_option_function<std::string>(
          names, [&into](const std::string& text) { into = text; }, about)
      ->type_name("FILE");
}

void CommandLine::texts(const std::string& names, std::vector<std::string>& into, const std::string& about) {
  app_->add_option(names, into, about)->allow_extra_args(false);
}

template <typename T>
void CommandLine::number(const std::string& names, T& into, std::type_identity_t<T> low,
                         std::type_identity_t<T> high, const std::string& about) {
  CLI::Option* option = app_->add_option(names, into, about)->check(CLI::Range(low, high));
  option->capture_default_str();
  if constexpr (std::is_floating_point_v<T>)  // no range excludes NaN
    option->check(CLI::Validator(
        [](std::string& text) {
          T value = 0;
          return CLI::detail::lexical_cast(text, value) && std::isnan(value) ? text + " is no number" : "";
        },
        ""));
}
template void CommandLine::number(const std::string&, int32_t&, int32_t, int32_t, const std::string&);
template void CommandLine::number(const std::string&, int64_t&, int64_t, int64_t, const std::string&);
template void CommandLine::number(const std::string&, unsigned long&, unsigned long, unsigned long,
                                  const std::string&);
template void CommandLine::number(const std::string&, unsigned long long&, unsigned long long,
                                  unsigned long long, const std::string&);
template void CommandLine::number(const std::string&, float&, float, float, const std::string&);
template void CommandLine::number(const std::string&, double&, double, double, const std::string&);

void CommandLine::one_of(const std::string& names, std::vector<std::string> known,
                         const std::string& standard, const std::string& about,
                         std::function<void(std::size_t)> set) {
  const auto read = [known, set = std::move(set)](const std::string& text) {
    set(static_cast<std::size_t>(std::ranges::find(known, text) - known.begin()));
  };
  app_->add_option_function<std::string>(names, read, about)
      ->check(CLI::IsMember(std::move(known)))
      ->default_str(standard);
}

void CommandLine::read(const std::string& names, Setter set, const std::string& about,
                       const std::string& standard) {
  app_->add_option_function<std::string>(
          names,
          [names, set = std::move(set)](const std::string& text) { checked(names, [&] { set(text); }); },
          about)
      ->default_str(standard);
}

void CommandLine::read_each(const std::string& names, Setter set, const std::string& about) {
  app_->add_option_function<std::vector<std::string>>(
          names,
          [names, set = std::move(set)](const std::vector<std::string>& all) {
            for (const std::string& text : all) checked(names, [&] { set(text); });
          },
          about)
      ->allow_extra_args(false);
}

void CommandLine::log_format() {
  one_of("--log-format", {"text", "json"}, "text", "of all lines on standard output and error",
         [](std::size_t) {});
}

void CommandLine::require(const std::string& name) { app_->get_option(name)->required(); }

CommandLine CommandLine::command(const std::string& name, const std::string& about,
                                 std::function<void()> run) {
  app_->require_subcommand(1);
  commands_.emplace_back(name, std::move(run));
  return {std::shared_ptr<CLI::App>(app_, app_->add_subcommand(name, about)), program_};
}

void CommandLine::run_command() const {
  for (const auto& [name, run] : commands_)
    if (app_->got_subcommand(name)) run();
}

bool CommandLine::parse(int argc, char** argv) {
  name_variables(*app_, program_);
  app_->set_version_flag("--version", std::string("ark ") + kVersion);
  // The line that refuses another option is of the asked form, too.
  const auto take_log_format = [&] {
    const CLI::Option* format = app_->get_option_no_throw("--log-format");
    set_log_format(format && format->count() > 0 && format->results().back() == "json");
  };
  try {
    app_->parse(with_lists_repeated(*app_, {argv + std::min(argc, 1), argv + argc}));
    take_log_format();
    return true;
  } catch (const CLI::ParseError& e) {
    take_log_format();
    if (e.get_exit_code() == 0) return app_->exit(e), false;  // --help, --version
    std::string what = e.what();
    if (dynamic_cast<const CLI::ExtrasError*>(&e)) {
      what = "not expected:";
      for (const std::string& argument : refused_of(*app_)) what += " " + escaped(argument, 60);
    }
    throw Error(Code::kUsage, what + suggestion_for(*app_) + " (see --help)");
  }
}

double number_of(const std::string& text, double low, double high) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != 0 || !(value >= low && value <= high)) {
    std::ostringstream why;
    why << "'" << escaped(text, 40) << "' is no number from " << low << " to " << high;
    throw Error(Code::kUsage, why.str());
  }
  return value;
}

std::pair<std::string, std::string> pair_of(const std::string& text, char between) {
  const std::size_t at = text.find(between);
  if (at == std::string::npos || at == 0)
    throw Error(Code::kUsage, "'" + escaped(text, 40) + "' is not NAME" + between + "VALUE");
  return {text.substr(0, at), text.substr(at + 1)};
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

std::vector<int32_t> numbers_of(const std::string& text, int32_t low, const std::string& what) {
  std::vector<int32_t> all;
  for (const std::string& word : words_of(text)) {
    int32_t number = low;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size() || number < low)
      throw Error(Code::kUsage, "'" + escaped(word, 40) + "' is no " + what);
    all.push_back(number);
  }
  if (all.empty()) throw Error(Code::kUsage, "'' is no " + what);
  return all;
}

}  // namespace ark

// Command-line options that take one of a few names.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace ark {

// `into` must outlive the parsing; it holds the value that `standard` names until then.
template <typename T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, T& into, std::map<std::string, T> values,
                        const std::string& standard, const std::string& description) {
  std::set<std::string> names;
  for (const auto& [value_name, value] : values) names.insert(value_name);
  return app
      .add_option_function<std::string>(
          name, [&into, values = std::move(values)](const std::string& text) { into = values.at(text); },
          description)
      ->check(CLI::IsMember(std::move(names)))
      ->default_str(standard);
}

}  // namespace ark

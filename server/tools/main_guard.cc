#include "server/tools/main_guard.h"

#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include "base/error.h"
#include "base/log_writer.h"
#include "server/tools/suggestion.h"
#include "server/version.h"

namespace ark {
namespace {

constexpr std::chrono::milliseconds kLastWords{500};  // for standard error to take what was said

std::string upper(std::string text) {
  for (char& c : text) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

void name_variables(CLI::App& app, const std::string& prefix) {
  for (CLI::Option* option : app.get_options()) {
    const auto& names = option->get_lnames();
    if (names.empty() || names[0] == "help" || names[0] == "version" || !option->get_envname().empty())
      continue;
    option->envname(upper(prefix + "_" + names[0]));
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    name_variables(*command, prefix + "_" + command->get_name());
}

int fail(const CLI::App& app, const std::string& why, int code) {
  std::string line = why;
  std::replace(line.begin(), line.end(), '\n', ' ');
  LogWriter::instance().put(app.get_name() + ": error: " + line, true);
  return code;
}

// Closed standard descriptors would be handed out to the next file or socket. Standard output becomes one
// that cannot be written, so that its loss is noticed.
void occupy_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) != fd) std::_Exit(71);
}

void flush_output() {
  if (std::fflush(stdout) == 0 || errno == EPIPE) return;
  throw Error(Code::kOs, std::string("cannot write standard output: ") + std::strerror(errno));
}

int run_guarded(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  name_variables(app, app.get_name());
  app.set_version_flag("--version", std::string("ark ") + kVersion);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    return fail(app, std::string(e.what()) + suggestion(app) + " (see --help)", 64);
  }
  try {
    const int code = body();
    flush_output();
    return code;
  } catch (const Error& e) {
    return fail(app, e.what(), e.exit_code());
  } catch (const std::bad_alloc&) {
    return fail(app, "out of memory", 69);
  } catch (const std::system_error& e) {  // of files, streams and threads
    return fail(app, escaped(e.what(), 400), 71);
  } catch (const std::exception& e) {
    return fail(app, std::string("internal: ") + e.what(), 70);
  }
}

}  // namespace

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() || errno == EPIPE) return;
  throw Error(Code::kOs, std::string("cannot write standard output: ") + std::strerror(errno));
}

int run_main(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  for (const int ignored : {SIGPIPE, SIGXFSZ}) std::signal(ignored, SIG_IGN);
  occupy_standard_descriptors();
  const int code = run_guarded(app, argc, argv, body);
  LogWriter::instance().flush(kLastWords);
  return code;
}

}  // namespace ark

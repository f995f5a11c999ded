#include "server/tools/main_guard.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include "base/error.h"
#include "base/log.h"

namespace ark {
namespace {

int fail(const CommandLine& command, const std::string& why, int code) {
  std::string line = command.program() + ": error: " + why;
  std::ranges::replace(line, '\n', ' ');
  if (is_json_log()) line = log_text(LogLevel::kError, line);
  std::fprintf(stderr, "%s\n", line.c_str());
  return code;
}

// Closed standard descriptors would be handed out to the next file or socket. Standard output becomes one
// that cannot be written, so that its loss is noticed.
void occupy_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) != fd) std::_Exit(71);
}

void flush() {
  if (std::fflush(stdout) == 0 || errno == EPIPE) return;
  throw Error(Code::kOs, std::string("cannot write standard output: ") + std::strerror(errno));
}

}  // namespace

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() || errno == EPIPE) return;
  throw Error(Code::kOs, std::string("cannot write standard output: ") + std::strerror(errno));
}

int run_main(CommandLine& line, int argc, char** argv, const std::function<int()>& body) {
  std::signal(SIGPIPE, SIG_IGN);
  occupy_standard_descriptors();
  try {
    const int code = line.parse(argc, argv) ? body() : 0;
    flush();
    return code;
  } catch (const Error& e) {
    return fail(line, e.what(), e.exit_code());
  } catch (const std::bad_alloc&) {
    return fail(line, "out of memory", 69);
  } catch (const std::system_error& e) {  // of files, streams and threads
    return fail(line, escaped(e.what(), 400), 71);
  } catch (const std::exception& e) {
    return fail(line, std::string("internal: ") + e.what(), 70);
  }
}

}  // namespace ark

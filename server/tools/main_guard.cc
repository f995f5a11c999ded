#include "server/tools/main_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <new>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/log_writer.h"

namespace ark {
namespace {

constexpr std::chrono::milliseconds kLastWords{500};  // for standard error to take what was said

int fail(const CommandLine& command, const std::string& why, int code) {
  std::string line = command.program() + ": error: " + why;
  std::ranges::replace(line, '\n', ' ');
  if (is_json_log()) line = log_text(LogLevel::kError, line);
  LogWriter::instance().put(std::move(line), true);
  return code;
}

// Closed standard descriptors would be handed out to the next file or socket. Standard output becomes one
// that cannot be written, so that its loss is noticed.
void occupy_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) != fd) std::_Exit(71);
}

// Where a destructor finds no memory (nlohmann::json's take some), nothing can go on: the contract's line and code say
// why, without memory. Other ends of this kind are bugs, and leave the core that the handler before this leaves.
// Set before main(): its options are made before run_main() is called.
[[noreturn]] void name_lack_of_memory();
const std::terminate_handler terminate_before = std::set_terminate(name_lack_of_memory);

void name_lack_of_memory() {
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    const std::string_view line = is_json_log() ? R"({"level":"error","message":"ark: error: out of memory"})"
                                                  "\n"
                                                : "ark: error: out of memory\n";
    if (::write(STDERR_FILENO, line.data(), line.size()) >= 0) std::_Exit(69);
    std::_Exit(71);
  } catch (...) {
  }
  terminate_before();
  std::abort();
}

void flush_output() {
  if (std::fflush(stdout) == 0 || errno == EPIPE) return;
  throw Error(Code::kOs, std::string("cannot write standard output: ") + std::strerror(errno));
}

// Kernels keep blocks on the stack, and files are nested: `ulimit -s`, which is the stack of the main thread and the
// default of others, may leave too little. Then all threads get as much as usual, and the body one of its own.
int with_stack(const std::function<int()>& body) {
  constexpr rlim_t kUsual = 8 << 20;
  rlimit own{};
  if (::getrlimit(RLIMIT_STACK, &own) != 0 || own.rlim_cur >= kUsual) return body();
  pthread_attr_t usual;
  if (::pthread_attr_init(&usual) != 0) return body();
  const bool is_set =
      ::pthread_attr_setstacksize(&usual, kUsual) == 0 && ::pthread_setattr_default_np(&usual) == 0;
  ::pthread_attr_destroy(&usual);
  if (!is_set) return body();
  std::packaged_task<int()> task(body);
  std::future<int> code = task.get_future();
  std::thread(std::move(task)).join();
  return code.get();
}

int run_guarded(CommandLine& line, int argc, char** argv, const std::function<int()>& body) {
  try {
    const int code = line.parse(argc, argv) ? with_stack(body) : 0;
    flush_output();
    return code;
  } catch (const std::exception&) {
    const Error error = current_error();
    return fail(line, error.what(), error.exit_code());
  }
}

}  // namespace

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() || errno == EPIPE) return;
  throw Error(Code::kOs, std::string("cannot write standard output: ") + std::strerror(errno));
}

int run_main(CommandLine& line, int argc, char** argv, const std::function<int()>& body) {
  for (const int ignored : {SIGPIPE, SIGXFSZ}) std::signal(ignored, SIG_IGN);
  occupy_standard_descriptors();
  const int code = run_guarded(line, argc, argv, body);
  LogWriter::instance().flush(kLastWords);
  return code;
}

}  // namespace ark

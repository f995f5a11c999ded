// The one error channel of ark: an exception that carries a code and a one-line message.
//
// Load path, tools and server throw `Error`; composition roots (main functions, HTTP handlers, the
// engine's control thread) catch it. Step loops and data paths never throw: they report faults as
// values (see dma/fault.h). A message names the node, file or option, the limit and what to do.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace ark {

// Each code maps to one exit code (sysexits) and one HTTP status.
enum class Code {
  kUsage,            // bad option or combination              exit 64, HTTP 400
  kBadModel,         // malformed, hostile or unsupported file exit 65, HTTP 500: what shows only as it runs
  kUnsupported,      // well-formed, but beyond what ark does  exit 65, HTTP 400
  kNotFound,         // missing file, model or route           exit 66, HTTP 404
  kInvalidArgument,  // a request's field is wrong             exit 64, HTTP 400
  kExhausted,        // queue, pages or memory are used up     exit 69, HTTP 429
  kUnavailable,      // device, rank or server is gone         exit 69, HTTP 503
  kInternal,         // our bug                                exit 70, HTTP 500
  kOs,               // the operating system refused           exit 71, HTTP 500
};

class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Code code() const { return code_; }
  int exit_code() const;

 private:
  Code code_;
};

// What is being handled, as an Error: lack of memory is kExhausted, what the system refused (std::system_error) kOs,
// anything else unforeseen kInternal. In a handler only.
Error current_error();

// For our own invariants: throws kInternal with the source location in front of the message.
#define ARK_CHECK(condition, message)                                     \
  do {                                                                    \
    if (!(condition)) ::ark::check_failed(__FILE__, __LINE__, (message)); \
  } while (0)
[[noreturn]] void check_failed(const char* file, int line, const std::string& message);

// Escapes control characters, quotes and invalid UTF-8 (as \n, \", \x1b ...) and cuts at `limit` bytes,
// so that names read from outside can be printed. Every name of a model file goes through here.
std::string escaped(std::string_view text, std::size_t limit = 200);

}  // namespace ark

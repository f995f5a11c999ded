// What every executable's main() shares: options, environment, errors, exit codes, standard output.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace ark {

// Parses the options of `app` (whose name is the program's: "ark-inspect"), then runs `body`.
// - Each long option without one gets an environment variable: ark-serve --max-queue is ARK_SERVE_MAX_QUEUE.
// - --version is added. Logs go to standard error. SIGPIPE and SIGXFSZ are ignored.
// - An Error becomes one line "ark-inspect: error: ..." on standard error and its exit code (see
// base/error.h);
//   wrong options end with 64, lack of memory with 69, what the system refused
//   (std::system_error) with 71, anything else unforeseen with 70.
// - If standard output could not be written, 71; a reader that went away (EPIPE) is no error.
int run_main(CLI::App& app, int argc, char** argv, const std::function<int()>& body);

// Writes to standard output. Throws Error(kOs) if it cannot be written, unless the reader went away.
void print(std::string_view text);

}  // namespace ark

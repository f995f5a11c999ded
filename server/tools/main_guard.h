// What every executable's main() shares: errors, exit codes, standard output.
#pragma once

#include <functional>
#include <string_view>

#include "server/command_line.h"

namespace ark {

// Parses the options of `line`, then runs `body`. SIGPIPE and SIGXFSZ are ignored.
// - An Error becomes one line "ark-inspect: error: ..." on standard error (with --log-format json an object) and its
//   exit code (see base/error.h); wrong options end with 64, lack of memory with 69, what the system refused
//   (std::system_error) with 71, anything else unforeseen with 70.
// - If standard output could not be written, 71; a reader that went away (EPIPE) is no error.
int run_main(CommandLine& line, int argc, char** argv, const std::function<int()>& body);

// Writes to standard output. Throws Error(kOs) if it cannot be written, unless the reader went away.
void print(std::string_view text);

}  // namespace ark

// What somebody may have meant by an option or a command that there is not.
#pragma once

#include <string>
#include <vector>

namespace ark {

// For arguments of which one is no option or command of `ours`: "; by -np, did you mean --max-num-seqs?", or "" where
// nothing is near. Knows how vLLM, llama.cpp and others call what ark has by another name; else the fewest changed
// letters win.
std::string suggestion(const std::vector<std::string>& refused, const std::vector<std::string>& ours);

}  // namespace ark

// What somebody may have meant by an option that there is not.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace ark {

// After `app` refused its arguments: "; by -np, did you mean --max-num-seqs?", or "" where nothing is near. Knows how
// vLLM, llama.cpp and others call what ark has by another name; else the fewest changed letters win.
std::string suggestion(const CLI::App& app);

}  // namespace ark

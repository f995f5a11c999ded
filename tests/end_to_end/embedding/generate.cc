// A program of somebody else's that generates text with an installed ark: generate MODEL PROMPT TOKENS.
#include <cstdlib>
#include <exception>
#include <iostream>

#include "server/config.h"
#include "server/load/load.h"
#include "server/load/stage_log.h"
#include "server/session/batch.h"
#include "server/session/encode.h"

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  try {
    ark::ServeOptions options;
    options.model = argv[1];
    options.tp = 1;
    options.threads = 1;
    ark::StageLog quiet([](const std::string&) {});
    ark::session::Model model(ark::load_model(options, quiet), {});
    ark::schedule::GenerateRequest request;
    request.prompt = ark::session::encode(model, argv[2], true);
    request.max_tokens = std::atoi(argv[3]);
    request.sampling.temperature = 0;
    ark::session::Batch batch(model);
    batch.submit(request, {});
    batch.run([] { return false; }, [](std::size_t, ark::session::Piece piece) { std::cout << piece.text; });
    std::cout << "\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 70;
  }
}

// ark-inspect MODEL: stops after any stage of the load path and prints it.
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "server/json.h"
#include "server/tools/inspect_stages.h"
#include "server/tools/main_guard.h"

namespace ark {
namespace {

struct Options {
  std::string stage = "passes";
  ServeOptions load;
  bool check = false, json = false, dot = false;
};

const InspectStage& stage_named(const std::string& name) {
  std::string known;
  for (const InspectStage& s : inspect_stages()) {
    if (name == s.name) return s;
    known += (known.empty() ? "" : ", ") + std::string(s.name);
  }
  throw Error(Code::kUsage, "--stage '" + escaped(name) + "' is none of " + known);
}

int inspect(const Options& options) {
  const InspectStage& stage = stage_named(options.stage);
  if (options.check + options.json + options.dot > 1)
    throw Error(Code::kUsage, "--check, --json and --dot exclude each other");
  if (options.dot && !stage.dot)
    throw Error(Code::kUsage, "--dot: stage " + options.stage + " has no picture; take graph or a later one");
  Inspection inspection(options.load);
  if (options.check)
    print("ok: " + summary(inspection) + "\n");
  else if (options.dot)
    print(stage.dot(inspection));
  else if (options.json)
    print(to_text(stage.json(inspection), 1) + "\n");
  else
    print(stage.text(inspection));
  return 0;
}

}  // namespace
}  // namespace ark

int main(int argc, char** argv) {
  CLI::App app("Prints an ONNX model as it is after a stage of ark's load path", "ark-inspect");
  ark::Options options;
  app.add_option("model", options.load.model, "an .onnx file, or a directory that holds one")->required();
  app.add_option("--stage", options.stage,
                 "parse, graph, passes, recognise, plan, program, weights, placement or cuda");
  app.add_option("--tp", options.load.tp, "ranks that the model is split over; 0: 1")
      ->check(CLI::Range(0, ark::kMaxRanks));
  app.add_option("--plan", options.load.plan,
                 "an edited text of stage program: checked, and inspected instead of the compiler's");
  app.add_option("--max-num-seqs", options.load.max_num_seqs, "as of ark-serve")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens", options.load.max_num_batched_tokens, "as of ark-serve")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_flag("--check", options.check, "print one line if the model can be run, else say why not");
  app.add_flag("--json", options.json, "print JSON");
  app.add_flag("--dot", options.dot, "print a picture as Graphviz text");
  return ark::run_main(app, argc, argv, [&] { return ark::inspect(options); });
}

// ark-inspect MODEL: what a model is, in ten lines or as a page; or any stage of the load path.
#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "engine/cuda/cost/rates.h"
#include "server/json.h"
#include "server/tools/inspect_page.h"
#include "server/tools/inspect_stages.h"
#include "server/tools/main_guard.h"
#include "server/tools/model_card.h"

namespace ark {
namespace {

struct Options {
  std::string stage;  // empty: the model card, or recognise for a picture
  std::string html;   // file for the page, or empty
  ServeOptions load;
  CostOptions cost;
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

std::string printed(const Options& options, Inspection& inspection) {
  if (options.check) return "ok: " + summary(inspection) + "\n";
  if (options.dot) {
    const InspectStage& stage = stage_named(options.stage.empty() ? "recognise" : options.stage);
    if (!stage.picture)
      throw Error(Code::kUsage, "--dot: stage " + options.stage +
                                    " has no picture; take graph, passes, recognise, "
                                    "plan or program");
    return dot(stage.picture(inspection));
  }
  if (options.stage.empty()) {
    const Json card = model_card(inspection);
    return options.json ? to_text(card, 1) + "\n" : card_text(card);
  }
  const InspectStage& stage = stage_named(options.stage);
  return options.json ? to_text(stage.json(inspection), 1) + "\n" : stage.text(inspection);
}

// A step takes the whole batch, or prompts that fit it.
void check_cost(Options& options) {
  cuda::cost::rates_of(options.cost.arch);
  const CostOptions& cost = options.cost;
  options.load.max_sequences = std::max(options.load.max_sequences, cost.batch);
  const int64_t tokens = int64_t{cost.batch} * std::max(1, cost.prompt);
  if (tokens > 1 << 16)
    throw Error(Code::kUsage,
                "--batch times --prompt: " + std::to_string(tokens) + " tokens; a step takes at most 65536");
  options.load.max_batched_tokens =
      std::max(options.load.max_batched_tokens, cost.prompt > 0 ? static_cast<int32_t>(tokens) : 0);
  if (!cost.trace.empty() && !std::ofstream(cost.trace))
    throw Error(Code::kOs, "--trace: cannot write " + escaped(cost.trace));
}

int inspect(Options options) {
  const bool for_gpu = options.stage == "cuda" || options.stage == "cost";
  if (for_gpu) options.load.device.activations = Activations::kF32;  // all that a GPU is given
  if (!options.stage.empty()) stage_named(options.stage);
  if (options.check + options.json + options.dot + !options.html.empty() > 1)
    throw Error(Code::kUsage, "--check, --json, --dot and --html exclude each other");
  if (options.stage == "cost") check_cost(options);
  Inspection inspection(options.load, for_gpu, options.cost);
  if (options.html.empty()) {
    print(printed(options, inspection));
    return 0;
  }
  const std::string page = html_page(inspection);
  std::ofstream out(options.html, std::ios::binary);
  if (!(out << page).flush()) throw Error(Code::kOs, "--html: cannot write " + escaped(options.html));
  return 0;
}

}  // namespace
}  // namespace ark

int main(int argc, char** argv) {
  ark::CommandLine line(
      "ark-inspect",
      "Tells what an ONNX model is and what it takes, or prints it after a stage of ark's load path");
  ark::Options options;
  ark::add_model_options(line, options.load);
  line.require("model");
  line.text("--stage", options.stage,
            "parse, graph, passes, recognise, plan, program, weights, placement, cuda or cost; "
            "without: a summary of the model");
  line.number("--tp", options.load.tp, 0, ark::kMaxRanks, "ranks that the model is split over; 0: 1");
  line.file("--plan", options.load.plan,
            "an edited text of stage program: checked, and inspected instead of the compiler's");
  ark::add_arithmetic_options(line, options.load.device);
  ark::add_numerics_option(line, options.load.device);
  line.number("--max-num-seqs", options.load.max_sequences, 1, 4096, "as of ark-serve");
  line.number("--max-num-batched-tokens", options.load.max_batched_tokens, 0, 1 << 20, "as of ark-serve");
  line.text("--arch", options.cost.arch, "of stage cost: sm_80, sm_89, sm_90a, sm_100 or sm_120");
  line.number("--batch", options.cost.batch, 1, 4096, "of stage cost: sequences that decode at once");
  line.number("--context", options.cost.context, 0, 1 << 20, "of stage cost: tokens cached of each");
  line.number("--prompt", options.cost.prompt, 0, 1 << 16,
              "of stage cost: tokens of each that the step reads; 0: it decodes");
  line.number("--groups", options.cost.groups, 0, 64,
              "of stage cost: tiles that share an output; 0: as the loop chooses");
  line.number("--gpus", options.cost.gpus, 0, ark::kMaxRanks,
              "of stage cost: GPUs that the ranks of --tp share; 0: one each");
  line.text("--trace", options.cost.trace, "of stage cost: file for its timeline (ui.perfetto.dev)");
  line.flag("--check", options.check, "print one line if the model can be run, else say why not");
  line.flag("--json", options.json, "print JSON");
  line.flag("--dot", options.dot, "print a picture as Graphviz text");
  line.text("--html", options.html, "file for a page with all of it, for a browser");
  return ark::run_main(line, argc, argv, [&] { return ark::inspect(options); });
}

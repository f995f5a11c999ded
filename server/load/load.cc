#include "server/load/load.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>

#include "base/energy.h"
#include "base/error.h"
#include "base/utf8.h"
#include "dma/bootstrap.h"
#include "dma/launch.h"
#include "dma/mpi/meet.h"
#include "engine/cuda/energy.h"
#include "server/load/draft.h"
#include "server/load/model_cache.h"
#include "server/load/model_file.h"
#include "server/load/neighbours.h"
#include "server/load/ranks.h"
#include "server/supervise/keep_rank.h"
#include "server/supervise/model_process.h"
#include "server/supervise/supervised_runner.h"
#include "server/text/model_text.h"

namespace ark {
namespace {

// Set in the environment of one.
constexpr const char* kModelProcess = "ARK_MODEL_PROCESS";
constexpr const char* kMemberProcess = "ARK_MEMBER_PROCESS";

int32_t config_length(std::optional<int64_t> length) {
  return static_cast<int32_t>(std::min<int64_t>(length.value_or(0), INT32_MAX));
}

LoadOptions load_options(const ServeOptions& options, const ModelFile& file, int32_t config_length) {
  LoadOptions load = options;
  load.model = file.onnx;
  load.config_length = config_length;
  return load;
}

// Ranks that a launcher has started are processes whatever is asked for: only who says so has them supervised.
bool is_supervised(const ServeOptions& options) {
  return options.wants_supervisor() &&
         (options.supervise || launched_group(options.cluster_key_file) == nullptr);
}

// Starts this program again as what `role` says.
std::function<pid_t(int descriptor)> start_as(const char* role, const ServeOptions& options) {
  std::vector<std::string> variables = {std::string(role) + "=1"};
  if (const dma::Environment* group = launched_group(options.cluster_key_file)) {
    const std::vector<std::string> more = dma::hand_on(*group);
    variables.insert(variables.end(), more.begin(), more.end());
  }
  return
      [variables](int descriptor) { return dma::start_again(dma::own_arguments(), variables, descriptor); };
}

std::string text_found(const text::ModelText& text) {
  if (!text.tokenizer) return "no tokenizer.json beside the model: token ids only";
  std::string line = std::to_string(text.tokenizer->vocab_size()) + " tokens, ";
  line += text.chat_template                 ? "chat template"
          : text.chat_template_error.empty() ? "no chat template"
                                             : "chat template refused: " + text.chat_template_error;
  return line + ", " + std::to_string(text.eos_ids.size()) + " end tokens";
}

// The text beside a model, loaded beside it: neither needs the other. What is wrong with it ends the load of the model
// with the stage that goes on then.
class TextLoad {
 public:
  TextLoad(const ModelFile& file, StageLog& log) : log_(log) {
    loading_ = std::async(std::launch::async, [file] {
      const auto start = std::chrono::steady_clock::now();
      auto text = std::make_shared<text::ModelText>(text::load_model_text(file.text_folder, file.onnx));
      return Loaded{std::move(text), std::chrono::steady_clock::now() - start};
    });
    log_.set_watch([this] {
      if (!text_ && loading_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) take();
    });
  }
  ~TextLoad() { log_.set_watch({}); }
  TextLoad(const TextLoad&) = delete;
  TextLoad& operator=(const TextLoad&) = delete;

  // Waits for it.
  std::shared_ptr<text::ModelText> get() {
    if (!text_) take();
    return text_;
  }

 private:
  struct Loaded {
    std::shared_ptr<text::ModelText> text;
    std::chrono::duration<double> time;
  };

  void take() {
    const Loaded loaded = loading_.get();
    text_ = loaded.text;
    log_.beside("text", loaded.time.count(), text_found(*text_));
  }

  StageLog& log_;
  std::shared_ptr<text::ModelText> text_;  // null: not taken yet
  std::future<Loaded> loading_;
};

// What requests may call the model; the first one stands in answers.
std::vector<std::string> names_of(const ServeOptions& options, const ModelFile& file) {
  std::vector<std::string> names = options.served_model_names;
  std::erase(names, "");
  return names.empty() ? std::vector{file.name} : names;
}

// Names stand in answers, metrics and what people look at on terminals.
void check_name(const std::string& name) {
  for (std::string_view rest = name; !rest.empty(); rest.remove_prefix(utf8_length(rest)))
    if (utf8_length(rest) == 0 || control_at(rest))
      throw Error(Code::kUsage, "the name " + escaped(name) +
                                    " holds what is no text or controls terminals; give another "
                                    "--served-model-name");
}

// Throws Error(kUnavailable) where there is nothing to read.
schedule::EconomyOptions economy_of(const ServeOptions& options) {
  if (options.energy_weight <= 0) return {};
  const auto meter = std::make_shared<EnergyMeter>();
  std::shared_ptr<cuda::GpuEnergy> gpus;
  if (options.device.device != Device::kCpu) gpus = std::make_shared<cuda::GpuEnergy>();
  if (options.device.device == Device::kCuda && !gpus->reason().empty())
    throw Error(Code::kUnavailable, "--energy-weight: the GPUs' energy is not readable: " + gpus->reason() +
                                        "; leave the option out");
  if (gpus && !gpus->reason().empty()) gpus = nullptr;
  if (!gpus && !meter->reason().empty())
    throw Error(Code::kUnavailable, "--energy-weight: the processors' energy is not readable: " +
                                        meter->reason() + "; leave the option out");
  return {options.energy_weight, [meter, gpus]() -> std::optional<double> {
            // Of GPUs alone where that of processors is not readable.
            const auto own = meter->joules(), of_gpus = gpus ? gpus->joules() : std::nullopt;
            if (gpus ? !of_gpus : !own) return std::nullopt;
            return own.value_or(0) + of_gpus.value_or(0);
          }};
}

}  // namespace

void check_ids(const text::ModelText& text, int64_t vocabulary) {
  if (!text.tokenizer || text.tokenizer->lowest_id() < vocabulary) return;
  throw Error(Code::kBadModel, "tokenizer.json: its lowest token id is " +
                                   std::to_string(text.tokenizer->lowest_id()) + ", the model has only " +
                                   std::to_string(vocabulary) + " tokens: it is another model's");
}

LoadOptions load_options(const ServeOptions& options) {
  const ModelFile file = find_model(options.model, options.variant);
  return load_options(options, file, config_length(text::configured_length(file.text_folder, file.onnx)));
}

schedule::SchedulerOptions scheduling(const ServeOptions& options) {
  return {options.max_sequences,    options.max_batched_tokens,
          options.max_queue,        options.max_restarts,
          !options.no_prefix_cache, options.slo_itl / 1000,
          options.shortest_first,   options.speculate ? schedule::kMostDrafts : 0,
          options.slo_ttft / 1000,  economy_of(options)};
}

ServedModel load_model(const ServeOptions& options, StageLog& log) {
  if (!options.draft_model.empty() && !options.speculate)
    throw Error(Code::kUsage, "--draft-model: nothing is drafted with --speculate off");
  const ModelFile file = find_model(options.model, options.variant);
  for (const std::string& name : names_of(options, file)) check_name(name);
  const int32_t length = config_length(text::configured_length(file.text_folder, file.onnx));
  TextLoad loading(file, log);
  check_neighbours(options);
  ServedModel model;
  model.fingerprint = fingerprint_of(file);
  model.page_traffic = std::make_shared<schedule::PageTraffic>();
  ARK_CHECK(!is_model_process(), "a model's process starts another");
  if (is_supervised(options)) {
    model.runner = std::make_shared<supervise::SupervisedRunner>(
        start_as(kModelProcess, options), length, [&log](std::string_view stage) { log.enter(stage); });
  } else {
    LoadOptions load = load_options(options, file, length);
    load.wants_identity = options.shares_pages();
    LoadedRunner loaded = load_runner(load, log);
    model.runner = std::move(loaded.runner);
    find_neighbours(options, loaded.identity, model);
  }
  const std::shared_ptr<text::ModelText> text = loading.get();
  check_ids(*text, model.runner->limits().vocabulary);
  if (!options.draft_model.empty())
    model.draft_runner =
        load_draft_runner(options.draft_model, options.draft_weights, options, model.runner->limits(), log);
  model.aliases = names_of(options, file);
  model.name = model.aliases[0];
  std::erase(model.aliases, model.name);
  model.end_ids = text->eos_ids;
  model.text = text;
  return model;
}

bool is_rank_process(const ServeOptions& options) {
  const dma::Environment* group = launched_group(options.cluster_key_file);
  return group != nullptr && group->rank > 0;
}

int run_rank(const ServeOptions& options) {
  const bool is_member = std::getenv(kMemberProcess) != nullptr;
  if (is_supervised(options) && !is_member)
    return supervise::keep_rank(launched_group(options.cluster_key_file)->rank,
                                start_as(kMemberProcess, options), kLaunchTime);
  return run_rank_process(*launched_group(options.cluster_key_file),
                          find_model(options.model, options.variant).onnx,
                          options.device.device == Device::kCuda, disk_cache_of(options),
                          is_member ? supervise::tell_met : std::function<void()>());
}

bool is_model_process() { return std::getenv(kModelProcess) != nullptr; }

int run_model_process(const ServeOptions& options, const std::function<void(const std::string&)>& say) {
  dma::end_with_launcher();
  ::unsetenv(kModelProcess);  // its ranks are none
  bool is_first = true;
  StageLog log([&](const std::string& line) {
    if (is_first) say(line);
  });
  const auto load = [&](const supervise::ModelTerms& terms) {
    is_first = terms.pages == 0;
    LoadOptions load = load_options(options, find_model(options.model, options.variant), terms.config_length);
    load.pages = terms.pages;
    load.machine_ranks = terms.machine_ranks;
    load.is_supervised = true;
    LoadedRunner loaded = load_runner(load, log);
    return supervise::OwnModel{std::move(loaded.runner), std::move(loaded.identity), loaded.machine_ranks};
  };
  return supervise::serve_model(load, [&log] { return log.current(); });
}

}  // namespace ark

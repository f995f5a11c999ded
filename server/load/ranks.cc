#include "server/load/ranks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/ir/quantized.h"
#include "base/sha256.h"
#include "dma/blob.h"
#include "dma/launch.h"
#include "engine/cuda/driver.h"
#include "engine/plan_file.h"
#include "importer/decoder.h"
#include "importer/import.h"
#include "server/load/device.h"

namespace ark {
namespace {

constexpr std::chrono::seconds kMeetTime{9};   // for a process to start; from then on it gives signs of life
constexpr std::chrono::seconds kJoinTime{60};  // for each part of the meeting
constexpr int64_t kSampleBytes = 4096;

// A runner of several processes with the processes.
struct ProcessModel {
  std::unique_ptr<dma::RankProcesses> processes;
  std::unique_ptr<RaggedRunner> runner;  // ends first
};

// Beginning, middle and end of the payload: another training run, or another adapter merged, changes a matrix
// everywhere. To read all of it would double the time of a load.
void add_samples(Sha256& hash, const Constant& constant) {
  std::string type(name_of(constant.dtype));
  for (const int64_t extent : constant.dims) type += " " + std::to_string(extent);
  hash.add_field(type);
  if (const Quantized* q = constant.quantized.get()) {
    for (const ConstantPtr& part : {q->codes, q->scales, q->zeros, q->offsets})
      if (part) add_samples(hash, *part);
    return;
  }
  const int64_t bytes = constant.file ? constant.bytes : constant.inline_data.bytes();
  const int64_t sample = std::min(bytes, kSampleBytes);
  std::string buffer(static_cast<size_t>(sample), '\0');
  for (const int64_t offset : {int64_t{0}, (bytes - sample) / 2, bytes - sample}) {
    if (constant.file)
      constant.file->read(constant.offset + offset, sample, buffer.data());
    else if (sample > 0)
      buffer.assign(reinterpret_cast<const char*>(constant.inline_data.data.get()) + offset, buffer.size());
    hash.add_field(buffer);
  }
}

Compiled compile_by(const LaunchTerms& terms, const std::filesystem::path& model) {
  ImportOptions how;
  how.settle_controls = true;
  const Graph graph = import_model(model, how);
  const auto recognised = recognise_decoder(graph, terms.table_length);
  if (const auto* decoder = std::get_if<DecoderModel>(&recognised)) return compile_model(*decoder, terms);
  throw Error(Code::kInternal, "it does not recognise the model that rank 0 did");
}

void run_rank(const dma::Environment& environment, const std::filesystem::path& model, bool needs_gpu) {
  std::shared_ptr<cuda::Gpu> gpu;
  const auto open_own_gpu = [&] {
    if (!gpu) gpu = cuda::open_gpu(gpu_of_rank(environment.rank, cuda::count_gpus()));
  };
  if (needs_gpu) open_own_gpu();
  auto bootstrap = dma::join_environment(environment, dma::Deadline::after(kMeetTime));
  const LaunchTerms terms = terms_of(bootstrap->all_gather({}, dma::Deadline::after(kJoinTime)).at(0));
  Compiled compiled;
  Fingerprint own;
  try {
    if (terms.on_gpu) open_own_gpu();
    compiled = compile_by(terms, model);
    own = fingerprint_of(compiled);
  } catch (const Error& error) {
    try {
      agree_on_model(*bootstrap, {}, error.what(), dma::Deadline::after(kJoinTime));
    } catch (const Error&) {  // the same, as the others are told it
    }
    throw;
  }
  agree_on_model(*bootstrap, own, "", dma::Deadline::after(kJoinTime));
  serve_rank(std::move(compiled), ragged_options(terms, terms.on_gpu ? gpu : nullptr), std::move(bootstrap));
}

}  // namespace

Fingerprint fingerprint_of(const Compiled& compiled) {
  return {sha256_hex(plan_text(compiled.programs, compiled.bindings)), samples_of(compiled.constants)};
}

std::string samples_of(const std::vector<ConstantPtr>& constants) {
  Sha256 weights;
  for (const ConstantPtr& constant : constants)
    if (constant) add_samples(weights, *constant);
  return weights.hex();
}

void agree_on_model(dma::Bootstrap& bootstrap, const Fingerprint& own, const std::string& error,
                    dma::Deadline deadline) {
  const std::string blob = dma::BlobWriter().text(error).text(own.programs).text(own.weights).take();
  const std::vector<std::string> blobs = bootstrap.all_gather(blob, deadline);
  Fingerprint first;
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    const std::string name = "rank " + std::to_string(rank);
    dma::BlobReader reader(blobs[rank], name + ": its fingerprint");
    const std::string why(reader.text());
    const Fingerprint theirs{std::string(reader.text()), std::string(reader.text())};
    reader.end();
    if (!why.empty()) throw Error(Code::kUnavailable, name + " cannot load the model: " + escaped(why, 500));
    if (rank == 0) first = theirs;
    if (theirs == first) continue;
    const char* what = theirs.programs == first.programs ? "weights" : "a graph";
    throw Error(Code::kUnavailable, name + " has loaded " + what +
                                        " other than rank 0: the model's files have " +
                                        "changed meanwhile, or differ between the ranks; start again");
  }
}

std::shared_ptr<RaggedRunner> start_ranks(Compiled compiled, const LaunchTerms& terms,
                                          std::shared_ptr<cuda::Gpu> gpu, dma::WatchOptions watch) {
  auto holder = std::make_shared<ProcessModel>();
  holder->processes = std::make_unique<dma::RankProcesses>(terms.ranks, dma::own_arguments());
  auto bootstrap =
      dma::join_environment(holder->processes->environment(), dma::Deadline::after(kMeetTime), watch);
  bootstrap->all_gather(to_blob(terms), dma::Deadline::after(kJoinTime));
  agree_on_model(*bootstrap, fingerprint_of(compiled), "", dma::Deadline::after(kJoinTime));
  holder->runner =
      make_ragged_runner(std::move(compiled), ragged_options(terms, std::move(gpu)), std::move(bootstrap));
  RaggedRunner* runner = holder->runner.get();
  return {std::move(holder), runner};
}

int run_rank_process(const std::filesystem::path& model, bool needs_gpu) {
  const dma::Environment environment = dma::Environment::from_process();
  const std::string rank = "rank " + std::to_string(environment.rank);
  try {
    run_rank(environment, model, needs_gpu);
  } catch (const Error& error) {
    const std::string what = error.what();
    const bool is_named =
        what.starts_with(rank) && what.substr(0, what.find_first_of(" ,:", rank.size())) == rank;
    throw Error(error.code(), is_named ? what : rank + ": " + what);
  }
  return 0;
}

}  // namespace ark

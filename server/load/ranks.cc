#include "server/load/ranks.h"

#include <algorithm>
#include <csignal>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/ir/quantized.h"
#include "base/log.h"
#include "base/sha256.h"
#include "dma/blob.h"
#include "dma/launch.h"
#include "dma/transports.h"
#include "engine/cuda/driver.h"
#include "engine/plan_file.h"
#include "importer/decoder.h"
#include "importer/import.h"
#include "server/load/compiled_model.h"
#include "server/load/device.h"
#include "server/load/model_cache.h"

namespace ark {
namespace {

constexpr std::chrono::seconds kMeetTime{9};  // for a process to start; from then on it gives signs of life
// For each part of the meeting, loading included: who dies or stops meanwhile is noticed by that.
constexpr std::chrono::minutes kJoinTime{60};
constexpr int64_t kSampleBytes = 4096;

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

CompiledModel compile_by(const LaunchTerms& terms, const std::filesystem::path& model) {
  CompiledModel made;
  ImportOptions how;
  how.settle_controls = true;
  how.files = &made.files;
  const Graph graph = import_model(model, how);
  const auto recognised = recognise_decoder(graph, terms.table_length);
  const auto* decoder = std::get_if<DecoderModel>(&recognised);
  if (!decoder) throw Error(Code::kInternal, "it does not recognise the model that rank 0 did");
  made.compiled = compile_model(*decoder, terms);
  made.fingerprint = fingerprint_of(made.compiled);
  return made;
}

// What rank 0 tells the others before all else: its terms, or why there will be none.
std::string terms_blob(const std::string& error, const std::string& terms) {
  return dma::BlobWriter().text(error).text(terms).take();
}

LaunchTerms take_terms(dma::Bootstrap& bootstrap) {
  const std::string blob = bootstrap.all_gather({}, dma::Deadline::after(kJoinTime)).at(0);
  dma::BlobReader reader(blob, "rank 0: its terms");
  const std::string error(reader.text());
  if (!error.empty()) throw Error(Code::kUnavailable, "rank 0 cannot load the model: " + escaped(error, 500));
  const LaunchTerms terms = terms_of(reader.text());
  reader.end();
  return terms;
}

void run_rank(const dma::Environment& environment, const std::filesystem::path& model, bool needs_gpu,
              const std::shared_ptr<const DiskCache>& disk, const std::function<void()>& on_met) {
  const bool is_ours = dma::end_with_launcher() && !on_met;  // rank 0 has started it
  std::shared_ptr<cuda::Gpu> gpu;
  const auto open_own_gpu = [&] {
    if (!gpu) gpu = cuda::open_gpu(gpu_of_rank(environment.rank, cuda::count_gpus()), disk);
  };
  if (needs_gpu) open_own_gpu();
  auto bootstrap = dma::join_environment(environment, dma::Deadline::after(is_ours ? kMeetTime : kLaunchTime),
                                         on_met ? kSupervisedWatch : dma::WatchOptions{});
  const std::vector<Member> members = gather_members(*bootstrap, dma::Deadline::after(kJoinTime));
  const RanksHere here = ranks_here(members, environment.rank);
  if (on_met) on_met();
  if (!is_ours) {
    std::signal(SIGTERM, SIG_IGN);  // from here on it ends with rank 0, which drains
    log_line(LogLevel::kInfo, "rank " + std::to_string(environment.rank) + " of " +
                                  std::to_string(members.size()) +
                                  " has met: " + placement_text(sites_of(members, environment.size)));
  }
  const LaunchTerms terms = take_terms(*bootstrap);
  const ModelCache cache(disk, model, terms);
  std::unique_ptr<CacheWriter> writer;  // or null
  CompiledModel own;
  try {
    if (terms.on_gpu) open_own_gpu();
    std::optional<CompiledModel> kept = cache.find();
    const int threads = here.threads(terms.threads, terms.ranks),
              node = here.node(environment.rank, terms.ranks, terms.threads);
    if (kept && cache.read_weights(*kept, environment.rank, threads, node)) {
      own = *std::move(kept);
    } else {
      own = compile_by(terms, model);
      if (cache.keeps(own)) writer = std::make_unique<CacheWriter>(cache, own, false, false);
    }
  } catch (const Error& error) {
    try {
      agree_on_model(*bootstrap, {}, error.what(), dma::Deadline::after(kJoinTime));
    } catch (const Error&) {  // the same, as the others are told it
    }
    throw;
  }
  own.fingerprint.source = source_of(model, own.files);
  agree_on_model(*bootstrap, own.fingerprint, "", dma::Deadline::after(kJoinTime));
  RaggedOptions options = ragged_options(terms, terms.on_gpu ? gpu : nullptr);
  options.here = here;
  if (writer)
    options.on_packed = [&, take = writer->hook()](int rank, const WeightStore& weights) {
      take(rank, weights);
      writer->start();
    };
  serve_rank(std::move(own.compiled), options, std::move(bootstrap));
}

std::string to_blob(const std::string& error, const Fingerprint& own) {
  dma::BlobWriter blob;
  for (const std::string* text :
       {&error, &own.programs, &own.weights, &own.source.place, &own.source.files, &own.source.about})
    blob.text(*text);
  return blob.take();
}

// In what two ranks differ, or "".
std::string difference(const Fingerprint& a, const Fingerprint& b) {
  if (a.programs != b.programs) return "a graph other than";
  if (a.weights != b.weights) return "weights other than";
  // The samples of weights show not every change.
  return a.source.place == b.source.place && a.source.files != b.source.files ? "another file than" : "";
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

ModelSource source_of(const std::filesystem::path& model, const std::vector<onnx::SourceFile>& files) {
  const std::string path = std::filesystem::absolute(model).lexically_normal().string();
  std::error_code ignored;
  const std::string mounts = std::filesystem::read_symlink("/proc/self/ns/mnt", ignored).string();
  ModelSource source{dma::Place::here().machine + " " + mounts + " " + path, "", ""};
  int64_t bytes = 0;
  for (const auto& [location, stamp] : files) {
    bytes += stamp.bytes;
    source.files += location + " " + std::to_string(stamp.inode) + " " + std::to_string(stamp.bytes) + " " +
                    std::to_string(stamp.modified) + "\n";
  }
  source.about = path + " (" + std::to_string(bytes) + " bytes" +
                 (files.size() > 1 ? " in " + std::to_string(files.size()) + " files)" : ")");
  return source;
}

void agree_on_model(dma::Bootstrap& bootstrap, const Fingerprint& own, const std::string& error,
                    dma::Deadline deadline) {
  const std::vector<std::string> blobs = bootstrap.all_gather(to_blob(error, own), deadline);
  Fingerprint first;
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    const std::string name = "rank " + std::to_string(rank);
    dma::BlobReader reader(blobs[rank], name + ": its fingerprint");
    const std::string why(reader.text());
    Fingerprint theirs;
    for (std::string* text : {&theirs.programs, &theirs.weights, &theirs.source.place, &theirs.source.files,
                              &theirs.source.about})
      *text = reader.text();
    reader.end();
    if (!why.empty()) throw Error(Code::kUnavailable, name + " cannot load the model: " + escaped(why, 500));
    if (rank == 0) first = theirs;
    const std::string what = difference(theirs, first);
    if (what.empty()) continue;
    throw Error(Code::kUnavailable, name + " has loaded " + what +
                                        " rank 0: " + escaped(theirs.source.about, 500) + " and " +
                                        escaped(first.source.about, 500) +
                                        " have changed meanwhile, or differ between the ranks; start again");
  }
}

const dma::Environment* launched_group(const std::filesystem::path& key_file) {
  if (!dma::Environment::is_set()) return nullptr;
  static const dma::Environment group = dma::Environment::from_process(key_file);
  return group.size > 1 ? &group : nullptr;
}

RankGroup::RankGroup(const dma::Environment& environment, dma::WatchOptions watch,
                     std::chrono::seconds patience)
    : bootstrap_(dma::join_environment(environment, dma::Deadline::after(patience), watch)),
      members_(gather_members(*bootstrap_, dma::Deadline::after(kJoinTime))) {}

RankGroup::RankGroup(int ranks, dma::WatchOptions watch)
    : processes_(std::make_unique<dma::RankProcesses>(ranks, dma::own_arguments())),
      bootstrap_(dma::join_environment(processes_->environment(), dma::Deadline::after(kMeetTime), watch)),
      members_(gather_members(*bootstrap_, dma::Deadline::after(kJoinTime))) {}

void RankGroup::refuse(const std::string& why) {
  if (!bootstrap_) return;
  try {
    bootstrap_->all_gather(terms_blob(why, ""), dma::Deadline::after(kMeetTime));
    bootstrap_->leave();
  } catch (const Error&) {  // they have gone themselves
  }
}

std::shared_ptr<RaggedRunner> RankGroup::run(Compiled compiled, const Fingerprint& fingerprint,
                                             const LaunchTerms& terms, std::shared_ptr<cuda::Gpu> gpu,
                                             PackedHook on_packed) {
  struct Held {
    std::unique_ptr<dma::RankProcesses> processes;
    std::unique_ptr<RaggedRunner> runner;  // ends first
  };
  auto held = std::make_shared<Held>();
  held->processes = std::move(processes_);
  std::unique_ptr<dma::Bootstrap> bootstrap = std::move(bootstrap_);
  bootstrap->all_gather(terms_blob("", to_blob(terms)), dma::Deadline::after(kJoinTime));
  agree_on_model(*bootstrap, fingerprint, "", dma::Deadline::after(kJoinTime));
  RaggedOptions options = ragged_options(terms, std::move(gpu));
  options.here = ranks_here(members_, 0);
  options.on_packed = std::move(on_packed);
  held->runner = make_ragged_runner(std::move(compiled), options, std::move(bootstrap));
  RaggedRunner* runner = held->runner.get();
  return {std::move(held), runner};
}

int run_rank_process(const dma::Environment& environment, const std::filesystem::path& model, bool needs_gpu,
                     const std::shared_ptr<const DiskCache>& cache, const std::function<void()>& on_met) {
  const std::string rank = "rank " + std::to_string(environment.rank);
  try {
    run_rank(environment, model, needs_gpu, cache, on_met);
  } catch (const Error& error) {
    const std::string what = error.what();
    const bool is_named =
        what.starts_with(rank) && what.substr(0, what.find_first_of(" ,:", rank.size())) == rank;
    throw Error(error.code(), is_named ? what : rank + ": " + what);
  }
  return 0;
}

}  // namespace ark

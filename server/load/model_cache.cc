#include "server/load/model_cache.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <span>
#include <system_error>
#include <utility>

#include "base/build_id.h"
#include "base/sha256.h"
#include "dma/blob.h"
#include "engine/plan_file.h"
#include "engine/run/isa.h"
#include "engine/run/weight_store.h"
#include "server/load/load_runner.h"

namespace ark {
namespace {

namespace fs = std::filesystem;

// Nanoseconds: a file that was written to twice within one tick of its file system's clock has one stamp for both.
constexpr int64_t kTick = 2'000'000'000;

// What does not bear on what compile_model makes is set to one value.
std::string compiled_by(LaunchTerms terms) {
  terms.threads = 1;
  terms.limits.max_length = terms.limits.pages = terms.limits.vocabulary = terms.limits.embedded = 0;
  terms.lockstep = terms.on_gpu = terms.one_step_a_launch = terms.as_graph = false;
  terms.numerics = cuda::Numerics::kExact;
  terms.trace_events = 0;
  return to_blob(terms);
}

std::string payload_of(const CompiledModel& model) {
  dma::BlobWriter blob;
  blob.number(static_cast<int32_t>(model.files.size()));
  for (const onnx::SourceFile& file : model.files) {
    blob.text(file.location).number(file.stamp.inode).number(file.stamp.bytes);
    blob.number(file.stamp.modified).number(file.stamp.changed);
  }
  blob.number(model.facts.max_positions).number(model.facts.vocabulary).number(model.facts.embedded);
  blob.text(model.recognised).text(model.fingerprint.weights);
  blob.text(model.compiled.storage);
  blob.number(static_cast<int32_t>(model.compiled.plan.summary.size()));
  for (const std::string& text : model.compiled.plan.summary) blob.text(text);
  blob.text(plan_text(model.compiled.programs, model.compiled.bindings));
  blob.number(static_cast<int32_t>(model.compiled.kv_heads.size()));
  for (const std::vector<Range>& ranks : model.compiled.kv_heads)
    for (const Range& heads : ranks) blob.number(heads.begin).number(heads.end);
  return blob.take();
}

std::vector<onnx::SourceFile> files_in(dma::BlobReader& blob) {
  std::vector<onnx::SourceFile> files(blob.number<uint32_t>());
  for (onnx::SourceFile& file : files) {
    file.location = blob.text();
    file.stamp.inode = blob.number<uint64_t>();
    file.stamp.bytes = blob.number<int64_t>();
    file.stamp.modified = blob.number<int64_t>();
    file.stamp.changed = blob.number<int64_t>();
  }
  return files;
}

// What stands behind the files.
void read_rest(dma::BlobReader& blob, CompiledModel& model) {
  Compiled& compiled = model.compiled;
  model.facts.max_positions = blob.number<int64_t>();
  model.facts.vocabulary = blob.number<int32_t>();
  model.facts.embedded = blob.number<int32_t>();
  model.recognised = blob.text();
  model.fingerprint.weights = blob.text();
  compiled.storage = blob.text();
  compiled.plan.summary.resize(blob.number<uint32_t>());
  for (std::string& text : compiled.plan.summary) text = blob.text();
  const std::string_view plan = blob.text();
  model.fingerprint.programs = sha256_hex(plan);
  PlanPrograms programs = read_plan(plan);
  compiled.programs = std::move(programs.programs);
  compiled.bindings = std::move(programs.bindings);
  compiled.kv_heads.resize(blob.number<uint32_t>());
  for (std::vector<Range>& ranks : compiled.kv_heads) {
    ranks.resize(compiled.programs.size());
    for (Range& heads : ranks) heads = {blob.number<int64_t>(), blob.number<int64_t>()};
  }
  blob.end();
}

bool is_settled(const std::vector<onnx::SourceFile>& files) {
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  return std::all_of(files.begin(), files.end(), [&](const onnx::SourceFile& file) {
    return std::max(file.stamp.modified, file.stamp.changed) < now - kTick;
  });
}

}  // namespace

std::shared_ptr<const DiskCache> disk_cache_of(const LoadOptions& options) {
  if (options.no_cache) return std::make_shared<DiskCache>(fs::path(), 0);
  if (options.cache_size < 0) return nullptr;
  return std::make_shared<DiskCache>(
      options.cache_dir.empty() ? DiskCache::default_folder() : options.cache_dir, options.cache_size);
}

ModelCache::ModelCache(std::shared_ptr<const DiskCache> disk, const fs::path& model, const LaunchTerms& terms)
    : disk_(std::move(disk)), model_(fs::absolute(model).lexically_normal()) {
  const std::string build = build_id();
  if (!disk_ || !disk_->is_on() || build.empty()) return;
  Sha256 key;
  for (const std::string& part : {build, std::string(kIsaNames[static_cast<std::size_t>(best_isa())]),
                                  model_.string(), compiled_by(terms)})
    key.add_field(part);
  key_ = key.hex();
}

bool ModelCache::has_same_files(const std::vector<onnx::SourceFile>& files) const {
  return !files.empty() && std::all_of(files.begin(), files.end(), [&](const onnx::SourceFile& file) {
    return onnx::stamp_now(model_, file.location) == file.stamp;
  });
}

std::string ModelCache::weights_entry(const std::vector<onnx::SourceFile>& files, int rank) const {
  Sha256 key;
  key.add_field(key_);
  for (const onnx::SourceFile& file : files) {
    key.add_field(file.location);
    for (const int64_t number :
         {static_cast<int64_t>(file.stamp.inode), file.stamp.bytes, file.stamp.modified, file.stamp.changed})
      key.add_field(std::to_string(number));
  }
  return key.hex() + ".rank" + std::to_string(rank);
}

std::optional<CompiledModel> ModelCache::find() const {
  if (!is_on()) return std::nullopt;
  const std::optional<std::string> payload = disk_->read(model_entry());
  if (!payload) return std::nullopt;
  try {
    dma::BlobReader blob(*payload, "a kept model");
    CompiledModel model;
    model.files = files_in(blob);
    if (!has_same_files(model.files)) return std::nullopt;
    read_rest(blob, model);
    return model;
  } catch (const std::exception&) {  // of no use, and soon replaced
    return std::nullopt;
  }
}

bool ModelCache::read_weights(CompiledModel& model, int rank, int threads, int node) const {
  Compiled& compiled = model.compiled;
  compiled.packed.resize(compiled.programs.size());
  const auto r = static_cast<std::size_t>(rank);
  compiled.packed[r] = WeightStore::filled(
      compiled.programs.at(r),
      [&](std::span<std::byte> arena) {
        return disk_->read(weights_entry(model.files, rank), arena, threads);
      },
      node);
  return compiled.packed[r] != nullptr;
}

CacheWriter::CacheWriter(ModelCache cache, const CompiledModel& model, bool keeps_model, bool finishes)
    : cache_(std::move(cache)), finishes_(finishes), files_(model.files) {
  if (keeps_model) model_ = payload_of(model);
  for (std::size_t rank = 0; rank < model.compiled.programs.size(); ++rank)
    rank_entries_.push_back(cache_.weights_entry(files_, static_cast<int>(rank)));
}

CacheWriter::~CacheWriter() {
  if (!finishes_) stops_ = true;
  if (thread_.joinable()) thread_.join();
}

PackedHook CacheWriter::hook() {
  return [this](int rank, const WeightStore& weights) {
    ranks_.push_back({rank_entries_.at(static_cast<std::size_t>(rank)), weights.memory()});
  };
}

void CacheWriter::start() {
  try {
    thread_ = std::thread([this] {
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);
      write();
      ranks_.clear();  // the arenas go with their runner
    });
  } catch (const std::system_error&) {  // no thread to be had: nothing is kept
    ranks_.clear();
  }
}

void CacheWriter::write() const try {
  // Only what was read from files that are still the same, and would not be if they were written to meanwhile.
  if (!cache_.has_same_files(files_) || !is_settled(files_)) return;
  const DiskCache& disk = *cache_.disk_;
  for (const Rank& rank : ranks_) {
    const std::span<const std::byte> bytes{rank.arena.region.base, rank.arena.region.bytes};
    if (disk.size_of(rank.entry) == std::ssize(bytes)) continue;
    if (!disk.write(rank.entry, bytes, &stops_)) return;
  }
  if (!model_.empty()) disk.write(cache_.model_entry(), std::as_bytes(std::span(model_)), &stops_);
} catch (const std::exception&) {  // no memory: nothing is kept
}

}  // namespace ark

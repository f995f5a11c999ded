// A model that was kept is the model that was compiled and packed: programs, facts and every byte of its weights.
#include "server/load/model_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "engine/plan_file.h"
#include "engine/run/weight_store.h"
#include "importer/decoder.h"
#include "importer/import.h"
#include "server/load/load_runner.h"
#include "tests/fixtures.h"
#include "tests/scratch_folder.h"

namespace ark {
namespace {

namespace fs = std::filesystem;

CompiledModel import_and_compile(const fs::path& file, const LaunchTerms& terms) {
  CompiledModel model;
  ImportOptions how;
  how.settle_controls = true;
  how.files = &model.files;
  const Graph graph = import_model(file, how);
  const auto recognised = recognise_decoder(graph, terms.table_length);
  const auto& decoder = std::get<DecoderModel>(recognised);
  model.facts = facts_of(decoder);
  model.recognised = "layers";
  model.compiled = compile_model(decoder, terms);
  model.fingerprint = fingerprint_of(model.compiled);
  return model;
}

LaunchTerms terms_with(int32_t ranks, WeightPolicy weights = WeightPolicy::kExact) {
  LaunchTerms terms;
  terms.ranks = ranks;
  terms.weights = weights;
  terms.limits.max_tokens = 64;
  terms.limits.max_slots = 4;
  terms.limits.max_rows = 8;
  terms.limits.page_size = 16;
  return terms;
}

std::vector<std::shared_ptr<WeightStore>> packed(const Compiled& compiled) {
  std::vector<std::shared_ptr<WeightStore>> stores;
  for (const Program& program : compiled.programs)
    stores.push_back(std::make_shared<WeightStore>(program, compiled.constants, 2));
  return stores;
}

// Keeps it, and waits until that is done.
void keep(const ModelCache& cache, const CompiledModel& model,
          const std::vector<std::shared_ptr<WeightStore>>& stores) {
  CacheWriter writer(cache, model, true, true);
  const PackedHook take = writer.hook();
  for (std::size_t rank = 0; rank < stores.size(); ++rank) take(static_cast<int>(rank), *stores[rank]);
  writer.start();
}

class ModelCacheOf : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    file_ = test::fixtures() / GetParam() / "model.onnx";
    if (!fs::exists(file_)) GTEST_SKIP() << "no " << file_;
  }
  fs::path file_;
  test::ScratchFolder folder_;
  std::shared_ptr<const DiskCache> disk_ = std::make_shared<DiskCache>(folder_.path() / "cache", 1 << 30);
};

TEST_P(ModelCacheOf, GivesBackProgramsFactsAndWeights) {
  const std::pair<int32_t, WeightPolicy> all[] = {{1, WeightPolicy::kExact},
                                                  {2, WeightPolicy::kExact},
                                                  {4, WeightPolicy::kExact},
                                                  {1, WeightPolicy::kInt4},
                                                  {2, WeightPolicy::kInt4}};
  for (const auto& [ranks, policy] : all) {
    const LaunchTerms terms = terms_with(ranks, policy);
    const ModelCache cache(disk_, file_, terms);
    EXPECT_FALSE(cache.find());
    const CompiledModel model = import_and_compile(file_, terms);
    const auto stores = packed(model.compiled);
    keep(cache, model, stores);
    // What does not bear on the programs is not in the key: rank 0 asks before it knows the model.
    LaunchTerms later = terms;
    later.threads = 7;
    later.limits.vocabulary = model.facts.vocabulary;
    later.limits.max_length = 99;
    later.limits.pages = 5;
    auto kept = ModelCache(disk_, file_, later).find();
    ASSERT_TRUE(kept);
    EXPECT_EQ(plan_text(kept->compiled.programs, kept->compiled.bindings),
              plan_text(model.compiled.programs, model.compiled.bindings));
    EXPECT_EQ(kept->compiled.kv_heads, model.compiled.kv_heads);
    EXPECT_EQ(kept->compiled.storage, model.compiled.storage);
    EXPECT_EQ(kept->compiled.plan.summary, model.compiled.plan.summary);
    EXPECT_EQ(kept->fingerprint.programs, model.fingerprint.programs);
    EXPECT_EQ(kept->fingerprint.weights, model.fingerprint.weights);
    EXPECT_EQ(kept->recognised, model.recognised);
    EXPECT_EQ(kept->facts.vocabulary, model.facts.vocabulary);
    EXPECT_EQ(kept->facts.embedded, model.facts.embedded);
    EXPECT_EQ(kept->facts.max_positions, model.facts.max_positions);
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(cache.read_weights(*kept, rank, 2, -1)) << rank;
      const auto own = stores[static_cast<std::size_t>(rank)]->arena();
      const auto read = kept->compiled.packed[static_cast<std::size_t>(rank)]->arena();
      ASSERT_EQ(own.size(), read.size());
      EXPECT_EQ(std::memcmp(own.data(), read.data(), own.size()), 0) << rank;
    }
  }
}

TEST_P(ModelCacheOf, TermsAreInTheKey) {
  std::vector<LaunchTerms> all(10, terms_with(1));
  all[1].ranks = 2;
  all[2].table_length = 77;
  all[3].limits.max_tokens = 65;
  all[4].limits.max_rows = 9;
  all[5].limits.max_slots = 5;
  all[6].weights = WeightPolicy::kF32;
  all[7].activations = Activations::kF32;
  all[8].plan = "program";
  all[9].bf16 = all[0].bf16 == Bf16Unit::kTiles ? Bf16Unit::kNone : Bf16Unit::kTiles;
  std::set<std::string> keys;
  for (const LaunchTerms& terms : all) keys.insert(ModelCache(disk_, file_, terms).model_entry());
  keys.insert(ModelCache(disk_, file_.parent_path() / "other.onnx", all[0]).model_entry());
  EXPECT_EQ(keys.size(), all.size() + 1);
  EXPECT_EQ(ModelCache(disk_, file_.parent_path() / "." / "x" / ".." / "model.onnx", all[0]).model_entry(),
            ModelCache(disk_, file_, all[0]).model_entry());
}

TEST_P(ModelCacheOf, AnotherFileOfTheSamePathIsAnotherModel) {
  const fs::path copy = folder_.path() / "model.onnx";
  fs::copy_file(file_, copy);
  const LaunchTerms terms = terms_with(1);
  const ModelCache cache(disk_, copy, terms);
  CompiledModel model = import_and_compile(copy, terms);
  const auto stores = packed(model.compiled);
  keep(cache, model, stores);
  EXPECT_FALSE(cache.find()) << "a file that was written to this very moment may be so once more";
  const timespec past[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, copy.c_str(), past, 0), 0);
  keep(cache, model, stores);
  EXPECT_FALSE(cache.find()) << "it is not the file that was read";
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ModelCacheOf,
                         testing::Values("llama-optimum", "llama-int4", "gpt2-optimum", "mistral-sliding"),
                         [](const auto& fixture) {
                           std::string name = fixture.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace ark

// What rank 0 tells the others, and how ranks notice that they have loaded different models.
#include "server/load/terms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "base/error.h"
#include "server/load/load_runner.h"
#include "server/load/ranks.h"

namespace ark {
namespace {

using ::testing::HasSubstr;

TEST(Lengths, AConfigurationAloneAsksForTablesOfNoMoreThan131072Positions) {
  LoadOptions options;
  options.config_length = INT32_MAX;
  EXPECT_EQ(table_length(options), 131072);
  EXPECT_EQ(sequence_length(options, 0), 131072);
  EXPECT_EQ(sequence_length(options, 1 << 18), 131072);  // as the file's own tables
  options.max_length = 1 << 20;
  EXPECT_EQ(table_length(options), 1 << 20);
  EXPECT_EQ(sequence_length(options, 0), 1 << 20);
  options = {};
  options.config_length = 4096;
  EXPECT_EQ(table_length(options), 4096);
  EXPECT_EQ(sequence_length(options, 1 << 18), 4096);
}

TEST(LaunchTerms, TravelWhole) {
  LaunchTerms terms;
  terms.ranks = 3;
  terms.threads = 7;
  terms.table_length = 4096;
  terms.limits = {512, 64, 33, 1000, 16, 77, 50257, 2};
  terms.lockstep = true;
  terms.on_gpu = true;
  terms.numerics = cuda::Numerics::kFast;
  terms.trace_events = 5;
  terms.processors = 66;
  terms.groups = 8;
  terms.plan = std::string("rank 0\0of 3", 11);
  const std::string blob = to_blob(terms);
  const LaunchTerms read = terms_of(blob);
  EXPECT_EQ(to_blob(read), blob);
  EXPECT_EQ(read.limits.pages, 77);
  EXPECT_EQ(read.limits.vocabulary, 50257);
  EXPECT_TRUE(read.lockstep && read.on_gpu);
  EXPECT_FALSE(read.one_step_a_launch || read.as_graph);
  EXPECT_EQ(read.numerics, cuda::Numerics::kFast);
  EXPECT_EQ(read.plan, terms.plan);
  EXPECT_TRUE(read.processors == 66 && read.groups == 8);
  for (size_t cut = 0; cut < blob.size(); ++cut) EXPECT_THROW(terms_of(blob.substr(0, cut)), Error) << cut;
  EXPECT_THROW(terms_of(blob + "x"), Error);
}

TEST(SequenceLength, IsWhatModelAndConfigurationAllow) {
  const auto length = [](int32_t asked, int32_t configured, int64_t positions) {
    LoadOptions options;
    options.max_length = asked;
    options.config_length = configured;
    return sequence_length(options, positions);
  };
  EXPECT_EQ(length(0, 0, 0), 2048);
  EXPECT_EQ(length(0, 128, 0), 128);
  EXPECT_EQ(length(0, 128, 64), 64);
  EXPECT_EQ(length(0, 64, 128), 64);
  EXPECT_EQ(length(100'000, 0, 0), 100'000) << "nothing is known that would forbid it";
  EXPECT_EQ(length(64, 128, 64), 64);
  EXPECT_THROW(length(65, 128, 64), Error);
  EXPECT_THROW(length(129, 128, 0), Error);
}

// What each rank's agree_on_model throws; "" if it agrees.
std::vector<std::string> outcomes(const std::vector<Fingerprint>& models,
                                  const std::vector<std::string>& errors) {
  auto bootstraps = dma::make_local_bootstraps(static_cast<int>(models.size()));
  std::vector<std::string> results(models.size());
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < models.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        agree_on_model(*bootstraps[rank], models[rank], errors[rank],
                       dma::Deadline::after(std::chrono::seconds(60)));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kUnavailable);
        results[rank] = error.what();
      }
    });
  threads.clear();
  return results;
}

TEST(Ranks, AllLearnWhoseModelDiffers) {
  const Fingerprint a{"graph", "weights"};
  for (const std::string& why : outcomes({a, a, a}, {"", "", ""})) EXPECT_EQ(why, "");
  for (const std::string& why : outcomes({a, a, {"graph", "newer"}}, {"", "", ""}))
    EXPECT_THAT(why, HasSubstr("rank 2 has loaded weights other than rank 0"));
  for (const std::string& why : outcomes({a, {"another", "weights"}, a}, {"", "", ""}))
    EXPECT_THAT(why, HasSubstr("rank 1 has loaded a graph other than rank 0"));
  for (const std::string& why : outcomes({a, {}, a}, {"", "no\nmemory", ""}))
    EXPECT_THAT(why, HasSubstr("rank 1 cannot load the model: no\\nmemory"));
}

// Where the same path is one file for two ranks, a file that was replaced between their loads; elsewhere files may have
// other times.
TEST(Ranks, FilesThatWereReplacedBetweenTwoLoadsAreNamed) {
  const std::filesystem::path path = "/models/a.onnx";
  const onnx::SourceFile old{"", {.inode = 1, .bytes = 100, .modified = 5, .changed = 5}};
  onnx::SourceFile newer = old, linked = old;
  newer.stamp.modified = 6;
  linked.stamp.changed = 6;  // somebody has made a link to it
  Fingerprint a{"graph", "weights", source_of(path, {old})}, b = a, c = a;
  b.source = source_of(path, {newer});
  c.source = source_of(path, {linked});
  for (const std::string& why : outcomes({a, c, a}, {"", "", ""})) EXPECT_EQ(why, "");
  for (const std::string& why : outcomes({a, b, a}, {"", "", ""}))
    EXPECT_THAT(why, HasSubstr("rank 1 has loaded another file than rank 0: /models/a.onnx (100 bytes) and "
                               "/models/a.onnx (100 bytes)"));
  b.source.place = "another machine";
  for (const std::string& why : outcomes({a, b, a}, {"", "", ""})) EXPECT_EQ(why, "");
  b.source = source_of("/models/b.onnx", {newer, newer});
  for (const std::string& why : outcomes({a, b, a}, {"", "", ""})) EXPECT_EQ(why, "");
  b.weights = "newer";
  for (const std::string& why : outcomes({a, b, a}, {"", "", ""}))
    EXPECT_THAT(why, HasSubstr("/models/b.onnx (200 bytes in 2 files) and /models/a.onnx (100 bytes)"));
}

}  // namespace
}  // namespace ark

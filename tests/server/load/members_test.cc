// What ranks of several machines tell each other, and what rank 0 shares out by it.
#include "server/load/members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cores.h"
#include "base/error.h"
#include "server/version.h"

namespace ark {
namespace {

using ::testing::HasSubstr;

std::string error_of(std::string_view blob, int rank) {
  try {
    member_of(blob, rank, 0);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Members, TravelWholeAndTellVersionsBeforeAllElse) {
  const Member own = Member::here();
  const std::string blob = to_blob(own, kVersion);
  const Member read = member_of(blob, 1, 0);
  EXPECT_EQ(read.machine, own.machine);
  EXPECT_EQ(read.cpu_set, own.cpu_set);
  EXPECT_EQ(read.cpus, Cores().threads());
  for (size_t cut = 0; cut < blob.size(); ++cut) EXPECT_NE(error_of(blob.substr(0, cut), 1), "") << cut;
  // Whatever else another version says.
  const std::string other = to_blob(own, "9.9.9").substr(0, 9);
  EXPECT_EQ(error_of(other, 2),
            "rank 2 runs ark 9.9.9, rank 0 runs " + std::string(kVersion) + "; install the same everywhere");
}

// Rank 0 and 2 share a machine and its processors, rank 1 has another alone, ranks 3 and 4 a third by halves.
const std::vector<Member> kMembers = {{"a", "A", "0-7", 8, 1000},
                                      {"b", "B", "0-15", 16, 500},
                                      {"a", "A", "0-7", 8, 900},
                                      {"c", "C", "0-2", 3, 5000},
                                      {"c", "C", "3-5", 3, 5000}};

TEST(Members, AreGroupedByMachine) {
  const std::vector<Site> sites = sites_of(kMembers, 5);
  EXPECT_EQ(placement_text(sites), "0, 2 on a; 1 on b; 3, 4 on c");
  EXPECT_EQ(sites[0].cpus, 8) << "the same processors count once";
  EXPECT_EQ(sites[2].cpus, 6) << "each rank brings its own";
  EXPECT_EQ(sites[0].memory, 900);
  EXPECT_EQ(threads_for(sites, 5), 15) << "three each, as on c";
  EXPECT_EQ(threads_for(std::vector<Site>{sites[0]}, 2), 8);
  const std::vector<Site> threads = sites_of({}, 3);
  ASSERT_EQ(threads.size(), 1u);
  EXPECT_EQ(threads[0].ranks, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(threads_for(threads, 3), Cores().threads());
}

// Whose threads compete for processors: others' do not keep a rank from looking long at what it waits for.
TEST(Members, ShareProcessorsWithThoseOfTheSameSet) {
  const auto here = [](int rank) {
    const RanksHere own = ranks_here(kMembers, rank);
    return std::pair(own.count, own.place);
  };
  EXPECT_EQ(here(0), std::pair(2, 0));
  EXPECT_EQ(here(1), std::pair(1, 0));
  EXPECT_EQ(here(2), std::pair(2, 1));
  EXPECT_EQ(here(3), std::pair(1, 0)) << "rank 4 has others of that machine";
  EXPECT_EQ(here(4), std::pair(1, 0));
  const std::vector<Member> containers = {{"a", "A/1", "0-7", 8, 1000}, {"b", "A/2", "0-7", 8, 1000}};
  EXPECT_EQ(ranks_here(containers, 1).count, 2);
  EXPECT_EQ(ranks_here(containers, 1).place, 1);
  const Program program = [] {
    Program p;
    p.ranks = 5;
    return p;
  }();
  ExecutorOptions options;
  options.processors = 3;
  EXPECT_EQ(processors_here(program, options), 15) << "all are here";
  options.here = ranks_here(kMembers, 2);
  EXPECT_EQ(processors_here(program, options), 6);
}

TEST(Members, TheMachineWithTheLeastRoomDecidesHowMuchIsCached) {
  Compiled compiled;
  compiled.programs.resize(5);
  compiled.bindings.resize(5);
  for (Binding& binding : compiled.bindings) binding.act_bytes = 100;
  const std::vector<Site> sites = sites_of(kMembers, 5);
  // A page takes a byte here: b has 500 - 100 - 60 left, a 900 - 200 - 60.
  EXPECT_EQ(pages_for(sites, compiled, 60), (500 - 100 - 60) / 2);
  compiled.bindings[2].act_bytes = 800;
  EXPECT_LT(pages_for(sites, compiled, 60), 0);
  EXPECT_EQ(memory_at(sites[0], compiled, 0).other, 900);
}

}  // namespace
}  // namespace ark

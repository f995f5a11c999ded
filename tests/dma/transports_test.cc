// Which transport connects which ranks, and what they are told where none does.
#include "dma/transports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <set>
#include <span>
#include <thread>

#include "base/error.h"
#include "dma/group.h"
#include "dma/message.h"
#include "tests/dma/deadline.h"

namespace ark::dma {
namespace {

using ::testing::HasSubstr;

// The first that connects such ranks; "" if none does.
std::string first_for(const std::vector<Place>& ranks) {
  for (const TransportKind& kind : transports())
    if (kind.can_connect(ranks)) return std::string(kind.name);
  return "";
}

TEST(Transports, TheNearestThatReachesAllRanksIsTaken) {
  const Place one{"machine", 7, 7, 1000, 1, ""};
  const auto with = [&](auto change) {
    Place other = one;
    change(other);
    return other;
  };
  EXPECT_EQ(first_for({one, one}), "local");
  EXPECT_EQ(first_for({one, with([](Place& p) { p.process = 2; })}), "shm");
  // Each of these keeps a rank from opening the other's memory, though it has the same process id.
  EXPECT_NE(first_for({one, with([](Place& p) { p.machine = "another"; })}), "shm");
  EXPECT_NE(first_for({one, with([](Place& p) { p.pid_namespace = 8; })}), "shm");
  EXPECT_NE(first_for({one, with([](Place& p) { p.user = 1001; })}), "shm");
  Place near = one;
  near.address = "10.0.0.1";
  near.no_verbs = "";
  Place far = near;
  far.machine = "another";
  EXPECT_EQ(first_for({near, far}), "verbs");
  EXPECT_EQ(first_for({near, far, near}), "shm+verbs");
  far.no_verbs = kNoRdma;
  EXPECT_EQ(first_for({near, far}), "socket");
  EXPECT_EQ(first_for({far, near, far}), "shm+socket");
}

TEST(Transports, WhatIsPassedOverIsSaidWhereSomebodyHasIt) {
  const TransportKind& socket = transport_named("socket");
  Place near{"machine", 7, 7, 1000, 1, "10.0.0.1"}, far{"another", 7, 7, 1000, 1, "10.0.0.2"};
  const auto warning = [&](std::string_view near_trouble, std::string_view far_trouble) {
    near.no_verbs = near_trouble, far.no_verbs = far_trouble;
    return passed_over(socket, std::vector{near, far});
  };
  EXPECT_EQ(warning(kNoRdma, kNoRdma), "");
  EXPECT_EQ(warning(kNotLookedFor, kNoRdma), "");
  EXPECT_EQ(warning("", kNoRdma),
            "transport verbs cannot connect these ranks, socket does; rank 1: no RDMA device here");
  EXPECT_EQ(warning("no active port", ""),
            "transport verbs cannot connect these ranks, socket does; rank 0: no active port");
  EXPECT_EQ(passed_over(transport_named("shm"), std::vector{near, near}), "") << "which is faster";
}

TEST(Transports, NamesAreUniqueAndFoundAgain) {
  std::set<std::string_view> names;
  for (const TransportKind& kind : transports()) {
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    EXPECT_EQ(&transport_named(kind.name), &kind);
    if (!kind.works_here()) continue;
    EXPECT_EQ(kind.make(0, 2).size(), 2u);
    EXPECT_EQ(kind.make(1, 1)[0]->name(), kind.name);
  }
  EXPECT_THROW(transport_named("carrier pigeon"), Error);
}

// What each of two threads gets from choose_transport.
std::vector<std::string> chosen(const std::string& first, const std::string& second) {
  auto bootstraps = make_local_bootstraps(2);
  std::vector<std::string> results(2);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      try {
        results[rank] = choose_transport(*bootstraps[rank], rank == 0 ? first : second, soon()).name;
      } catch (const Error& error) {
        results[rank] = error.what();
      }
    });
  threads.clear();
  return results;
}

TEST(Transports, RanksTakeTheOneAskedForOrLearnWhyNot) {
  // Also threads of one process: `local` needs all ranks made together, and these come one by one.
  EXPECT_EQ(chosen("", ""), (std::vector<std::string>{"shm", "shm"}));
  for (const std::string& error : chosen("local", "local")) EXPECT_THAT(error, HasSubstr("made together"));
  EXPECT_EQ(chosen("shm", "shm"), (std::vector<std::string>{"shm", "shm"}));
  for (const std::string& error : chosen("shm", "")) EXPECT_THAT(error, HasSubstr("--transport"));
  for (const std::string& error : chosen("none", "none")) EXPECT_THAT(error, HasSubstr("local, shm"));
}

// Seccomp's strict mode kills who makes any call but read, write and exit.
TEST(Transports, NoSystemCallsWhileMessagesAreThereBeforeTheyAreAwaited) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "sanitizers make calls of their own";
#endif
  EndpointSpec spec;
  spec.channels = {{.name = "messages", .slots = 4, .slot_bytes = message_slot_bytes(256)}};
  const auto groups = make_local_groups(
      2, [&](int) { return spec; }, soon(), transport_named("shm").make(0, 2));
  MessageSender to(groups[0]->sender(1, 0));
  MessageReceiver from(groups[1]->receiver(0, 0));
  const auto pass = [&](bool may_wait) {
    std::byte bytes[256] = {};
    for (int step = 0; step < 10'000; ++step) {
      std::span<const std::byte> message;
      bytes[0] = static_cast<std::byte>(step);
      if (to.send(bytes, {}) || from.receive(message, {}) || message[0] != bytes[0] || from.release({}))
        return 1;
    }
    if (may_wait) detail::blind_sleep(1);
    return 0;
  };
  const auto confined = [&](bool may_wait) {
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) syscall(SYS_exit, 2);
    syscall(SYS_exit, pass(may_wait));
  };
  EXPECT_EXIT(confined(false), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(confined(true), testing::KilledBySignal(SIGKILL), "") << "it sees calls";
}

}  // namespace
}  // namespace ark::dma

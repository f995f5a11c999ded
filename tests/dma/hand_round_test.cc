// Descriptors that ranks hand each other: to every rank its own duplicate, nothing to strangers, no waiting for the
// dead.
#include "dma/hand_round.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <fstream>
#include <thread>

#include "tests/dma/deadline.h"
#include "tests/open_files.h"

namespace ark::dma {
namespace {

ino_t inode(int file) {
  struct stat status = {};
  EXPECT_EQ(fstat(file, &status), 0);
  return status.st_ino;
}

using ark::test::open_files;

// Abstract names of sockets that listen, on this machine.
std::vector<std::string> names_of_rounds() {
  std::vector<std::string> names;
  std::ifstream in("/proc/net/unix");
  for (std::string line; std::getline(in, line);)
    if (const auto at = line.find("@ark-hand-"); at != std::string::npos)
      names.push_back(line.substr(at + 1));
  return names;
}

// `body` of each rank on a thread of its own.
void run_ranks(int size, const std::function<void(Bootstrap&)>& body) {
  auto bootstraps = make_local_bootstraps(size);
  std::vector<std::jthread> threads;
  for (auto& own : bootstraps) {
    threads.emplace_back([&body, own = std::move(own)] {
      body(*own);
      own->leave();
    });
  }
}

TEST(HandRound, GivesEachRankADuplicateOfEveryOthers) {
  for (const int size : {2, 3, 16}) {
    const auto before = open_files();
    std::vector<Descriptor> own;
    for (int r = 0; r < size; ++r) own.emplace_back(memfd_create("own", MFD_CLOEXEC));
    run_ranks(size, [&](Bootstrap& bootstrap) {
      const std::vector<Handed> handed = hand_round(bootstrap, own[bootstrap.rank()].number, soon());
      ASSERT_EQ(handed.size(), static_cast<std::size_t>(size));
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(handed[r].why_not, "");
        ASSERT_EQ(bool(handed[r].descriptor), r != bootstrap.rank());
        if (r == bootstrap.rank()) continue;
        EXPECT_EQ(inode(handed[r].descriptor.number), inode(own[r].number));
        EXPECT_NE(handed[r].descriptor.number, own[r].number);
        EXPECT_NE(fcntl(handed[r].descriptor.number, F_GETFD) & FD_CLOEXEC, 0);
      }
    });
    own.clear();
    EXPECT_EQ(open_files(), before) << size;
  }
}

TEST(HandRound, ARankWithNothingGetsWhatTheOthersHave) {
  const Descriptor file(memfd_create("own", MFD_CLOEXEC));
  run_ranks(3, [&](Bootstrap& bootstrap) {
    const bool has = bootstrap.rank() != 1;
    const std::vector<Handed> handed = hand_round(bootstrap, has ? file.number : -1, soon());
    for (int r = 0; r < 3; ++r) {
      if (r == bootstrap.rank()) continue;
      EXPECT_EQ(bool(handed[r].descriptor), r != 1);
      EXPECT_EQ(handed[r].why_not, r == 1 ? "it has none" : "");
    }
  });
}

// A rank that tells where it can be visited and then does nothing: dead or stopped.
TEST(HandRound, DoesNotWaitLongForOneThatDoesNotAnswer) {
  const Descriptor file(memfd_create("own", MFD_CLOEXEC));
  const auto before = open_files();
  run_ranks(3, [&](Bootstrap& bootstrap) {
    if (bootstrap.rank() == 2) {
      // As a rank of this place, whose name nobody has.
      const std::vector<std::string> blobs = bootstrap.all_gather("", soon());
      EXPECT_EQ(blobs.size(), 3u);
      return;
    }
    EXPECT_NE(error_of([&] { hand_round(bootstrap, file.number, soon()); }).find("rank 2: "),
              std::string::npos);
  });
  EXPECT_EQ(open_files(), before);
}

TEST(HandRound, StrangersGetNothingAndHoldNobodyUp) {
  const Descriptor file(memfd_create("own", MFD_CLOEXEC));
  std::atomic<bool> ends{false};
  std::atomic<int> visits{0};
  // Of the same user: it knows the names, and no secret.
  std::jthread stranger([&] {
    while (!ends) {
      for (const std::string& name : names_of_rounds()) {
        const Descriptor visit(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        sockaddr_un address = {};
        address.sun_family = AF_UNIX;
        name.copy(address.sun_path + 1, name.size());
        const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
        if (connect(visit.number, reinterpret_cast<const sockaddr*>(&address), length) != 0) continue;
        const std::string hello = std::string("\1\0\0\0\20\0\0\0", 8) + std::string(16, 'x');
        send(visit.number, hello.data(), visits % 2 == 0 ? hello.size() : 3, MSG_NOSIGNAL);
        char byte = 0;
        // Closed without an answer.
        EXPECT_LE(recv(visit.number, &byte, 1, 0), 0);
        ++visits;
      }
    }
  });
  for (int i = 0; i < 200 && visits < 20; ++i) {
    run_ranks(4, [&](Bootstrap& bootstrap) {
      for (const Handed& handed : hand_round(bootstrap, file.number, soon())) EXPECT_EQ(handed.why_not, "");
    });
  }
  ends = true;
}

}  // namespace
}  // namespace ark::dma

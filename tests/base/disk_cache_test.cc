// Whatever happens to a cache's folder: an entry is what was written, or there is none.
#include "base/disk_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "base/sha256.h"
#include "tests/fixtures.h"
#include "tests/scratch_folder.h"

namespace ark {
namespace {

namespace fs = std::filesystem;
using test::ScratchFolder;

constexpr int64_t kMuch = int64_t{1} << 30;
constexpr int64_t kPiece = 1 << 20;

std::string name_of(int number) { return sha256_hex(std::to_string(number)) + ".test"; }

// Bytes that follow from the number.
std::string payload_of(int number, int64_t bytes) {
  std::string payload(static_cast<std::size_t>(bytes), '\0');
  uint32_t state = 2654435761u * static_cast<uint32_t>(number + 1);
  for (char& c : payload) {
    state = state * 1664525u + 1013904223u;
    c = static_cast<char>(state >> 24);
  }
  return payload;
}

bool write(const DiskCache& cache, int number, int64_t bytes, const std::atomic<bool>* stop = nullptr) {
  const std::string payload = payload_of(number, bytes);
  return cache.write(name_of(number), std::as_bytes(std::span(payload)), stop);
}

bool is_whole(const DiskCache& cache, int number, int64_t bytes) {
  const auto found = cache.read(name_of(number));
  return found && *found == payload_of(number, bytes);
}

std::size_t count(const fs::path& folder, const std::string& prefix = "") {
  std::size_t n = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    n += entry.path().filename().string().starts_with(prefix) && entry.path().filename() != ".lock";
  return n;
}

// Not beside threads that allocate: a sanitizer's allocator would keep the locks that they hold at that moment.
pid_t begin_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  return child;
}
// The exit code of a process; its signal, negative, where one ended it.
int end_of(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return -1000;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
int in_child(const std::function<int()>& work) { return end_of(begin_child(work)); }

TEST(DiskCache, GivesBackWhatWasWritten) {
  const ScratchFolder folder;
  const DiskCache cache(folder.path() / "deep/er", kMuch);
  int number = 0;
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, kPiece - 1, kPiece, kPiece + 1, 3 * kPiece + 17}) {
    EXPECT_FALSE(cache.read(name_of(number)));
    ASSERT_TRUE(write(cache, number, bytes));
    EXPECT_EQ(cache.size_of(name_of(number)), bytes);
    EXPECT_TRUE(is_whole(cache, number, bytes));
    std::string into(static_cast<std::size_t>(bytes), 'x');
    EXPECT_TRUE(cache.read(name_of(number), std::as_writable_bytes(std::span(into)), 3));
    EXPECT_TRUE(into == payload_of(number, bytes));
    ++number;
  }
  EXPECT_EQ(count(cache.folder(), ".part-"), 0u);
  struct stat status {};
  ASSERT_EQ(::stat(cache.folder().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST(DiskCache, ReplacesAnEntry) {
  const ScratchFolder folder;
  const DiskCache cache(folder.path(), kMuch);
  ASSERT_TRUE(write(cache, 1, 1000));
  const std::string other = "other";
  ASSERT_TRUE(cache.write(name_of(1), std::as_bytes(std::span(other))));
  EXPECT_TRUE(cache.read(name_of(1)) == "other");
}

TEST(DiskCache, KeepsNothingWhenOff) {
  const ScratchFolder folder;
  for (const DiskCache& cache : {DiskCache(folder.path(), 0), DiskCache("", kMuch)}) {
    EXPECT_FALSE(cache.is_on());
    EXPECT_FALSE(write(cache, 1, 10));
    EXPECT_FALSE(cache.read(name_of(1)));
  }
  EXPECT_EQ(count(folder.path()), 0u);
}

TEST(DiskCache, NoticesEveryFlippedBit) {
  const ScratchFolder folder;
  const DiskCache cache(folder.path(), kMuch);
  const int64_t bytes = 2 * kPiece + 5000;
  const fs::path file = folder.path() / name_of(1);
  ASSERT_TRUE(write(cache, 1, bytes));
  const auto size = static_cast<int64_t>(fs::file_size(file));
  std::vector<int64_t> places;
  const int64_t step = test::is_sanitized() ? 7 : 1;
  for (int64_t at = 0; at < 160; at += step) places.push_back(at);  // head, sums and zeros behind them
  for (int64_t at = 160; at < size; at += step * 99991) places.push_back(at);  // zeros, payload
  for (int64_t at = size - 3; at < size; ++at) places.push_back(at);
  for (const int64_t at : places) {
    {
      std::fstream both(file, std::ios::binary | std::ios::in | std::ios::out);
      both.seekg(at);
      const int old = both.get();
      both.seekp(at);
      both.put(static_cast<char>(old ^ (1 << at % 8)));
    }
    std::string into(static_cast<std::size_t>(bytes), '\0');
    EXPECT_FALSE(cache.read(name_of(1), std::as_writable_bytes(std::span(into)), 2)) << at;
    EXPECT_FALSE(fs::exists(file)) << "of no use, and yet there: " << at;
    ASSERT_TRUE(write(cache, 1, bytes));
    ASSERT_TRUE(is_whole(cache, 1, bytes));
  }
}

TEST(DiskCache, NoticesWhatIsCutOrGrown) {
  const ScratchFolder folder;
  const DiskCache cache(folder.path(), kMuch);
  const fs::path file = folder.path() / name_of(1);
  for (const int64_t bytes : {int64_t{0}, int64_t{3000}, kPiece}) {
    ASSERT_TRUE(write(cache, 1, bytes));
    const auto size = fs::file_size(file);
    for (const auto length :
         {std::uintmax_t{0}, std::uintmax_t{50}, std::uintmax_t{128}, size - 1, size + 1}) {
      fs::resize_file(file, length);
      EXPECT_FALSE(cache.read(name_of(1))) << length;
      EXPECT_FALSE(fs::exists(file));
      ASSERT_TRUE(write(cache, 1, bytes));
    }
    EXPECT_TRUE(is_whole(cache, 1, bytes));
  }
}

TEST(DiskCache, DoesNotTakeOneEntryForAnother) {
  const ScratchFolder folder;
  const DiskCache cache(folder.path(), kMuch);
  ASSERT_TRUE(write(cache, 1, 100));
  fs::copy_file(folder.path() / name_of(1), folder.path() / name_of(2));
  EXPECT_FALSE(cache.read(name_of(2)));
  std::string longer(101, '\0');  // of another size than is expected
  EXPECT_FALSE(cache.read(name_of(1), std::as_writable_bytes(std::span(longer)), 1));
}

TEST(DiskCache, TakesOnlyRegularFiles) {
  const ScratchFolder folder, elsewhere;
  const DiskCache cache(folder.path(), kMuch), other(elsewhere.path(), kMuch);
  ASSERT_TRUE(write(other, 1, 100));
  fs::create_symlink(elsewhere.path() / name_of(1), folder.path() / name_of(1));
  ASSERT_EQ(::mkfifo((folder.path() / name_of(2)).c_str(), 0600), 0);
  fs::create_directory(folder.path() / name_of(3));
  for (int number = 1; number <= 3; ++number) EXPECT_FALSE(cache.read(name_of(number))) << number;
  EXPECT_TRUE(write(cache, 1, 100) && write(cache, 2, 100));
  EXPECT_FALSE(write(cache, 3, 100));
  EXPECT_TRUE(is_whole(cache, 1, 100) && is_whole(cache, 2, 100));
  EXPECT_TRUE(is_whole(other, 1, 100)) << "the link was followed";
}

TEST(DiskCache, TrustsNothingThatOthersMayWrite) {
  const ScratchFolder folder;
  ASSERT_TRUE(write(DiskCache(folder.path(), kMuch), 1, 100));
  const fs::path file = folder.path() / name_of(1);
  for (const mode_t mode : {0620u, 0602u}) {
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
    EXPECT_FALSE(DiskCache(folder.path(), kMuch).read(name_of(1)));
    ASSERT_TRUE(write(DiskCache(folder.path(), kMuch), 1, 100));
  }
  for (const mode_t mode : {0770u, 0707u, 01777u}) {
    ASSERT_EQ(::chmod(folder.path().c_str(), mode), 0);
    const DiskCache cache(folder.path(), kMuch);
    EXPECT_FALSE(cache.read(name_of(1)));
    EXPECT_FALSE(write(cache, 2, 100));
  }
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  EXPECT_TRUE(is_whole(DiskCache(folder.path(), kMuch), 1, 100));
}

TEST(DiskCache, TrustsNothingOfAnotherUser) {
  const ScratchFolder folder;
  ASSERT_TRUE(write(DiskCache(folder.path(), kMuch), 1, 100));
  const fs::path file = folder.path() / name_of(1);
  if (::chown(file.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "only root can give files away";
  EXPECT_FALSE(DiskCache(folder.path(), kMuch).read(name_of(1)));
  ASSERT_TRUE(write(DiskCache(folder.path(), kMuch), 1, 100));
  ASSERT_EQ(::chown(folder.path().c_str(), 12345, 12345), 0);
  EXPECT_FALSE(DiskCache(folder.path(), kMuch).read(name_of(1)));
  EXPECT_FALSE(write(DiskCache(folder.path(), kMuch), 2, 100));
}

TEST(DiskCache, WhatWasReadLongestAgoGoesFirst) {
  const ScratchFolder folder;
  const int64_t bytes = 100'000, each = 4096 + bytes;
  const DiskCache cache(folder.path(), 3 * each);
  const auto wait = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };  // ticks of the file system
  for (int number = 1; number <= 3; ++number) {
    ASSERT_TRUE(write(cache, number, bytes));
    wait();
  }
  EXPECT_TRUE(is_whole(cache, 1, bytes));
  wait();
  ASSERT_TRUE(write(cache, 4, bytes));
  EXPECT_FALSE(cache.size_of(name_of(2)));
  for (const int number : {1, 3, 4}) EXPECT_TRUE(is_whole(cache, number, bytes)) << number;
  EXPECT_FALSE(write(cache, 5, 3 * each)) << "more than there may ever be";
  EXPECT_EQ(count(folder.path()), 3u) << "entries went for one that could not be kept";
  std::ofstream(folder.path() / "notes.txt")
      << std::string(1 << 20, 'x');  // not ours: neither counted nor removed
  ASSERT_TRUE(write(cache, 6, 2 * bytes));
  EXPECT_TRUE(fs::exists(folder.path() / "notes.txt"));
  int64_t total = 0;
  for (int number = 1; number <= 6; ++number)
    if (const auto size = cache.size_of(name_of(number))) total += 4096 + *size;
  EXPECT_LE(total, 3 * each);
}

TEST(DiskCache, StopsWhenTold) {
  const ScratchFolder folder;
  const std::atomic<bool> stop = true;
  EXPECT_FALSE(write(DiskCache(folder.path(), kMuch), 1, 5 * kPiece, &stop));
  EXPECT_EQ(count(folder.path()), 0u);
}

TEST(DiskCache, AFileSizeLimitCostsTheEntryAlone) {
  const ScratchFolder folder;
  const int code = in_child([&] {
    const rlimit limit{64 << 10, 64 << 10};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
    const DiskCache cache(folder.path(), kMuch);
    if (write(cache, 1, kPiece)) return 11;
    return write(cache, 2, 1000) && is_whole(cache, 2, 1000) ? 0 : 12;
  });
  EXPECT_EQ(code, 0) << "negative: the signal that ended it";
  EXPECT_EQ(count(folder.path(), ".part-"), 0u);
}

TEST(DiskCache, AFullOrReadOnlyFileSystemCostsTheEntryAlone) {
  const ScratchFolder folder;
  const int code = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=3m,mode=0700") != 0)
      return 77;
    const DiskCache cache(folder.path(), kMuch);
    {
      std::ofstream filler(folder.path() / "filler");
      for (int i = 0; i < 4 && filler; ++i) filler << std::string(kPiece, 'x') << std::flush;
    }
    if (write(cache, 1, 20'000) || count(folder.path(), ".part-") != 0) return 10;  // nothing is left
    fs::remove(folder.path() / "filler");
    if (!write(cache, 1, kPiece)) return 11;
    if (!write(cache, 2, kPiece) || cache.size_of(name_of(1))) return 12;  // at most half of it is taken
    if (::mount("none", folder.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0) return 13;
    if (write(cache, 3, 10)) return 14;
    return is_whole(cache, 2, kPiece) ? 0 : 15;
  });
  if (code == 77) GTEST_SKIP() << "mounting a file system is not allowed here";
  EXPECT_EQ(code, 0);
}

TEST(DiskCache, AKilledWriterLeavesNothingForLong) {
  const ScratchFolder folder;
  const DiskCache cache(folder.path(), kMuch);
  for (int round = 0; round < 5; ++round) {
    const pid_t child = ::fork();
    if (child == 0)
      for (;;) write(cache, 1, 40 * kPiece);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (count(folder.path(), ".part-") == 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const auto found = cache.read(name_of(1));
    EXPECT_TRUE(!found || *found == payload_of(1, 40 * kPiece));
    ASSERT_TRUE(write(cache, 2, 1000));
    EXPECT_EQ(count(folder.path(), ".part-"), 0u);
  }
}

// What a process does: asks for few entries again and again, makes those that are missing, and damages some. Whether it
// only ever got the right bytes.
bool worker(const fs::path& folder, int seed) {
  const DiskCache cache(folder, kMuch);
  for (int i = 0; i < 60; ++i) {
    const int number = (seed + i * 7) % 3;
    const int64_t bytes = 30'000 + kPiece * number;
    const auto found = cache.read(name_of(number));
    if (found && *found != payload_of(number, bytes)) return false;
    if (!found) write(cache, number, bytes);
    if (i % 9 == seed % 9) {
      std::error_code ignored;
      fs::resize_file(folder / name_of(number), 100, ignored);
    }
  }
  return true;
}

TEST(DiskCache, ProcessesShareAFolderThatIsDamagedMeanwhile) {
  const ScratchFolder folder;
  std::vector<pid_t> children;
  for (int c = 0; c < 5; ++c)
    children.push_back(begin_child([&] { return worker(folder.path(), c) ? 0 : 1; }));
  for (const pid_t child : children) EXPECT_EQ(end_of(child), 0);
  EXPECT_EQ(count(folder.path(), ".part-"), 0u) << "a part was left behind";
}

TEST(DiskCache, LiesWhereTheEnvironmentSays) {
  const auto with = [](const char* own, const char* xdg, const char* home) {
    const auto set = [](const char* name, const char* value) {
      if (value)
        ::setenv(name, value, 1);
      else
        ::unsetenv(name);
    };
    return in_child([&] {
      set("ARK_CACHE_DIR", own), set("XDG_CACHE_HOME", xdg), set("HOME", home);
      const fs::path folder = DiskCache::default_folder();
      return folder == "/o"                    ? 1
             : folder == "/x/ark/built"        ? 2
             : folder == "/h/.cache/ark/built" ? 3
             : folder.empty()                  ? 4
                                               : 5;
    });
  };
  EXPECT_EQ(with("/o", "/x", "/h"), 1);
  EXPECT_EQ(with(nullptr, "/x", "/h"), 2);
  EXPECT_EQ(with(nullptr, "", "/h"), 3);
  EXPECT_EQ(with(nullptr, nullptr, nullptr), 4);
}

}  // namespace
}  // namespace ark

#include "base/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/log.h"
#include "base/parallel.h"

namespace ark {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[] = "ARKCACH1";
constexpr int64_t kPiece = 1 << 20;  // bytes that one sum covers
constexpr int64_t kAlign = 4096;
constexpr const char* kLock = ".lock";
constexpr std::string_view kPart = ".part-";

struct Head {
  char magic[8];
  uint32_t sum;  // CRC-32C of all behind it up to the payload
  uint32_t piece;
  int64_t payload;  // bytes
  char name[104];   // zeros behind it
};
static_assert(sizeof(Head) == 128);

int64_t pieces_of(int64_t payload) { return (payload + kPiece - 1) / kPiece; }
int64_t payload_at(int64_t payload) {
  const int64_t front = static_cast<int64_t>(sizeof(Head)) + 4 * pieces_of(payload);
  return (front + kAlign - 1) / kAlign * kAlign;
}

// All in front of the payload.
std::string front_of(const std::string& name, int64_t payload, const std::vector<uint32_t>& sums) {
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof head.magic);
  head.piece = kPiece;
  head.payload = payload;
  std::memcpy(head.name, name.data(), name.size());
  std::string front(static_cast<std::size_t>(payload_at(payload)), '\0');
  std::memcpy(front.data(), &head, sizeof head);
  if (!sums.empty()) std::memcpy(front.data() + sizeof head, sums.data(), 4 * sums.size());
  constexpr std::size_t kFirst = offsetof(Head, piece);
  head.sum = crc32c(std::as_bytes(std::span(front).subspan(kFirst)));
  std::memcpy(front.data() + offsetof(Head, sum), &head.sum, sizeof head.sum);
  return front;
}

bool is_name(std::string_view name) {
  constexpr std::size_t kDigits = 64, kMost = kDigits + 1 + 24;
  if (name.size() < kDigits + 2 || name.size() > kMost || name[kDigits] != '.') return false;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return std::all_of(name.begin(), name.begin() + kDigits,
                     [&](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); }) &&
         std::all_of(name.begin() + kDigits, name.end(),
                     [&](char c) { return is_digit(c) || c == '.' || (c >= 'a' && c <= 'z'); });
}

// Empty, or why others may have written what `status` is of.
std::string distrust(const struct stat& status) {
  if (status.st_uid != ::geteuid()) return "belongs to another user, " + std::to_string(status.st_uid);
  if (status.st_mode & (S_IWGRP | S_IWOTH)) return "can be written by others: chmod go-w";
  return "";
}

// Not there, or not to be trusted: then `why` is not empty.
Descriptor open_folder(const fs::path& folder, std::string& why) {
  Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (!opened) {
    if (errno != ENOENT) why = std::string("cannot be opened: ") + std::strerror(errno);
  } else if (::fstat(opened.number, &status) != 0) {
    why = std::string("cannot be looked at: ") + std::strerror(errno);
  } else {
    why = distrust(status);
  }
  return why.empty() ? std::move(opened) : Descriptor();
}

bool read_at(int file, int64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t n = ::pread(file, into.data(), into.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    offset += n;
    into = into.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

bool write_at(int file, int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(file, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    offset += n;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

template <class Span>
Span piece_of(Span payload, int64_t piece) {
  const auto at = static_cast<std::size_t>(piece * kPiece);
  return payload.subspan(at, std::min(static_cast<std::size_t>(kPiece), payload.size() - at));
}

// An entry whose head is sound.
struct Entry {
  Descriptor file;
  int64_t payload = 0;
  std::vector<uint32_t> sums;
};

// `is_bad`: there is something by that name, but no entry of ours.
std::optional<Entry> open_entry(int folder, const std::string& name, bool& is_bad) {
  Entry entry;
  entry.file = Descriptor(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!entry.file) {
    is_bad = errno == ELOOP;
    return std::nullopt;
  }
  is_bad = true;
  struct stat status {};
  Head head;
  if (::fstat(entry.file.number, &status) != 0 || !S_ISREG(status.st_mode) || !distrust(status).empty() ||
      !read_at(entry.file.number, 0, std::as_writable_bytes(std::span(&head, 1))))
    return std::nullopt;
  entry.payload = head.payload;
  if (std::memcmp(head.magic, kMagic, sizeof head.magic) != 0 || head.piece != kPiece || entry.payload < 0 ||
      entry.payload > status.st_size || payload_at(entry.payload) + entry.payload != status.st_size)
    return std::nullopt;
  entry.sums.resize(static_cast<std::size_t>(pieces_of(entry.payload)));
  std::string front(static_cast<std::size_t>(payload_at(entry.payload)), '\0');
  if (!read_at(entry.file.number, 0, std::as_writable_bytes(std::span(front)))) return std::nullopt;
  if (!entry.sums.empty()) std::memcpy(entry.sums.data(), front.data() + sizeof head, 4 * entry.sums.size());
  if (front != front_of(name, entry.payload, entry.sums)) return std::nullopt;
  is_bad = false;
  return entry;
}

bool read_payload(const Entry& entry, std::span<std::byte> into, int threads) {
  std::atomic<bool> ok = true;
  parallel_for(pieces_of(entry.payload), threads, [&](int64_t i) {
    const std::span<std::byte> piece = piece_of(into, i);
    if (!ok.load(std::memory_order_relaxed)) return;
    if (!read_at(entry.file.number, payload_at(entry.payload) + i * kPiece, piece) ||
        crc32c(piece) != entry.sums[static_cast<std::size_t>(i)])
      ok = false;
  });
  if (!ok) return false;
  const timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};  // mount options may keep reads from counting
  ::futimens(entry.file.number, times);
  return true;
}

// The lock that is held while entries are counted, and parts begun.
Descriptor locked(int folder) {
  Descriptor lock(::openat(folder, kLock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  while (lock && ::flock(lock.number, LOCK_EX) != 0)
    if (errno != EINTR) return {};
  return lock;
}

struct Listed {
  std::string name;
  int64_t bytes;
  timespec used;
};

// Bytes of parts that are being written; those that nobody writes any more are cleared away.
int64_t bytes_of_part(int folder, const char* name, int64_t bytes) {
  const Descriptor part(::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!part || ::flock(part.number, LOCK_EX | LOCK_NB) != 0) return bytes;
  ::unlinkat(folder, name, 0);
  return 0;
}

// All entries, and in `total` the bytes that these and parts take.
std::vector<Listed> list(int folder, int64_t& total) {
  std::vector<Listed> entries;
  const int again = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const directory = again >= 0 ? ::fdopendir(again) : nullptr;
  if (directory == nullptr) {
    if (again >= 0) ::close(again);
    return entries;
  }
  while (const dirent* const found = ::readdir(directory)) {
    const std::string_view name = found->d_name;
    struct stat status {};
    const bool is_part = name.starts_with(kPart);
    if ((!is_part && !is_name(name)) || ::fstatat(folder, found->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    const int64_t bytes = status.st_size;
    if (is_part) {
      total += bytes_of_part(folder, found->d_name, bytes);
    } else {
      total += bytes;
      entries.push_back({std::string(name), bytes, status.st_atim});
    }
  }
  ::closedir(directory);
  return entries;
}

// Removes what was read longest ago until there is room for `bytes` more. How many bytes there may be at most, where
// that can never be.
std::optional<int64_t> make_room(int folder, int64_t bytes, int64_t most) {
  int64_t total = 0;
  std::vector<Listed> entries = list(folder, total);
  struct statvfs system {};
  if (::fstatvfs(folder, &system) == 0)
    most = std::min(most, (total + static_cast<int64_t>(system.f_bavail * system.f_frsize)) / 2);
  if (bytes > most) return most;
  std::sort(entries.begin(), entries.end(), [](const Listed& a, const Listed& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (const Listed& entry : entries) {
    if (total + bytes <= most) break;
    if (::unlinkat(folder, entry.name.c_str(), 0) == 0) total -= entry.bytes;
  }
  return std::nullopt;
}

// An empty file, locked, whose blocks are reserved where the file system can; errno where not.
Descriptor begin_part(int folder, int64_t bytes, std::string& name) {
  rlimit limit{};  // beyond it a write does not fail, but kills
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(bytes)) {
    errno = EFBIG;
    return {};
  }
  Descriptor part;
  for (int number = 0; number < 1000 && !part; ++number) {  // other containers have the same process ids
    name = std::string(kPart) + std::to_string(::getpid()) + "-" + std::to_string(number);
    part =
        Descriptor(::openat(folder, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!part && errno != EEXIST) return {};
  }
  if (!part) return {};
  if (::flock(part.number, LOCK_EX | LOCK_NB) == 0 &&
      (::fallocate(part.number, 0, 0, bytes) == 0 ||
       ((errno == EOPNOTSUPP || errno == ENOSYS) && ::ftruncate(part.number, bytes) == 0)))
    return part;
  const int why = errno;
  ::unlinkat(folder, name.c_str(), 0);
  errno = why;
  return {};
}

}  // namespace

DiskCache::DiskCache(fs::path folder, int64_t max_bytes)
    : folder_(std::move(folder)), max_bytes_(max_bytes) {}

fs::path DiskCache::default_folder() {
  if (const char* own = std::getenv("ARK_CACHE_DIR")) return own;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache)
    return fs::path(cache) / "ark/built";
  if (const char* home = std::getenv("HOME"); home && *home) return fs::path(home) / ".cache/ark/built";
  return {};
}

void DiskCache::warn(const std::string& what) const {
  if (!has_warned_.exchange(true))
    log_line(LogLevel::kWarning, "cache folder " + escaped(folder_.string()) + ": " + what);
}

std::optional<int64_t> DiskCache::size_of(const std::string& name) const {
  if (!is_on()) return std::nullopt;
  std::string why;
  bool is_bad = false;
  const Descriptor folder = open_folder(folder_, why);
  const auto entry = folder ? open_entry(folder.number, name, is_bad) : std::nullopt;
  return entry ? std::optional(entry->payload) : std::nullopt;
}

bool DiskCache::read(const std::string& name, std::span<std::byte> into, int threads) const {
  ARK_CHECK(is_name(name), "a cache entry of such a name");
  if (!is_on()) return false;
  std::string why;
  const Descriptor folder = open_folder(folder_, why);
  if (!why.empty()) warn("not used: it " + why);
  if (!folder) return false;
  bool is_bad = false;
  const std::optional<Entry> entry = open_entry(folder.number, name, is_bad);
  if (entry && entry->payload == std::ssize(into) && read_payload(*entry, into, threads)) return true;
  if (is_bad || entry) ::unlinkat(folder.number, name.c_str(), 0);
  return false;
}

std::optional<std::string> DiskCache::read(const std::string& name) const {
  std::string payload(static_cast<std::size_t>(size_of(name).value_or(0)), '\0');
  if (!read(name, std::as_writable_bytes(std::span(payload)), 1)) return std::nullopt;
  return payload;
}

bool DiskCache::write(const std::string& name, std::span<const std::byte> payload,
                      const std::atomic<bool>* stop) const {
  ARK_CHECK(is_name(name), "a cache entry of such a name");
  if (!is_on()) return false;
  const auto refuse = [&](const std::string& why) {
    warn("cannot keep what was built: " + why +
         "; --cache-dir names another folder, --cache-size 0 keeps nothing");
    return false;
  };
  std::error_code not_made;
  fs::create_directories(folder_.parent_path(), not_made);
  if (::mkdir(folder_.c_str(), 0700) != 0 && !not_made) not_made.assign(errno, std::generic_category());
  std::string why;
  const Descriptor folder = open_folder(folder_, why);
  if (!folder) return refuse("it " + (why.empty() ? "cannot be made: " + not_made.message() : why));
  const int64_t size = std::ssize(payload), bytes = payload_at(size) + size;
  std::string part_name;
  Descriptor part;
  {
    const Descriptor lock = locked(folder.number);
    if (!lock) return refuse(std::strerror(errno));
    if (const auto most = make_room(folder.number, bytes, max_bytes_))
      return refuse("it takes " + mebibytes(bytes) + ", and there is room for " + mebibytes(*most));
    part = begin_part(folder.number, bytes, part_name);
    if (!part) return refuse(std::strerror(errno));
  }
  std::vector<uint32_t> sums;
  bool ok = true, is_stopped = false;
  for (int64_t i = 0; ok && !is_stopped && i < pieces_of(size); ++i) {
    sums.push_back(crc32c(piece_of(payload, i)));
    ok = write_at(part.number, payload_at(size) + i * kPiece, piece_of(payload, i));
    is_stopped = stop != nullptr && *stop;
  }
  if (ok && !is_stopped) {
    const std::string front = front_of(name, size, sums);
    ok = write_at(part.number, 0, std::as_bytes(std::span(front))) && ::fsync(part.number) == 0 &&
         ::renameat(folder.number, part_name.c_str(), folder.number, name.c_str()) == 0;
  }
  if (ok && !is_stopped) {
    ::fsync(folder.number);
    return true;
  }
  const int error = errno;
  ::unlinkat(folder.number, part_name.c_str(), 0);
  return is_stopped ? false : refuse(std::strerror(error));
}

}  // namespace ark

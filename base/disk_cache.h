// What takes long to make and follows from a key alone, kept on disk from one run to the next.
//
// One folder, one file an entry, shared by any number of processes. Nothing needs a cache: an entry that is missing,
// damaged, cut short, of another name or version, or another user's is as good as none; what cannot be kept costs one
// warning. Entries are written beside and renamed, so that readers see all of one or none; the lock of a writer that
// was killed goes with it, and the next writer clears its part away. Those that were read longest ago go first.
//
// Entry: Head, the CRC-32C of each piece of the payload (u32 each), zeros up to a whole 4096, the payload. All numbers
// little-endian, as in memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace ark {

class DiskCache {
 public:
  // In `folder`, which is made (mode 0700) when something is kept first; at most `max_bytes` of entries, and at most
  // half of what its file system has left besides them. An empty folder or no bytes: nothing is found, nothing kept.
  DiskCache(std::filesystem::path folder, int64_t max_bytes);

  // $ARK_CACHE_DIR, or ark/built in $XDG_CACHE_HOME or ~/.cache; empty if the environment names no home.
  static std::filesystem::path default_folder();
  static constexpr int64_t kDefaultBytes = int64_t{8} << 30;

  bool is_on() const { return !folder_.empty() && max_bytes_ > 0; }
  const std::filesystem::path& folder() const { return folder_; }

  // Names are 64 hexadecimal digits (a SHA-256 of all that the bytes follow from), a dot, and up to 24 lower-case
  // letters, digits and dots that say what it is. Any thread may call the following.

  // The payload's bytes, by its head alone.
  std::optional<int64_t> size_of(const std::string& name) const;
  // Fills `into` with the payload, which must have just that size, on up to `threads` threads; marks it as used.
  // Otherwise false, and `into` holds anything.
  bool read(const std::string& name, std::span<std::byte> into, int threads) const;
  // The same as a string.
  std::optional<std::string> read(const std::string& name) const;
  // Whether it was kept, and on the disk when this returns. Gives up once `stop` is true.
  bool write(const std::string& name, std::span<const std::byte> payload,
             const std::atomic<bool>* stop = nullptr) const;

 private:
  void warn(const std::string& what) const;

  std::filesystem::path folder_;
  int64_t max_bytes_;
  mutable std::atomic<bool> has_warned_ = false;
};

}  // namespace ark

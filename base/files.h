// Reading the files that somebody else names: a model's folder, its configuration, its external data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

struct stat;

namespace ark {

// Tells a file from what it was before, and from any other of its file system: written to, replaced or moved in, it has
// another stamp. Times are nanoseconds since 1970 as the file system has them.
struct FileStamp {
  uint64_t inode = 0;
  int64_t bytes = 0, modified = 0, changed = 0;
  bool operator==(const FileStamp&) const = default;
};
FileStamp stamp_of(const struct stat& status);
// Nothing if there is no such regular file, or it cannot be looked at.
std::optional<FileStamp> stamp_of(const std::filesystem::path& file);

// What a folder holds, by name; nothing where it cannot be read, and `why` then says so. In the place of std's
// directory_iterator, which ends the process where there is no memory for a name.
std::vector<std::string> names_in(const std::filesystem::path& folder, std::error_code* why = nullptr);

// All of a regular file. Throws Error: kNotFound if it cannot be opened, kBadModel if it is a folder, a FIFO, a
// device or a socket, or larger than `max_bytes`.
std::string read_file(const std::filesystem::path& file, std::size_t max_bytes);

// The same for a file that a command line's option names: messages begin with the option, kUsage for kBadModel.
std::string read_file_of(const std::string& option, const std::filesystem::path& file, std::size_t max_bytes);

// Where `name` in `folder` really lies, links followed. They may lead anywhere inside the folder, or to what lies
// beside the file that `model` (may be empty) leads to: in the cache of Hugging Face's hub all files of a repository
// are links into one folder. Throws Error: kNotFound if there is nothing, kBadModel if it leads elsewhere; `shown`
// is how messages call it.
std::filesystem::path find_beside(const std::filesystem::path& folder, const std::filesystem::path& name,
                                  const std::filesystem::path& model, const std::string& shown);

// The text of such a file; nothing if the folder has no such name.
std::optional<std::string> read_beside(const std::filesystem::path& folder, const std::string& name,
                                       const std::filesystem::path& model, std::size_t max_bytes);

}  // namespace ark

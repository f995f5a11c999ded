#include "base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>

#include "base/descriptor.h"
#include "base/error.h"

namespace ark {
namespace {

namespace fs = std::filesystem;

bool is_inside(const fs::path& file, const fs::path& folder) {
  const auto [end, at] = std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  return end == folder.end() && at != file.end();
}

const char* kind_of(mode_t mode) {
  return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a FIFO" : S_ISSOCK(mode) ? "a socket" : "a device";
}

}  // namespace

FileStamp stamp_of(const struct stat& status) {
  const auto nanoseconds = [](const timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; };
  return {status.st_ino, status.st_size, nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)};
}

std::optional<FileStamp> stamp_of(const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return stamp_of(status);
}

std::vector<std::string> names_in(const fs::path& folder, std::error_code* why) {
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(::opendir(folder.c_str()), ::closedir);
  if (!opened && errno == ENOMEM) throw std::bad_alloc();
  if (!opened && why) why->assign(errno, std::generic_category());
  std::vector<std::string> names;
  while (const dirent* const entry = opened ? ::readdir(opened.get()) : nullptr)
    if (const std::string_view name = entry->d_name; name != "." && name != "..") names.emplace_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_file(const fs::path& file, std::size_t max_bytes) {
  const std::string shown = escaped(file.string());
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0 && !S_ISREG(status.st_mode))  // a socket cannot even be opened
    throw Error(Code::kBadModel, shown + " is " + kind_of(status.st_mode) + ", not a regular file");
  const Descriptor in{::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};  // a FIFO must not block us
  if (in.number < 0 || ::fstat(in.number, &status) != 0)
    throw Error(Code::kNotFound, shown + " cannot be read: " + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw Error(Code::kBadModel, shown + " is not a regular file");
  std::string text;
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size <= max_bytes) text.resize(size);
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n = ::read(in.number, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(Code::kNotFound, shown + " cannot be read: " + std::strerror(errno));
    if (n == 0) text.resize(at);
    at += static_cast<std::size_t>(n);
  }
  if (size > max_bytes)
    throw Error(Code::kBadModel, shown + " has " + std::to_string(size) +
                                     " bytes, the limit for this file is " + std::to_string(max_bytes));
  return text;
}

std::string read_file_of(const std::string& option, const fs::path& file, std::size_t max_bytes) {
  try {
    return read_file(file, max_bytes);
  } catch (const Error& e) {
    throw Error(e.code() == Code::kBadModel ? Code::kUsage : e.code(), option + " " + e.what());
  }
}

fs::path find_beside(const fs::path& folder, const fs::path& name, const fs::path& model,
                     const std::string& shown) {
  std::error_code error;
  const fs::path real = fs::canonical(folder / name, error);
  if (error)
    throw Error(Code::kNotFound, shown + " cannot be opened in " + escaped(folder.string()) + ": " +
                                     error.message() + "; download it beside the model");
  const bool beside = is_inside(real, fs::canonical(folder, error)) ||
                      (!model.empty() && is_inside(real, fs::canonical(model, error).parent_path()));
  if (!beside)
    throw Error(Code::kBadModel,
                shown + " is a link that leaves the directory of the model; copy the file there");
  return real;
}

std::optional<std::string> read_beside(const fs::path& folder, const std::string& name, const fs::path& model,
                                       std::size_t max_bytes) {
  std::error_code error;
  if (fs::symlink_status(folder / name, error).type() == fs::file_type::not_found) return std::nullopt;
  return read_file(find_beside(folder, name, model, escaped((folder / name).string())), max_bytes);
}

}  // namespace ark

#include "dma/bootstrap/key.h"

#include <sys/stat.h>

#include "base/error.h"
#include "base/files.h"
#include "base/sha256.h"
#include "dma/blob.h"

namespace ark::dma {
namespace {

constexpr std::size_t kShortest = 16, kLongest = 4096;

}  // namespace

std::string read_cluster_key(const std::filesystem::path& file) {
  const std::string option = "--cluster-key-file", name = option + " " + escaped(file.string());
  std::string key = read_file_of(option, file, kLongest);
  struct stat status = {};
  if (::stat(file.c_str(), &status) != 0 || (status.st_mode & S_IRWXO) != 0)
    throw Error(Code::kUsage, name + ": everybody on this machine may use it; chmod o= it");
  constexpr const char* kSpace = " \t\r\n";
  key.erase(key.find_last_not_of(kSpace) + 1);
  key.erase(0, key.find_first_not_of(kSpace));
  if (key.size() < kShortest)
    throw Error(Code::kUsage, name + ": " + std::to_string(key.size()) + " bytes, fewer than " +
                                  std::to_string(kShortest) + "; openssl rand -hex 32 makes a key");
  return key;
}

std::string proof_of(std::string_view key, Side side, const Encounter& e) {
  return hmac_sha256(key, BlobWriter()
                              .text(side == Side::kGuest ? "ark: guest" : "ark: host")
                              .number(e.kind)
                              .number(e.guest)
                              .number(e.host)
                              .number(e.ranks)
                              .text(e.visitor)
                              .text(e.guest_nonce)
                              .text(e.host_nonce)
                              .take());
}

}  // namespace ark::dma

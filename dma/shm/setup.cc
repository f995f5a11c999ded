#include "dma/shm/setup.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/descriptor.h"
#include "base/error.h"
#include "dma/blob.h"
#include "dma/mapped_wire.h"

namespace ark::dma {
namespace {

[[noreturn]] void fail(const std::string& what, const char* remedy = "") {
  throw Error(Code::kOs, what + ": " + std::strerror(errno) + remedy);
}

// Memory files have no name in any file system, so nothing is left behind when a process is killed. Peers
// open them through /proc/PID/fd while the ranks connect; afterwards only the mappings hold them.
class ShmTransport : public Transport {
 public:
  std::string_view name() const override { return "shm"; }

  Memory allocate(const std::string& name, uint64_t bytes) override {
    Descriptor file(memfd_create(("ark-" + name).substr(0, 200).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!file) fail("region " + escaped(name) + ": memfd_create");
    const auto length = static_cast<off_t>(std::max<uint64_t>(bytes, 1));
    if (length < 0 || ftruncate(file.number, length) != 0) {
      fail("region " + escaped(name) + ": cannot make " + std::to_string(bytes) + " bytes of shared memory");
    }
    // A peer that shrinks the file would end us with SIGBUS; sealed, it cannot.
    if (fcntl(file.number, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      fail("region " + escaped(name) + ": cannot seal shared memory");
    }
    Memory memory = map_shared(file.number, bytes, name);
    memory.key = files_.size();
    files_.push_back(std::move(file));
    return memory;
  }

  Memory adopt(const std::string& name, void*, uint64_t) override {
    throw Error(Code::kUnsupported, "region " + escaped(name) +
                                        ": transport shm cannot share memory that it did not allocate; use " +
                                        "allocated regions, or transport local within one process");
  }

  std::string describe(const Memory& memory) override {
    const int file = files_.at(memory.key).number;
    const struct stat status = status_of(file, "own region");
    return BlobWriter()
        .number<int32_t>(getpid())
        .number<int32_t>(file)
        .number<uint64_t>(status.st_dev)
        .number<uint64_t>(status.st_ino)
        .take();
  }

  Memory attach(int peer, std::string_view description, uint64_t bytes) override {
    const std::string who = "rank " + std::to_string(peer) + ": shared memory";
    BlobReader reader(description, who + " description");
    const auto pid = reader.number<int32_t>();
    const auto number = reader.number<int32_t>();
    const auto device = reader.number<uint64_t>();
    const auto inode = reader.number<uint64_t>();
    reader.end();
    const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
    const Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    const char* remedy = "; ranks must run as one user, on one machine, in one PID namespace";
    if (!file) fail(who + " cannot be opened", remedy);
    // The inode tells the announced file from whatever else such a number may name.
    const struct stat status = status_of(file.number, who);
    const int seals = fcntl(file.number, F_GET_SEALS);
    if (status.st_dev != device || status.st_ino != inode || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
        static_cast<uint64_t>(status.st_size) != std::max<uint64_t>(bytes, 1)) {
      throw Error(Code::kUnavailable, who + " is not the one announced" + remedy);
    }
    return map_shared(file.number, bytes, who);
  }

  void connected() override { files_.clear(); }

  std::unique_ptr<Wire> open_wire(const WireMap& map, Bootstrap&, Deadline) override {
    return make_mapped_wire(map);
  }

 private:
  static struct stat status_of(int file, const std::string& what) {
    struct stat status = {};
    if (fstat(file, &status) != 0) fail(what);
    return status;
  }

  std::vector<Descriptor> files_;  // open until connected(); Memory::key is the index
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport() { return std::make_unique<ShmTransport>(); }

}  // namespace ark::dma

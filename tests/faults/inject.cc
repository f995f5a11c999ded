// An LD_PRELOAD library that makes one call fail, once: what SQLite's tests do to every system call. Or it makes the
// time of day wrong.
//
//   ARK_FAULT=KIND:N      the N-th call of a kind fails, from 1; N = 0: none does
//   ARK_FAULT_FROM=main   counts from main() on; or "ready": from the line on standard output that says so
//   ARK_FAULT_COUNTS=FILE at the end, the calls of every kind: "KIND N" a line
//
// Or when a test wants it:
//
//   ARK_FAULT_FOLDER=PATH  a call of one of the kinds send, corrupt and delay that finds the file PATH/KIND removes it,
//                          and is the one; while there is a file PATH/throttle, messages between ranks (sendmsg) each
//                          take some milliseconds more
//
// Kinds: malloc open read pread mmap write send recv accept thread fail as they do when memory, descriptors or a disk
// run out; short-read, short-pread, short-send do less than they were asked for; disk-full is a write to a file.
// corrupt changes a bit of what is sent, delay sends it a second later.
//
//   ARK_FAULT_CLOCK=SECONDS  the time of day is right, that much late and that much early in turns of 50 ms, as of a
//                            machine that was asleep or is set; the kernel's stays right, so that what waits for a
//                            time of day waits wrong
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace {

enum Kind {
  kMalloc,
  kOpen,
  kRead,
  kPread,
  kMmap,
  kWrite,
  kSend,
  kRecv,
  kAccept,
  kThread,
  kShortRead,
  kShortPread,
  kShortSend,
  kDiskFull,
  kCorrupt,
  kDelay,
  kKinds
};
constexpr const char* kNames[kKinds] = {
    "malloc", "open",   "read",       "pread",       "mmap",       "write",     "send",    "recv",
    "accept", "thread", "short-read", "short-pread", "short-send", "disk-full", "corrupt", "delay"};

std::atomic<bool> armed{false}, from_ready{false};
std::atomic<int64_t> calls[kKinds];
int fault_kind = -1;
int64_t fault_number = 0;
const char* folder = nullptr;

// Whether this call is the one.
bool fails(Kind kind) {
  if (folder && (kind == kSend || kind == kCorrupt || kind == kDelay)) {
    char path[512];
    std::snprintf(path, sizeof path, "%s/%s", folder, kNames[kind]);
    const int before = errno;
    if (::unlink(path) == 0) return true;
    errno = before;
  }
  // What these do to an answer is no failure of a call: only a test that asks for them knows what to expect.
  if (kind == kCorrupt || kind == kDelay) return false;
  if (!armed.load(std::memory_order_relaxed)) return false;
  const int64_t number = calls[kind].fetch_add(1, std::memory_order_relaxed) + 1;
  return kind == fault_kind && number == fault_number;
}

bool is_throttled() {
  if (!folder) return false;
  char path[512];
  std::snprintf(path, sizeof path, "%s/throttle", folder);
  const int before = errno;
  const bool is_there = ::access(path, F_OK) == 0;
  errno = before;
  return is_there;
}

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}
#define NEXT(name) static const auto real = next<decltype(&::name)>(#name)

void write_counts() {
  armed = false;
  const char* file = std::getenv("ARK_FAULT_COUNTS");
  if (!file) return;
  if (FILE* out = std::fopen(file, "w")) {
    for (int k = 0; k < kKinds; ++k)
      std::fprintf(out, "%s %lld\n", kNames[k], static_cast<long long>(calls[k].load()));
    std::fclose(out);
  }
}

int (*real_main)(int, char**, char**) = nullptr;

int main_from_here(int argc, char** argv, char** environment) {
  if (const char* fault = std::getenv("ARK_FAULT")) {
    for (int k = 0; k < kKinds; ++k) {
      const size_t length = std::strlen(kNames[k]);
      if (std::strncmp(fault, kNames[k], length) == 0 && fault[length] == ':')
        fault_kind = k, fault_number = std::atoll(fault + length + 1);
    }
    if (fault_kind < 0) std::abort();
  }
  folder = std::getenv("ARK_FAULT_FOLDER");
  const char* from = std::getenv("ARK_FAULT_FROM");
  from_ready = from && std::strcmp(from, "ready") == 0;
  armed = !from_ready;
  const int status = real_main(argc, argv, environment);
  write_counts();
  return status;
}

// With one bit changed, any.
std::string damaged(const char* bytes, size_t size) {
  std::string changed(bytes, size);
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const uint64_t bit = static_cast<uint64_t>(now.tv_nsec) * 0x9E3779B97F4A7C15u % (8 * size);
  changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
  return changed;
}

// Seconds that the time of day is wrong by.
int64_t clock_error(int64_t monotonic_ns) {
  static const int64_t most = [] {
    const char* seconds = std::getenv("ARK_FAULT_CLOCK");
    return seconds ? std::atoll(seconds) : 0;
  }();
  constexpr int kSigns[] = {0, -1, 1};
  return kSigns[monotonic_ns / 50'000'000 % 3] * most;
}

bool is_file(int fd) {
  struct stat what {};
  return fstat(fd, &what) == 0 && S_ISREG(what.st_mode);
}

}  // namespace

extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(), void (*fini)(),
                      void (*rtld_fini)(), void* stack_end) {
  real_main = main;
  const auto real = next<decltype(&__libc_start_main)>("__libc_start_main");
  return real(main_from_here, argc, argv, init, fini, rtld_fini, stack_end);
}

void* malloc(size_t size) { return fails(kMalloc) ? (errno = ENOMEM, nullptr) : __libc_malloc(size); }
void* calloc(size_t n, size_t size) {
  return fails(kMalloc) ? (errno = ENOMEM, nullptr) : __libc_calloc(n, size);
}
void* realloc(void* p, size_t size) {
  return fails(kMalloc) ? (errno = ENOMEM, nullptr) : __libc_realloc(p, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  return fails(kMalloc) ? (errno = ENOMEM, nullptr) : __libc_memalign(alignment, size);
}
int posix_memalign(void** into, size_t alignment, size_t size) {
  if (fails(kMalloc)) return ENOMEM;
  *into = __libc_memalign(alignment, size);
  return *into ? 0 : ENOMEM;
}

// glibc has two names for each: of 32-bit and of 64-bit offsets, which are one here.
#define ARK_OPEN(name)                                                            \
  int name(const char* path, int flags, ...) {                                    \
    NEXT(name);                                                                   \
    va_list list;                                                                 \
    va_start(list, flags);                                                        \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
    va_end(list);                                                                 \
    return fails(kOpen) ? (errno = EMFILE, -1) : real(path, flags, mode);         \
  }
ARK_OPEN(open)
ARK_OPEN(open64)
FILE* fopen64(const char* path, const char* mode) {  // what std::ifstream opens with
  NEXT(fopen64);
  return fails(kOpen) ? (errno = EMFILE, nullptr) : real(path, mode);
}

ssize_t read(int fd, void* into, size_t size) {
  NEXT(read);
  if (fails(kRead)) return errno = EIO, -1;
  return real(fd, into, size > 1 && fails(kShortRead) ? size / 2 : size);
}
#define ARK_PREAD(name)                                                          \
  ssize_t name(int fd, void* into, size_t size, off_t at) {                      \
    NEXT(name);                                                                  \
    if (fails(kPread)) return errno = EIO, -1;                                   \
    return real(fd, into, size > 1 && fails(kShortPread) ? size / 2 : size, at); \
  }
ARK_PREAD(pread)
ARK_PREAD(pread64)
#define ARK_MMAP(name)                                                                                  \
  void* name(void* at, size_t size, int protection, int flags, int fd, off_t offset) {                  \
    NEXT(name);                                                                                         \
    return fails(kMmap) ? (errno = ENOMEM, MAP_FAILED) : real(at, size, protection, flags, fd, offset); \
  }
ARK_MMAP(mmap)
ARK_MMAP(mmap64)
ssize_t write(int fd, const void* from, size_t size) {
  NEXT(write);
  if (fails(kWrite)) return errno = EIO, -1;
  if (is_file(fd) && fails(kDiskFull)) return errno = ENOSPC, -1;
  return real(fd, from, size);
}
size_t fwrite(const void* from, size_t size, size_t n, FILE* file) {
  NEXT(fwrite);
  const size_t written = real(from, size, n, file);
  if (from_ready && memmem(from, size * n, "ready ", 6)) {
    std::fflush(file);
    from_ready = false, armed = true;
  }
  return written;
}
ssize_t send(int fd, const void* from, size_t size, int flags) {
  NEXT(send);
  if (fails(kSend)) return errno = ECONNRESET, -1;
  if (fails(kDelay)) usleep(1'000'000);
  if (size > 0 && fails(kCorrupt)) {
    const std::string changed = damaged(static_cast<const char*>(from), size);
    return real(fd, changed.data(), size, flags);
  }
  return real(fd, from, size > 1 && fails(kShortSend) ? size / 2 : size, flags);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  NEXT(sendmsg);
  if (message->msg_controllen > 0) return real(fd, message, flags);  // descriptors
  if (is_throttled()) usleep(5'000);
  if (fails(kSend)) return errno = ECONNRESET, -1;
  if (fails(kDelay)) usleep(1'000'000);
  if (!fails(kCorrupt)) return real(fd, message, flags);
  std::string whole;
  for (size_t i = 0; i < message->msg_iovlen; ++i)
    whole.append(static_cast<const char*>(message->msg_iov[i].iov_base), message->msg_iov[i].iov_len);
  whole = damaged(whole.data(), whole.size());
  iovec part{whole.data(), whole.size()};
  msghdr other = *message;
  other.msg_iov = &part;
  other.msg_iovlen = 1;
  return real(fd, &other, flags);
}
ssize_t recv(int fd, void* into, size_t size, int flags) {
  NEXT(recv);
  return fails(kRecv) ? (errno = ECONNRESET, -1) : real(fd, into, size, flags);
}
int accept(int fd, sockaddr* address, socklen_t* length) {
  NEXT(accept);
  return fails(kAccept) ? (errno = EMFILE, -1) : real(fd, address, length);
}
int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  NEXT(accept4);
  return fails(kAccept) ? (errno = EMFILE, -1) : real(fd, address, length, flags);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) {
  NEXT(pthread_create);
  return fails(kThread) ? EAGAIN : real(thread, attributes, body, argument);
}
int clock_gettime(clockid_t clock, timespec* into) {
  NEXT(clock_gettime);
  const int status = real(clock, into);
  if (status != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return status;
  timespec steady{};
  real(CLOCK_MONOTONIC, &steady);
  into->tv_sec += clock_error(steady.tv_sec * 1'000'000'000 + steady.tv_nsec);
  return status;
}
int gettimeofday(timeval* into, void*) {
  timespec now{};
  const int status = clock_gettime(CLOCK_REALTIME, &now);
  *into = {now.tv_sec, now.tv_nsec / 1000};
  return status;
}
time_t time(time_t* into) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (into) *into = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"

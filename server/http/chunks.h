// The body of a request in chunks (RFC 9112 section 7.1), read strictly: what two readers could take differently is
// refused.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ark::http {

class ChunkDecoder {
 public:
  // `most`: bytes of the whole body -> 413.
  explicit ChunkDecoder(std::size_t most) : most_(most) {}

  // Appends the body's bytes in `text` to `body`. Returns how much of `text` was taken: all, unless the body ends
  // before. Throws HttpError 400 or 413.
  std::size_t feed(std::string_view text, std::string& body);
  bool done() const { return state_ == State::kDone; }

 private:
  enum class State { kSize, kDataEnd, kTrailer, kDone };
  void take_framing(char c);
  void end_line(std::string_view line);

  const std::size_t most_;
  State state_ = State::kSize;
  std::string line_;       // of the framing, so far
  std::size_t left_ = 0;   // of the chunk's data
  std::size_t total_ = 0;  // announced by all chunks so far
  std::size_t extra_ = 0;  // bytes of extensions and trailers, which nobody needs
};

}  // namespace ark::http

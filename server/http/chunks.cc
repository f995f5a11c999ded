#include "server/http/chunks.h"

#include <algorithm>
#include <cctype>

#include "server/http/head.h"

namespace ark::http {
namespace {

constexpr std::size_t kMostExtra = 16 << 10;
constexpr std::size_t kMostDigits = 16;  // of a chunk's size

[[noreturn]] void refuse_chunk(const std::string& why) {
  throw HttpError(400, "the body's chunks are malformed: " + why);
}

// Whether a quoted text in an extension does not end.
bool has_open_quote(std::string_view extension) {
  bool quoted = false;
  for (std::size_t i = 0; i < extension.size(); ++i) {
    if (extension[i] == '"') quoted = !quoted;
    if (quoted && extension[i] == '\\') ++i;
  }
  return quoted;
}

bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)); }

}  // namespace

std::size_t ChunkDecoder::feed(std::string_view text, std::string& body) {
  std::size_t at = 0;
  while (at < text.size() && !done()) {
    if (left_ == 0) {
      take_framing(text[at++]);
      continue;
    }
    const std::size_t n = std::min(left_, text.size() - at);
    body.append(text.substr(at, n));
    at += n;
    left_ -= n;
  }
  return at;
}

void ChunkDecoder::take_framing(char c) {
  if (state_ == State::kDataEnd && c != (line_.empty() ? '\r' : '\n'))
    refuse_chunk("a chunk's data is not followed by CR LF");
  if (state_ == State::kSize && line_.empty() && !is_hex(c))
    refuse_chunk("a chunk's size is no hexadecimal number");
  const bool after_cr = line_.ends_with('\r');
  if (after_cr != (c == '\n')) refuse_chunk("a line does not end with CR LF");
  if (!after_cr) {
    line_ += c;
    const bool is_extra = state_ == State::kTrailer || line_.size() > kMostDigits;
    if (is_extra && ++extra_ > kMostExtra)
      refuse_chunk("extensions and trailers are longer than " + std::to_string(kMostExtra) + " bytes");
    return;
  }
  line_.pop_back();
  end_line(line_);
  line_.clear();
}

void ChunkDecoder::end_line(std::string_view line) {
  if (state_ == State::kDataEnd) {
    state_ = State::kSize;
  } else if (state_ == State::kTrailer) {
    if (line.empty())
      state_ = State::kDone;
    else
      check_field(line);
  } else {
    const std::string_view digits = line.substr(0, line.find(';'));
    if (digits.size() > kMostDigits || !std::all_of(digits.begin(), digits.end(), is_hex))
      refuse_chunk("a chunk's size is no hexadecimal number of up to " + std::to_string(kMostDigits) +
                   " digits");
    if (has_control_characters(line)) refuse_chunk("a chunk's extension holds control characters");
    if (has_open_quote(line)) refuse_chunk("a chunk's extension has a quote that does not end");
    const std::size_t size = std::stoull(std::string(digits), nullptr, 16);
    if (size > most_ - total_)
      throw HttpError(413, "the body is longer than " + std::to_string(most_) + " bytes");
    total_ += size;
    left_ = size;
    state_ = size > 0 ? State::kDataEnd : State::kTrailer;
  }
}

}  // namespace ark::http

// Stop strings in a stream of text, also across the borders of its parts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ark::text {

// Passes text on, but holds back what may turn out to be the beginning of a stop string. The match that ends
// first counts (of several that end there, the longest), so the result does not depend on how the text is cut
// into parts.
class StopChecker {
 public:
  // `include_stop`: the stop string is part of the output. Empty stop strings are ignored.
  explicit StopChecker(std::vector<std::string> stops, bool include_stop = false);

  // Text that is certain now. After a stop has been found it returns nothing more.
  std::string push(std::string_view text);
  // The end of the stream: what was held back.
  std::string flush();
  bool stopped() const { return match_ >= 0; }
  // The stop string that was found; null before.
  const std::string* matched() const { return stopped() ? &stops_[match_] : nullptr; }

 private:
  std::vector<std::string> stops_;
  bool include_stop_;
  std::string held_;
  int match_ = -1;  // index of the stop string found
};

}  // namespace ark::text

// Server-sent events out of a byte stream (WHATWG HTML, 9.2.6), as far as OpenAI's API uses them.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace ark::bench {

class SseParser {
 public:
  // `on_event` gets the kind ("message" where the stream names none) and the data of each event.
  using OnEvent = std::function<void(std::string_view kind, std::string_view data)>;
  explicit SseParser(OnEvent on_event) : on_event_(std::move(on_event)) {}

  // Any cut of the stream; lines end with LF, CR LF or CR.
  void add(std::string_view bytes);
  // The stream has ended. A last event without its empty line counts: some servers leave it out.
  void finish();

 private:
  void take_line();
  void dispatch();

  OnEvent on_event_;
  std::string line_, kind_, data_;
  bool has_data_ = false, after_cr_ = false, at_start_ = true;
};

}  // namespace ark::bench

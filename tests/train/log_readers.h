// A reader of TensorBoard's event files for the tests: TFRecord framing with its CRCs, then a
// minimal parser of protocol buffers. It shares no code with the writer except the checked CRC.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/train/loggers.h>

namespace halftone::test {

/// A message's fields by number, each as its raw value: varints and fixed sizes as integers.
struct Message {
  std::multimap<int, uint64_t> numbers{};
  std::multimap<int, std::string_view> bytes{};

  explicit Message(std::string_view from) {
    while (!from.empty()) {
      const uint64_t key = varint(from);
      const int field = int(key >> 3);
      switch (key & 7) {
        case 0: numbers.emplace(field, varint(from)); break;
        case 1: numbers.emplace(field, fixed(from, 8)); break;
        case 5: numbers.emplace(field, fixed(from, 4)); break;
        case 2: bytes.emplace(field, take(from, varint(from))); break;
        default: throw std::runtime_error("unknown wire type");
      }
    }
  }
  uint64_t number(int field) const { return numbers.find(field)->second; }
  std::string_view text(int field) const {
    const auto found = bytes.find(field);
    return found == bytes.end() ? std::string_view() : found->second;
  }

  static std::string_view take(std::string_view& from, uint64_t count) {
    if (count > from.size()) throw std::runtime_error("ends early");
    const std::string_view head = from.substr(0, count);
    from.remove_prefix(count);
    return head;
  }
  static uint64_t fixed(std::string_view& from, std::size_t count) {
    uint64_t value = 0;
    std::memcpy(&value, take(from, count).data(), count);
    return value;
  }
  static uint64_t varint(std::string_view& from) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(from, 1)[0]);
      value |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  }
};

struct Event {
  double seconds;
  int64_t step = 0;
  std::string version{};
  std::vector<std::pair<std::string, float>> scalars{};
  std::vector<std::pair<std::string, std::string>> texts{};
};

/// Throws std::runtime_error for wrong CRCs and truncated files.
inline std::vector<Event> read_events(std::string_view file) {
  std::vector<Event> events;
  while (!file.empty()) {
    const std::string_view header = file.substr(0, 8);
    const uint64_t length = Message::fixed(file, 8);
    if (Message::fixed(file, 4) != train::event_file::masked_crc(header))
      throw std::runtime_error("CRC of the length");
    const std::string_view body = Message::take(file, length);
    if (Message::fixed(file, 4) != train::event_file::masked_crc(body))
      throw std::runtime_error("CRC of the bytes");
    const Message message(body);
    Event event{.seconds = std::bit_cast<double>(message.number(1))};
    event.version = message.text(3);
    if (message.numbers.count(2)) event.step = int64_t(message.number(2));
    const Message summary(message.text(5));
    for (auto [at, end] = summary.bytes.equal_range(1); at != end; ++at) {
      const Message value(at->second);
      const std::string tag(value.text(1));
      if (value.numbers.count(2))
        event.scalars.emplace_back(tag, std::bit_cast<float>(uint32_t(value.number(2))));
      else event.texts.emplace_back(tag, Message(value.text(8)).text(8));
    }
    events.push_back(std::move(event));
  }
  return events;
}

}  // namespace halftone::test

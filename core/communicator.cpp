// The traffic of a rank, and the timeout of waits.
#include <halftone/core/communicator.h>

#include <cstdlib>
#include <ostream>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>

namespace halftone {

std::string_view name(TrafficUse use) {
  constexpr std::array<std::string_view, traffic_use_count> names{"gradient", "parameter", "state",
                                                                  "control"};
  return names[std::size_t(use)];
}

std::ostream& operator<<(std::ostream& out, const TrafficReport& report) {
  PlainText text;
  text << "sent";
  for (int i = 0; i < traffic_use_count; ++i)
    text << (i ? ", " : " ") << name(TrafficUse(i)) << ' '
         << HumanBytes{report.sent[std::size_t(i)]} << " in " << report.messages[std::size_t(i)];
  text << "; waited " << report.waited << " s";
  return out << text.str();
}

void Communicator::count(TrafficUse use, std::span<const Message> out) {
  for (const Message& message : out) traffic_.sent[std::size_t(use)] += message.tensor.bytes();
  traffic_.messages[std::size_t(use)] += int64_t(out.size());
}

double communication_patience() {
  const char* text = environment_variable("HALFTONE_DISTRIBUTED_TIMEOUT");
  if (!text) return 300;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != 0 || end == text || !(seconds >= 0))
    fail<UsageError>("HALFTONE_DISTRIBUTED_TIMEOUT", "it is \"", text,
                     "\". Give seconds, or 0 for no limit.");
  return seconds;
}

}  // namespace halftone

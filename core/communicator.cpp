// The traffic of a rank, for people.
#include <halftone/core/communicator.h>

#include <ostream>

#include <halftone/core/memory_ledger.h>
#include <halftone/core/plain_numbers.h>

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

}  // namespace halftone

// Prints one line for each check.
#include <halftone/lab/findings.h>

#include <ostream>

#include <halftone/lab/table.h>

namespace halftone::lab {

void Findings::say(std::string_view what, const std::string& value, const std::string& bar,
                   bool right) {
  checks_.push_back({std::string(what), value, bar, right}), missed_ += !right;
  out_ << "  " << (right ? "ok      " : "MISSED  ") << what << ": " << value << ", " << bar << '\n';
}

void Findings::within(std::string_view what, double value, double least, double most) {
  say(what, number(value), "bar " + number(least) + " to " + number(most),
      value >= least && value <= most);
}

void Findings::at_least(std::string_view what, double value, double least) {
  say(what, number(value), "bar at least " + number(least), value >= least);
}

void Findings::at_most(std::string_view what, double value, double most) {
  say(what, number(value), "bar at most " + number(most), value <= most);
}

void Findings::exactly(std::string_view what, double value, double wanted) {
  say(what, number(value, 9), "bar exactly " + number(wanted, 9), value == wanted);
}

void Findings::equal(std::string_view what, std::string_view value, std::string_view wanted) {
  say(what, std::string(value), "bar " + std::string(wanted), value == wanted);
}

void Findings::different(std::string_view what, std::string_view value, std::string_view other) {
  say(what, std::string(value), "bar other than " + std::string(other), value != other);
}

}  // namespace halftone::lab

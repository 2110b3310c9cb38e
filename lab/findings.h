// Output of an experiment: a table, followed by its checks.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace halftone::lab {

/// Receives an experiment's output: its table, followed by one line per check. A line has the name,
/// its value, the bar, and "ok" or "MISSED".
class Findings {
 public:
  explicit Findings(std::ostream& out, bool thorough = false) : thorough_(thorough), out_(out) {}
  /// For tables and remarks.
  std::ostream& out() { return out_; }
  /// Whether the experiment may take minutes, for more seeds.
  bool thorough() const { return thorough_; }

  // --- checks; NaN never passes
  void within(std::string_view what, double value, double least, double most);
  void at_least(std::string_view what, double value, double least);
  void at_most(std::string_view what, double value, double most);
  void equal(std::string_view what, std::string_view value, std::string_view wanted);
  void different(std::string_view what, std::string_view value, std::string_view other);
  void exactly(std::string_view what, double value, double wanted);

  struct Check {
    std::string what, value, bar;
    bool passes;
  };
  const std::vector<Check>& checks() const { return checks_; }
  int missed() const { return missed_; }
  int checked() const { return int(checks_.size()); }

 private:
  void say(std::string_view what, const std::string& value, const std::string& bar, bool right);
  bool thorough_;
  std::ostream& out_;
  std::vector<Check> checks_{};
  int missed_ = 0;
};

}  // namespace halftone::lab

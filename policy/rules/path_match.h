// Patterns for paths of modules: dotted, as "transformer.h.*.attn.**".
//   *        one segment, or a part of one (c_*)
//   **       any number of segments, none as well
//   {a,b}    alternatives within a segment
//   [-1]     a member of a list, counted from its end if negative
//   [0:-1]   members of a list from the first up to, not including, the second; both may be absent
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halftone::policy {

/// The number of members of each list of a model: "transformer.h" -> 12. A list is a module with
/// children that are called 0, 1, 2, ...
using ListSizes = std::map<std::string, int64_t, std::less<>>;
ListSizes list_sizes_of(const std::vector<std::string>& paths);

class PathPattern {
 public:
  /// Throws UsageError of `where` for braces or brackets that do not close or hold no number.
  PathPattern(std::string_view where, std::string_view pattern);
  bool matches(std::string_view path, const ListSizes& lists) const;
  const std::string& text() const { return text_; }

 private:
  struct Range {
    std::optional<int64_t> first{}, last{};  // last: not included
    bool single = false;                     // only first
  };
  struct Segment {
    bool any_number = false;                  // **
    std::optional<Range> range{};             // [..]
    std::vector<std::string> alternatives{};  // with * within
  };
  bool matches_from(std::size_t segment, const std::vector<std::string_view>& path, std::size_t at,
                    std::string_view whole, const ListSizes& lists) const;
  static Range range_in(std::string_view where, std::string_view pattern, std::string_view text);
  static bool in_range(const Range& range, std::string_view member, std::string_view list,
                       const ListSizes& lists);

  std::string text_;
  std::vector<Segment> segments_;
};

/// Returns the path that is most like the pattern, for messages; "" without paths.
std::string nearest_path(std::string_view pattern, const std::vector<std::string>& paths);

}  // namespace halftone::policy

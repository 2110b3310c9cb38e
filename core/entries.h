// Entries of a state dictionary: taken by name, and the rest refused.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <halftone/core/named_tensors.h>

namespace halftone {

/// The entries whose names begin with `prefix`, without it.
template <class T>
std::map<std::string, T> part_of(const std::map<std::string, T>& all, std::string_view prefix) {
  std::map<std::string, T> part;
  for (auto at = all.lower_bound(std::string(prefix));
       at != all.end() && at->first.starts_with(prefix); ++at)
    part[at->first.substr(prefix.size())] = at->second;
  return part;
}

/// The same; the entries are removed from `all`.
template <class T>
std::map<std::string, T> take_part(std::map<std::string, T>& all, std::string_view prefix) {
  std::map<std::string, T> part = part_of(all, prefix);
  std::erase_if(all, [&](const auto& entry) { return entry.first.starts_with(prefix); });
  return part;
}

/// Adds the entries of `part` under names that begin with `prefix`.
template <class T>
void add_part(std::map<std::string, T>& all, std::string_view prefix,
              const std::map<std::string, T>& part) {
  for (const auto& [name, value] : part) all[std::string(prefix) + name] = value;
}

/// The entries of a state that nothing has taken yet. Tensors are shared, not copied. Errors are in
/// the name of `loading` and end with "Load what `saver` saved."
class Entries {
 public:
  Entries(std::string_view loading, std::string_view saver, NamedTensors state)
      : loading_(loading), saver_(saver), rest_(std::move(state)) {}

  bool has(const std::string& name) const { return rest_.contains(name); }
  /// Takes an entry; returns an undefined tensor if there is none of that name.
  Tensor find(const std::string& name);
  /// Takes an entry. Throws UsageError if there is none, or if its tensor is undefined.
  Tensor take(const std::string& name);
  /// Takes an entry. Throws ShapeError for another shape or dtype.
  Tensor take(const std::string& name, const Shape& shape, DType dtype);
  /// Takes an entry of one element. Throws UsageError for more.
  double number(const std::string& name);
  /// Takes an entry of one element, a whole number of 0 to 9e15. Throws UsageError for others,
  /// which it names `called`.
  int64_t count(const std::string& name, std::string_view called);
  /// Takes a text, which states store as its bytes (u8).
  std::string text(const std::string& name);
  /// Takes the entries whose names begin with `prefix`, and returns them without it.
  NamedTensors part(std::string_view prefix) { return take_part(rest_, prefix); }

  const NamedTensors& rest() const { return rest_; }
  /// Throws UsageError if an entry is left.
  void refuse_rest() const;

 private:
  std::string_view loading_, saver_;
  NamedTensors rest_;
};

/// The tensor that stores a text in a state: [bytes], u8.
Tensor text_tensor(std::string_view text);

/// Returns whether two tensors of any dtypes have the same values, to the bit.
bool same_values(const Tensor& a, const Tensor& b);
/// Returns a value of x that a conversion to `dtype` would replace by another one: a finite number
/// that becomes infinite or NaN, or one that an integer dtype cannot hold. Rounding is no such
/// loss.
std::optional<double> lost_value(const Tensor& x, DType dtype);

}  // namespace halftone

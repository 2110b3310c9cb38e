// Taking entries of a state dictionary, with errors that say which one is wrong.
#include <halftone/core/entries.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/quoted.h>
#include <halftone/core/views.h>

namespace halftone {

Tensor Entries::find(const std::string& name) {
  const auto entry = rest_.extract(name);
  return entry.empty() ? Tensor{} : entry.mapped();
}

Tensor Entries::take(const std::string& name) {
  Tensor x = find(name);
  if (!x.defined())
    fail<UsageError>(loading_, "there is no entry \"", name, "\". Load what ", saver_, " saved.");
  return x;
}

Tensor Entries::take(const std::string& name, const Shape& shape, DType dtype) {
  Tensor x = take(name);
  if (x.shape() != shape || x.dtype() != dtype)
    fail<ShapeError>(loading_, "the entry \"", name, "\" is ", described(x), " instead of ", shape,
                     ' ', dtype, ". Load what ", saver_, " saved.");
  return x;
}

double Entries::number(const std::string& name) {
  const Tensor x = take(name);
  if (x.numel() != 1)
    fail<UsageError>(loading_, "the entry \"", name, "\" is ", described(x),
                     ". It must have one element.");
  return x.item();
}

int64_t Entries::count(const std::string& name, std::string_view called) {
  const double value = number(name);
  if (!(value >= 0 && value <= 9e15 && value == std::floor(value)))
    fail<UsageError>(loading_, called, " is ", value, ". It must be a whole number, 0 or more.");
  return int64_t(value);
}

std::string Entries::text(const std::string& name) {
  const Tensor x = take(name);
  if (x.dtype() != u8)
    fail<UsageError>(loading_, "the entry \"", name, "\" is ", described(x),
                     " instead of a text, which is u8. Load what ", saver_, " saved.");
  std::string text;
  for (const int64_t letter : x.to_vector<int64_t>()) text += char(letter);
  return text;
}

void Entries::refuse_rest() const {
  if (rest_.empty()) return;
  fail<UsageError>(loading_, "the entry ", in_quotes(rest_.begin()->first),
                   " is unknown. Load what ", saver_, " saved.");
}

Tensor text_tensor(std::string_view text) {
  return from_vector(std::vector<int64_t>(text.begin(), text.end()), {int64_t(text.size())}, u8);
}

bool same_values(const Tensor& a, const Tensor& b) {
  if (a.body() == b.body()) return true;
  if (a.shape() != b.shape()) return false;
  if (a.dtype() == b.dtype()) {
    const Tensor x = views::contiguous(a.to(Device::cpu())),
                 y = views::contiguous(b.to(Device::cpu()));
    return x.bytes() == 0 || std::memcmp(x.raw_data(), y.raw_data(), std::size_t(x.bytes())) == 0;
  }
  const auto bits = [](double value) { return std::bit_cast<uint64_t>(value); };
  return std::ranges::equal(a.to_vector<double>(), b.to_vector<double>(), {}, bits, bits);
}

std::optional<double> lost_value(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype || (is_floating(dtype) && facts(dtype).max >= facts(x.dtype()).max))
    return {};
  const Tensor host = views::contiguous(x.to(Device::cpu()));
  return visit_any(host.dtype(), [&]<class From>() -> std::optional<double> {
    const std::span<const From> values(host.data<From>(), std::size_t(host.numel()));
    const double largest = facts(dtype).max;
    for (const From stored : values) {
      const auto value = convert<double>(stored);
      if (is_floating(dtype) && !(std::abs(value) > largest)) continue;
      const auto kept =
          visit_any(dtype, [&]<class To>() { return convert<double>(convert<To>(stored)); });
      if (is_floating(dtype) ? std::isfinite(value) && !std::isfinite(kept) : kept != value)
        return value;
    }
    return {};
  });
}

}  // namespace halftone

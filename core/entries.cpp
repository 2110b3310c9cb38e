// Taking entries of a state dictionary, with errors that say which one is wrong.
#include <halftone/core/entries.h>

#include <cmath>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/quoted.h>

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

}  // namespace halftone

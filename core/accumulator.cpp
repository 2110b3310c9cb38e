// Checks the fields of an accumulator.
#include <halftone/core/accumulator.h>

#include <halftone/core/error.h>

namespace halftone {

void check_accumulator(std::string_view op, const Accumulator& accumulator) {
  check_format(op, accumulator.grid);
  if (accumulator.rounding == Rounding::stochastic)
    fail<UsageError>(op,
                     "an accumulator rounds stochastically. Choose another rounding: products "
                     "have no random numbers.");
  if (accumulator.chunk < 0)
    fail<UsageError>(op, "an accumulator adds up chunks of ", accumulator.chunk,
                     ". Choose 0 for one chunk, or more.");
}

}  // namespace halftone

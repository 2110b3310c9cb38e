// The type of task 2: a format.
#pragma once

/// The numbers of a short floating-point format: +-significand 2^exponent, and zero. Significands
/// have `significand_bits` bits, of which the first is the hidden bit; exponents begin at
/// `min_exponent`. The library's NumberFormat has the same fields.
struct Format {
  int significand_bits = 8, min_exponent = -126;
  double max = 0x1.fep127;  // the largest number
  bool infinity = true;     // results beyond `max` are infinite; else they are `max`
};

// What a progress line says, and which of it fits a width. Pure functions: the terminal is
// progress_bar.h's business.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace halftone::train {

enum class Shown {
  number,   // 0.4321, or 4.321e-05 where that says more
  percent,  // of a share: 0.9312 is 93.12 %
  count,    // without decimals: skipped steps, a loss scale
};

/// "0.4321", "93.12 %", "65536".
std::string shown_text(double value, Shown shown);

struct ProgressField {
  std::string_view name;
  double value;
  Shown shown = Shown::number;
};

struct ProgressState {
  int64_t epoch = 0, epochs = 0;          // from 1; epochs 0: unknown
  int64_t step = 0, steps = 0;            // done in this epoch, and of how many; steps 0: unknown
  double rate = 0;                        // units per second
  double seconds_left = -1;               // negative: unknown
  std::string_view unit = "samples";      // ASCII
  std::span<const ProgressField> fields;  // the most important first; names in ASCII
};

/// One line of at most `columns` characters: counts, fields, rate, time left, and a bar where at
/// least 10 columns are free. What does not fit is left out from the end: the bar, the rate, the
/// time left, then the last fields. `colour` adds escape sequences, which take no columns.
std::string status_line(const ProgressState& state, int64_t columns, bool colour);
/// The whole line without a bar, for files and pipes.
std::string status_line(const ProgressState& state);

}  // namespace halftone::train

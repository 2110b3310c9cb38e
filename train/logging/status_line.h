// The text of a progress line, cut to a width. Pure functions: progress.h handles the terminal.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace halftone::train {

enum class Shown {
  number,   // 0.4321, or 4.321e-05 for small values
  percent,  // for a share: 0.9312 is 93.12 %
  count,    // without decimals: skipped steps, a loss scale
};

/// Returns "0.4321", "93.12 %", "65536".
std::string shown_text(double value, Shown shown);

struct ProgressField {
  std::string_view name;
  double value;
  Shown shown = Shown::number;
};

struct ProgressState {
  int64_t epoch = 0, epochs = 0;          // from 1; epochs 0: unknown
  int64_t step = 0, steps = 0;            // done in this epoch, and its number of steps; steps 0:
                                          // unknown
  double rate = 0;                        // units per second
  double seconds_left = -1;               // negative: unknown
  std::string_view unit = "samples";      // ASCII
  std::span<const ProgressField> fields;  // the most important first; names in ASCII
};

/// Returns one line of at most `columns` characters: counts, fields, rate, time left, and a bar if
/// at least 10 columns are free. If the parts do not all fit, they are left out in this order: the
/// bar, the rate, the time left, then the last fields. `color` adds escape sequences, which take
/// no columns.
std::string status_line(const ProgressState& state, int64_t columns, bool color);
/// Returns the whole line without a bar, for files and pipes.
std::string status_line(const ProgressState& state);

}  // namespace halftone::train

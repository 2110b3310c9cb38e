// Reads and sets the learning rates of all parameter groups at once.
#pragma once

#include <vector>

#include <halftone/optim/optimizer.h>

namespace halftone::train {

inline std::vector<double> rates_of(const optim::Optimizer& optimizer) {
  std::vector<double> rates(std::size_t(optimizer.group_count()));
  for (std::size_t group = 0; group < rates.size(); ++group)
    rates[group] = optimizer.lr(int(group));
  return rates;
}

inline void set_rates(optim::Optimizer& optimizer, const std::vector<double>& rates) {
  for (std::size_t group = 0; group < rates.size(); ++group)
    optimizer.set_lr(rates[group], int(group));
}

}  // namespace halftone::train

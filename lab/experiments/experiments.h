// The experiments; each has a file with its name. Numbers are those of docs/experiments.md.
#pragma once

#include <halftone/lab/experiment.h>

namespace halftone::lab::found {

extern const Experiment e1, e2, e3, e4, e5, e6, e7, e8, e9, e10, e11, e12, e13, e14, e15, e16, e17,
    e18, e19, e20, e21, e22, e23, e24, e25, e26;

}  // namespace halftone::lab::found

// All headers of mixed precision. Reading order: README.md.
#pragma once

#include <halftone/amp/autocast.h>
#include <halftone/amp/cast_policy.h>
#include <halftone/amp/grad_scaler.h>
#include <halftone/amp/master_weights.h>
#include <halftone/amp/strategy.h>
#include <halftone/amp/training.h>

// Includes everything in optim/.
#pragma once

#include <halftone/optim/lr_schedule.h>
#include <halftone/optim/optimizer.h>
#include <halftone/optim/optimizers.h>

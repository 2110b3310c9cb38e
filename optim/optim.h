// Includes everything in optim/.
#pragma once

#include <halftone/optim/adam.h>
#include <halftone/optim/clip_grad.h>
#include <halftone/optim/lamb.h>
#include <halftone/optim/lion.h>
#include <halftone/optim/lr_schedule.h>
#include <halftone/optim/optimizers.h>
#include <halftone/optim/rmsprop.h>
#include <halftone/optim/sgd.h>

// Includes all of train/.
#pragma once

#include <halftone/train/callbacks.h>
#include <halftone/train/checkpoint.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/loggers.h>
#include <halftone/train/metrics.h>
#include <halftone/train/progress.h>
#include <halftone/train/task.h>
#include <halftone/train/trainer.h>

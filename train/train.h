// Includes all of train/.
#pragma once

#include <halftone/train/callbacks/early_stopping.h>
#include <halftone/train/callbacks/lr_on_plateau.h>
#include <halftone/train/callbacks/mixup.h>
#include <halftone/train/callbacks/monitors.h>
#include <halftone/train/callbacks/nan_policy.h>
#include <halftone/train/callbacks/precision_monitor.h>
#include <halftone/train/callbacks/weight_average.h>
#include <halftone/train/checkpoint.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/checkpoints/checkpoint.h>
#include <halftone/train/evaluation.h>
#include <halftone/train/loggers.h>
#include <halftone/train/logging/model_summary.h>
#include <halftone/train/metrics.h>
#include <halftone/train/precision.h>
#include <halftone/train/progress.h>
#include <halftone/train/trainer.h>

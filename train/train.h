// Everything of train/.
#pragma once

#include <halftone/train/checkpoint.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/early_stopping.h>
#include <halftone/train/evaluation.h>
#include <halftone/train/loggers.h>
#include <halftone/train/lr_on_plateau.h>
#include <halftone/train/metrics.h>
#include <halftone/train/mixup.h>
#include <halftone/train/model_summary.h>
#include <halftone/train/monitors.h>
#include <halftone/train/nan_policy.h>
#include <halftone/train/precision.h>
#include <halftone/train/precision_monitor.h>
#include <halftone/train/progress_bar.h>
#include <halftone/train/resume.h>
#include <halftone/train/trainer.h>
#include <halftone/train/weight_average.h>

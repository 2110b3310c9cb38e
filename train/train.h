// Everything of train/.
#pragma once

#include <halftone/train/checkpoint.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/loggers.h>
#include <halftone/train/metrics.h>
#include <halftone/train/progress_bar.h>
#include <halftone/train/resume.h>

// Everything of train/.
#pragma once

#include <halftone/train/checkpoint.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/resume.h>

// All operations, for users.
#pragma once

#include <halftone/autograd/engine.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/autograd/ops/decoder.h>
#include <halftone/autograd/ops/elementwise.h>
#include <halftone/autograd/ops/images.h>
#include <halftone/autograd/ops/index.h>
#include <halftone/autograd/ops/linalg.h>
#include <halftone/autograd/ops/logical.h>
#include <halftone/autograd/ops/loss.h>
#include <halftone/autograd/ops/matmul.h>
#include <halftone/autograd/ops/norm.h>
#include <halftone/autograd/ops/reduce.h>
#include <halftone/autograd/ops/sequences.h>
#include <halftone/autograd/ops/shape.h>

// All operations, for users.
#pragma once

#include <halftone/autograd/checkpoint.h>
#include <halftone/autograd/ops/attention.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/autograd/ops/conv.h>
#include <halftone/autograd/ops/dot.h>
#include <halftone/autograd/ops/dropout.h>
#include <halftone/autograd/ops/einsum.h>
#include <halftone/autograd/ops/elementwise.h>
#include <halftone/autograd/ops/embedding.h>
#include <halftone/autograd/ops/index.h>
#include <halftone/autograd/ops/integer.h>
#include <halftone/autograd/ops/interpolate.h>
#include <halftone/autograd/ops/logical.h>
#include <halftone/autograd/ops/loss.h>
#include <halftone/autograd/ops/matmul.h>
#include <halftone/autograd/ops/norm.h>
#include <halftone/autograd/ops/operators.h>
#include <halftone/autograd/ops/overloads.h>
#include <halftone/autograd/ops/pool.h>
#include <halftone/autograd/ops/rearrange.h>
#include <halftone/autograd/ops/recurrent.h>
#include <halftone/autograd/ops/reduce.h>
#include <halftone/autograd/ops/shape.h>
#include <halftone/autograd/ops/softmax.h>
#include <halftone/autograd/ops/sort.h>

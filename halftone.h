// The one header that most programs include: tensors, autograd, layers and models, optimizers,
// data, mixed precision (amp), policies, several processes (distributed), the Trainer. Other
// headers, such as lab/lab.h for experiments, are included by their path.
#pragma once

#include <halftone/amp/amp.h>
#include <halftone/autograd/engine.h>
#include <halftone/autograd/inspect.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/device.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/data/data.h>
#include <halftone/distributed/distributed.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/nn.h>
#include <halftone/onnx/save_onnx.h>
#include <halftone/optim/optim.h>
#include <halftone/policy/policy.h>
#include <halftone/train/train.h>

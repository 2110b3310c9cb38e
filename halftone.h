// The one header that most programs include: tensors, autograd, layers and models, optimizers,
// data, mixed precision (amp), policies, several processes (distributed), the Trainer. Other
// headers, such as lab/lab.h for experiments, are included by their path.
#pragma once

#include <halftone/amp/autocast.h>
#include <halftone/amp/cast_policy.h>
#include <halftone/amp/grad_scaler.h>
#include <halftone/amp/master_weights.h>
#include <halftone/amp/strategy.h>
#include <halftone/amp/training.h>
#include <halftone/autograd/engine.h>
#include <halftone/autograd/inspect.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/communicator.h>
#include <halftone/core/device.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/data/csv.h>
#include <halftone/data/data_loader.h>
#include <halftone/data/images.h>
#include <halftone/data/sets.h>
#include <halftone/data/text.h>
#include <halftone/data/transforms.h>
#include <halftone/distributed/collectives.h>
#include <halftone/distributed/wire.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/nn.h>
#include <halftone/onnx/save_onnx.h>
#include <halftone/optim/lr_schedule.h>
#include <halftone/optim/optimizer.h>
#include <halftone/optim/optimizers.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/probe.h>
#include <halftone/policy/rules.h>
#include <halftone/policy/session.h>
#include <halftone/train/callbacks.h>
#include <halftone/train/checkpoint.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/loggers.h>
#include <halftone/train/metrics.h>
#include <halftone/train/progress.h>
#include <halftone/train/task.h>
#include <halftone/train/trainer.h>

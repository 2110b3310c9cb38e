// Includes everything in nn/ except the models.
#pragma once

#include <halftone/nn/attention.h>
#include <halftone/nn/clone.h>
#include <halftone/nn/conv.h>
#include <halftone/nn/conv_norm.h>
#include <halftone/nn/dropout.h>
#include <halftone/nn/embedding.h>
#include <halftone/nn/flatten.h>
#include <halftone/nn/init.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/linear.h>
#include <halftone/nn/module.h>
#include <halftone/nn/norm.h>
#include <halftone/nn/pooling.h>
#include <halftone/nn/rnn.h>
#include <halftone/nn/rnn_cell.h>
#include <halftone/nn/sequential.h>
#include <halftone/nn/standardizer.h>
#include <halftone/nn/state_dict.h>
#include <halftone/nn/upsample.h>

// Includes everything in nn/ except the models.
#pragma once

#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/module.h>
#include <halftone/nn/rnn.h>

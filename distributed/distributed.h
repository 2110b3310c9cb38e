// Several processes, for users: who they are, what they do together, and what training on them is
// told.
#pragma once

#include <halftone/core/communicator.h>
#include <halftone/distributed/collectives.h>
#include <halftone/distributed/options.h>

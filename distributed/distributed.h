// Several processes, for users: ranks, collective calls, and the options of training on several
// processes.
#pragma once

#include <halftone/core/communicator.h>
#include <halftone/distributed/collectives.h>
#include <halftone/distributed/wire.h>

// Policies as files: the headers for users of policy/.
#pragma once

#include <halftone/policy/policy_file.h>
#include <halftone/policy/probe.h>
#include <halftone/policy/rules.h>
#include <halftone/policy/session.h>
